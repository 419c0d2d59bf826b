"""Which snapshots a command means: by an agent here, a folder, a step, a name or a path."""

from pathlib import Path
from typing import Any

import pytest

from easyscale.errors import UsageError
from easyscale.model import (
    Determinism,
    GenerationNumber,
    Manifest,
    Position,
    SnapshotRecord,
    WorkerId,
    encode,
)
from easyscale_cli import snapshot_folder
from easyscale_cli.lookup import JobUnknown
from easyscale_cli.snapshot_folder import (
    Known,
    Snapshots,
    SnapshotUnknown,
    chosen_folder,
    find_snapshots,
)


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory without anything, on a machine without agents."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(snapshot_folder, "agents_here", dict)


def write(job: str, step: int, *, generation: int = 1) -> Path:
    path = Path("runs") / job / f"step-{step:08d}-g1.{generation}-0123abcd"
    path.mkdir(parents=True)
    manifest = Manifest(
        job_id=job, step=step, epoch=0, index=0, position=Position(step), digest="d",
        generation=GenerationNumber(1, generation), worker="a/life/cpu:0/1", finished=False,
        logical_workers=4, seed=0, determinism=Determinism.SAME_KIND, threads_per_worker=1,
        torch_version="2", created="", files={},
    )  # fmt: skip
    (path / "manifest.json").write_text(encode(manifest))
    return path


def find(name: str | None, **asked: Any) -> Snapshots:  # noqa: ANN401
    return find_snapshots(name, {"snapshot_dir": "", "etcd": "", **asked})


def test_a_job_that_has_ended_is_found_by_its_folder_or_as_the_only_one() -> None:
    write("bert", 10)
    assert find("bert").folder == Path("runs/bert")
    assert find(None).job == "bert"
    write("resnet", 10)
    with pytest.raises(UsageError, match="2 jobs here: bert, resnet"):
        find(None)


def test_a_folder_of_logs_is_no_job_with_snapshots() -> None:
    (Path("runs") / "plain" / "logs").mkdir(parents=True)
    with pytest.raises(JobUnknown, match="no job here has snapshots"):
        find(None)


def test_a_job_that_is_nowhere_is_told_with_what_there_is() -> None:
    write("bert", 10)
    with pytest.raises(JobUnknown, match=r"no folder runs/bret; it has bert") as met:
        find("bret")
    assert met.value.hint == "easyscale snapshots ls bert"


def test_a_folder_that_is_named_says_of_which_job_it_is() -> None:
    write("bert", 10)
    assert find(None, snapshot_dir="runs/bert").job == "bert"
    with pytest.raises(UsageError, match="no such folder"):
        find(None, snapshot_dir="runs/none")


def test_a_snapshot_is_chosen_by_step_short_name_or_name() -> None:
    path = write("bert", 6400)
    write("bert", 6200)
    found = find("bert")
    for word in ("6400", "6,400", "step-00006400", path.name):
        assert found.choose(word).name == path.name
    with pytest.raises(SnapshotUnknown, match="has no snapshot '6300'") as met:
        found.choose("6300")
    assert met.value.hint == "step-00006200"


def test_two_snapshots_of_one_step_need_their_whole_names() -> None:
    write("bert", 10)
    twin = write("bert", 10, generation=2)
    with pytest.raises(UsageError, match="2 snapshots of job 'bert' are of step-00000010"):
        find("bert").choose("10")
    assert find("bert").choose(twin.name).name == twin.name


def test_a_path_names_a_snapshot_of_any_job() -> None:
    path = write("other", 10)
    assert chosen_folder(path).step == 10
    with pytest.raises(UsageError, match="no snapshot"):
        chosen_folder(Path("runs/other"))


def test_recorded_ones_of_other_nodes_are_known_besides() -> None:
    path = write("bert", 10)

    def record(name: str, **more: Any) -> SnapshotRecord:  # noqa: ANN401
        return SnapshotRecord(
            name=name, step=20, epoch=0, digest="d", bytes=1, generation=GenerationNumber(1, 1),
            nodes=("b",), **more,
        )  # fmt: skip

    known = Known(records=(record(path.name), record("step-20"), record("old", superseded=True)))
    found = Snapshots("bert", Path("runs/bert"), known, is_running=True)
    entries = found.catalogue.entries()
    assert [each.name for each in found.elsewhere(entries)] == ["step-20"]
    assert found.nodes(entries[0]) == ("b",)
    alone = Snapshots("bert", Path("runs/bert"), Known(), is_running=False)
    assert alone.nodes(entries[0]) == (WorkerId.parse("a/life/cpu:0/1").node,)
