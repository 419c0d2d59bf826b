"""Records of runs: written line by line, read back as one."""

from pathlib import Path

import pytest

from easyscale.errors import FormatError
from easyscale.recording import (
    Boundary,
    Entry,
    Evaluated,
    MicroStep,
    Point,
    Reduced,
    Stage,
    encode_entry,
    read_entries,
    read_run,
)


def micro_step(step: int, rank: int, **changes: object) -> MicroStep:
    values: dict[str, object] = {
        "batch": f"batch-{step}-{rank}",
        "reports": {"loss": "0x1.0p+0"},
        "gradients": {"w": f"grad-{step}-{rank}"},
        "outside": {},
    }
    return MicroStep(step=step, rank=rank, **{**values, **changes})  # type: ignore[arg-type]


def write(folder: Path, worker: str, *entries: Entry) -> Path:
    path = folder / f"{worker}.record"
    path.write_bytes(b"".join(map(encode_entry, entries)))
    return path


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    write(tmp_path, "a", micro_step(0, 0), Reduced(step=0, gradients={"w": "x"}))
    write(tmp_path, "b", micro_step(0, 1), Boundary(step=1, state={"w": "y"}))
    run = read_run(tmp_path)
    assert sorted(run.micro_steps) == [(0, 0), (0, 1)]
    assert run.reduced[0].gradients == {"w": "x"}
    assert run.last_step == 1
    assert run.torn == ()


def test_the_last_line_of_a_killed_worker_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path, "a", micro_step(0, 0), micro_step(0, 1))
    path.write_bytes(path.read_bytes()[:-7])
    assert [entry.rank for entry in read_entries(path)] == [0]  # type: ignore[union-attr]


def test_a_line_that_is_no_entry_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "a", micro_step(0, 0))
    path.write_bytes(path.read_bytes() + b'{"entry":"Nothing"}\n')
    with pytest.raises(FormatError, match=r"a\.record, line 2, is no entry"):
        list(read_entries(path))


def test_what_stands_outside_is_put_together_from_its_changes_per_worker(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a",
        micro_step(0, 0, outside={"n": "int 1", "m": "int 5"}),
        micro_step(1, 0, outside={"n": "int 2", "m": ""}),
        micro_step(2, 0),
    )
    write(tmp_path, "b", micro_step(2, 1, outside={"n": "int 1"}))
    run = read_run(tmp_path)
    assert run.outside[(0, 0)] == {"n": "int 1", "m": "int 5"}
    assert run.outside[(2, 0)] == {"n": "int 2"}
    assert run.outside[(2, 1)] == {"n": "int 1"}


def test_two_workers_that_were_given_other_results_of_one_evaluation_are_noted(
    tmp_path: Path,
) -> None:
    one = Evaluated(step=3, number=1, state={"w": "1"}, results=("a", "b"))
    two = Evaluated(step=3, number=1, state={"w": "2"}, results=("a", "c"))
    write(tmp_path, "a", one)
    write(tmp_path, "b", two)
    run = read_run(tmp_path)
    assert run.evaluations == {(3, 1): one}
    assert run.torn == (
        Point(3, Stage.EVALUATION, -1, "evaluate[1][1]"),
        Point(3, Stage.STATE, -1, "w"),
    )


def test_two_workers_of_one_run_that_disagree_are_noted(tmp_path: Path) -> None:
    write(tmp_path, "a", Boundary(step=4, state={"w": "1", "b": "1"}), micro_step(3, 0))
    write(
        tmp_path,
        "b",
        Boundary(step=4, state={"w": "1", "b": "2"}),
        micro_step(3, 0, gradients={"w": "other"}),
    )
    assert read_run(tmp_path).torn == (
        Point(3, Stage.GRADIENT, 0, "w"),
        Point(3, Stage.STATE, -1, "b"),
    )
