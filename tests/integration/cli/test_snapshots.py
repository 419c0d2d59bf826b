"""`easyscale snapshots` on a folder that a job has left: read whole, compared, tidied."""

import json
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from easyscale.inspection import Answer, Request
from easyscale.model import Determinism, GenerationNumber, WorkerId
from easyscale.runtime.snapshots import Origin, write_snapshot
from easyscale.runtime.state import Place, State
from easyscale_cli.inspecting import ask_runtime
from easyscale_cli.main import run
from tests.support.processes import Outcome, run_easyscale

FIXED = {
    "logical_workers": 4,
    "seed": 0,
    "determinism": str(Determinism.SAME_KIND),
    "threads_per_worker": 1,
}


def write(runs: Path, step: int, value: float) -> Path:
    weight = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    weight[1, 2] = value
    state = State(
        place=Place(step=step, position=step), fixed=FIXED,
        objects={"model": {"weight": weight}, "optimizer": {"lr": 0.1}},
        trainable={}, passed={}, user={}, metrics={}, outer_stream={},
    )  # fmt: skip
    origin = Origin(
        folder=runs / "bert", job_id="bert", worker=WorkerId("a", "life", "cpu:0", 1),
        generation=GenerationNumber(1, 1),
    )  # fmt: skip
    return runs / "bert" / write_snapshot(state, origin)[0]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Steps 10, 20, 30 and 40, the last of which is damaged."""
    for step in (10, 20, 30):
        write(tmp_path / "runs", step, value=step / 4)
    damaged = write(tmp_path / "runs", 40, value=1.0) / "state.pt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    return tmp_path / "runs"


def snapshots(runs: Path, *words: str) -> Outcome:
    return run_easyscale("snapshots", *words, cwd=runs.parent)


def asked(runs: Path, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    ended = snapshots(runs, *words, "--json")
    assert ended.code == code, ended.stderr
    return json.loads(ended.stdout)


def test_a_job_that_has_ended_is_known_by_its_folder(runs: Path) -> None:
    rows = asked(runs, "ls")
    assert [(row["step"], row["state"]) for row in rows] == [
        (40, "damaged"),
        (30, "verified"),
        (20, "complete"),
        (10, "complete"),
    ]
    assert {tuple(row["nodes"]) for row in rows} == {("a",)}
    shown = snapshots(runs, "ls", "bert")
    assert shown.stdout.splitlines()[-1] == "restore would take step-00000030"
    told = snapshots(runs, "ls", "bret")
    assert (told.code, "it has bert" in told.stderr) == (1, True)


def test_verify_reads_everything_and_ends_with_1_for_what_is_damaged(runs: Path) -> None:
    answer = asked(runs, "verify", "bert", code=1)
    states = {row["name"]: row["state"] for row in answer["snapshots"]}
    assert states == {
        "step-00000040": "damaged",
        "step-00000030": "verified",
        "step-00000020": "verified",
        "step-00000010": "verified",
    }
    assert "blake2b of bytes" in answer["snapshots"][0]["reason"]
    good = snapshots(runs, "verify", "bert", "20", "step-00000030")
    assert good.code == 0, good.stderr
    assert good.stdout.count("1 tensor, blake2b and digest agree") == 2


def test_what_the_job_removes_meanwhile_is_no_damage(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A running job keeps its newest few; reading one takes longer than the next takes to come."""
    monkeypatch.chdir(runs.parent)
    path = next((runs / "bert").glob("step-00000010-*"))

    def removed_before(request: Request, *, sizes: Sequence[int]) -> Generator[Answer]:
        path.rename(path.with_name(f".{path.name}.deleted"))
        return ask_runtime(request, sizes=sizes)

    monkeypatch.setattr("easyscale_cli.commands.snapshots.ask_runtime", removed_before)
    assert run(["snapshots", "verify", "bert", "10", "20", "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert [row["state"] for row in answer["snapshots"]] == ["gone", "verified"]
    path.with_name(f".{path.name}.deleted").rename(path)
    assert run(["snapshots", "verify", "bert", "10"]) == 1
    assert "step-00000010  was removed before it was read" in capfd.readouterr().out


def test_nothing_in_a_snapshot_is_executed(runs: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (runs / "executed",))

    path = next((runs / "bert").glob("step-00000030-*"))
    torch.save(Hostile(), path / "state.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    from easyscale.integrity import digest_file

    file = digest_file(path / "state.pt")
    manifest["files"] = {"state.pt": {"bytes": file.bytes, "blake2b": file.blake2b}}
    (path / "manifest.json").write_text(json.dumps(manifest))
    answer = asked(runs, "verify", "bert", "30", code=1)
    assert "holds no training state" in answer["snapshots"][0]["reason"]
    assert not (runs / "executed").exists()


def test_diff_names_the_tensor_that_differs(runs: Path) -> None:
    answer = asked(runs, "diff", "bert", "10", "20", code=1)
    assert (answer["same"], answer["count"]) == (False, 1)
    [tensor] = answer["tensors"]
    assert (tensor["name"], tensor["differing"], tensor["first"]) == ("model.weight", 1, "[1,2]")
    assert (tensor["before"], tensor["after"], tensor["largest"]) == (2.5, 5.0, 2.5)
    path = next((runs / "bert").glob("step-00000010-*"))
    same = snapshots(runs, "diff", "bert", "10", str(path))
    assert (same.code, "are equal, bit by bit" in same.stdout) == (0, True)
    refused = snapshots(runs, "diff", "bert", "10", "40")
    assert (refused.code, "blake2b" in refused.stderr) == (1, True)


def test_prune_keeps_the_newest_that_verifies(runs: Path) -> None:
    assert snapshots(runs, "prune", "bert").code == 2
    would = asked(runs, "prune", "bert", "--keep", "1", "--damaged", "--dry-run")
    assert len(list((runs / "bert").iterdir())) == 4
    done = asked(runs, "prune", "bert", "--keep", "1", "--damaged")
    assert [row["name"] for row in done["removed"]] == [row["name"] for row in would["removed"]]
    assert [name.rpartition("-g")[0] for name in done["kept"]] == ["step-00000030"]
    assert [path.name for path in (runs / "bert").iterdir()] == done["kept"]
