"""Whether a job runs here already: its snapshot folder, held as long as its agent lives.

An etcd of one's own tells nobody of a second launch, and two would write and prune one folder. The
lock is the kernel's and on the folder itself: nothing is left behind, whatever ends the agent.
"""

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from easyscale.agent.doors.control import local_agents, swept_folder
from easyscale.agent.settings import LaunchSettings
from easyscale.errors import AlreadyRunning

_LOCKS = Path("/proc/locks")


@contextmanager
def occupied(settings: LaunchSettings) -> Iterator[None]:
    """Hold the job's snapshot folder, which is there; raises AlreadyRunning where another does.

    Agents that meet in an etcd are told apart there, and may share the folder.
    """
    store = settings.store
    if store.endpoints or store.serve_at:
        yield
        return
    folder = os.open(settings.snapshot_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _hold(folder, settings)
        yield
    finally:
        os.close(folder)


def _hold(folder: int, settings: LaunchSettings) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = holder_of(folder)
        if _job_of(holder, settings.environment) not in {None, settings.job_id}:
            return  # another job, with snapshots of its own in the same folder
        who = "" if holder is None else f" as process {holder}"
        raise AlreadyRunning(
            f"job {settings.job_id!r} runs here already{who}: it writes its snapshots to"
            f" {settings.snapshot_dir}",
            hint=f"easyscale status {settings.job_id}, or a new job: --job-id NAME, or"
            " --etcd HOST:PORT on both to train it together",
        ) from None
    except OSError:
        return  # a file system without locks: nobody is told apart, as before


def holder_of(folder: int, locks: Path = _LOCKS) -> int | None:
    """The process that holds the lock of an open folder, where the kernel tells."""
    facts = os.fstat(folder)
    device = f"{os.major(facts.st_dev):02x}:{os.minor(facts.st_dev):02x}"
    wanted = f"{device}:{facts.st_ino}"
    try:
        told = locks.read_text()
    except OSError:
        return None
    for line in told.splitlines():
        words = line.split()
        # `1: FLOCK ADVISORY WRITE 4711 fe:00:2230476 0 EOF`; who waits has `->` behind the number.
        if words[1:2] == ["FLOCK"] and words[5:6] == [wanted]:
            holder = int(words[4])
            return holder if holder > 0 else None  # of another container
    return None


def _job_of(pid: int | None, environment: Mapping[str, str]) -> str | None:
    """The job that a process of this user trains, by its own word."""
    sockets = None if pid is None else swept_folder(environment)
    if sockets is None:
        return None
    return next((agent.job for agent in local_agents(sockets) if agent.pid == pid), None)
