"""Whether a second launch of a job is noticed, and what it is told."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from easyscale.agent import occupancy
from easyscale.agent.doors.control import LocalAgent
from easyscale.agent.occupancy import holder_of, occupied
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.errors import AlreadyRunning, ExitCode
from tests.support.views import launch_settings


def settings(folder: Path, *, store: StoreSettings | None = None) -> LaunchSettings:
    return launch_settings(
        job_id="same", snapshot_dir=str(folder), store=store or StoreSettings(), environment={}
    )


@contextmanager
def trained_by(
    monkeypatch: pytest.MonkeyPatch, job: str | None, *, pid: int = os.getpid()
) -> Iterator[None]:
    """Let the process that holds the lock say which job it trains."""
    agents = () if job is None else (LocalAgent(job=job, node="a", pid=pid, socket="s"),)
    with monkeypatch.context() as patch:
        patch.setattr(occupancy, "local_agents", lambda _: agents)
        yield


@pytest.mark.parametrize("job", ["same", None])
def test_a_second_launch_of_a_job_is_told_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str | None
) -> None:
    with (
        occupied(settings(tmp_path)),
        trained_by(monkeypatch, job),
        pytest.raises(AlreadyRunning) as refused,
        occupied(settings(tmp_path)),
    ):
        pass
    error = refused.value
    assert error.exit_code is ExitCode.USAGE
    assert error.message == (
        f"job 'same' runs here already as process {os.getpid()}: it writes its snapshots to"
        f" {tmp_path}"
    )
    assert error.hint == (
        "easyscale status same, or a new job: --job-id NAME, or --etcd HOST:PORT on both to train"
        " it together"
    )


def test_another_job_may_keep_its_snapshots_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = settings(tmp_path), settings(tmp_path)
    with occupied(theirs), trained_by(monkeypatch, "other"), occupied(mine):
        pass


def test_the_folder_is_free_again_when_its_agent_has_ended_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    for _ in range(2):
        with occupied(settings(tmp_path)):
            assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "store",
    [StoreSettings(endpoints=("e:1",)), StoreSettings(endpoints=("a:1",), serve_at="a:1")],
)
def test_agents_that_meet_in_an_etcd_may_share_the_folder(
    tmp_path: Path, store: StoreSettings
) -> None:
    met = settings(tmp_path, store=store)
    with occupied(met), occupied(met), occupied(settings(tmp_path)):
        pass


def test_a_file_system_without_locks_guards_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        del descriptor, operation
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with occupied(settings(tmp_path)), occupied(settings(tmp_path)):
        pass


def test_no_program_that_the_agent_starts_inherits_the_lock(tmp_path: Path) -> None:
    with occupied(settings(tmp_path)):
        mine = [
            int(each.name)
            for each in Path("/proc/self/fd").iterdir()
            if each.resolve() == tmp_path.resolve()
        ]
        assert [os.get_inheritable(each) for each in mine] == [False]


def test_the_holder_is_who_has_the_lock_of_this_very_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    facts = os.fstat(folder)
    place = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    locks = tmp_path / "locks"
    rows = (
        f"1: POSIX  ADVISORY  WRITE 11 {place}:{facts.st_ino} 0 EOF",
        f"2: FLOCK  ADVISORY  WRITE 12 {place}:{facts.st_ino + 1} 0 EOF",
        f"3: FLOCK  ADVISORY  WRITE 13 {place}:{facts.st_ino} 0 EOF",
        f"3: -> FLOCK  ADVISORY  WRITE 14 {place}:{facts.st_ino} 0 EOF",
    )
    try:
        locks.write_text("\n".join(rows))
        assert holder_of(folder, locks) == 13
        locks.write_text("\n".join(rows[:2]))
        assert holder_of(folder, locks) is None
        locks.write_text(rows[2].replace(" 13 ", " 0 "))
        assert holder_of(folder, locks) is None
        assert holder_of(folder, tmp_path / "none") is None
    finally:
        os.close(folder)
