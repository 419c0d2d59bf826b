"""What a test must not leave behind: children, threads, sockets and easyscale's folders.

Linux hands orphans to the nearest subreaper: the test process makes itself one, so a grandchild
that lost its parent shows up as a child here, and no double fork escapes the guard.
"""

import contextlib
import ctypes
import gc
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

#: Long enough for a socket to close behind a thread that ends, short enough to be a finding.
SETTLE_S = 3.0
_PR_SET_CHILD_SUBREAPER = 36
#: Python's own helper: one per process, shared by everything, gone with its parent.
_SHARED_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class Holdings:
    """What this process holds at one moment, each item under the name it is reported by."""

    child: frozenset[str]
    thread: frozenset[str]
    socket: frozenset[str]
    folder: frozenset[str]

    def beyond(self, before: "Holdings", allowed: Iterable[str]) -> list[str]:
        """Name what is here and was not there, kind by kind, except the kinds allowed."""
        kinds = [kind for kind in ("child", "thread", "socket", "folder") if kind not in allowed]
        return [
            f"{kind}: {item}"
            for kind in kinds
            for item in sorted(getattr(self, kind) - getattr(before, kind))
            if kind != "child" or not _is_among(item, before.child)
        ]


def _is_among(child: str, others: Iterable[str]) -> bool:
    """Whether it is one of them that runs another program by now: between fork and exec."""
    name, _, _ = child.partition(": ")
    return any(name == other.partition(": ")[0] for other in others)


def adopt_orphans() -> None:
    """Become the parent of every orphan below this process, so that none is overlooked."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def holdings(folders: Iterable[Path] = ()) -> Holdings:
    return Holdings(
        child=frozenset(_children()),
        thread=frozenset(_threads()),
        socket=frozenset(_sockets()),
        folder=frozenset(_folders(folders)),
    )


def leaks(before: Holdings, look: Callable[[], Holdings], *, allowed: Iterable[str] = ()) -> str:
    """Wait until nothing new is held, `SETTLE_S` at the longest; then name what still is."""
    deadline = time.monotonic() + SETTLE_S
    pause_s = 0.01
    collected = False
    while found := look().beyond(before, allowed):
        if not collected:
            # Cycles keep sockets and groups alive that nobody holds any more.
            gc.collect()
            collected = True
            continue
        if time.monotonic() > deadline:
            return "\n".join(found)
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.2)
    return ""


def end_children(before: Holdings) -> None:
    """Kill and reap what a test left, so that the next test is judged by its own deeds."""
    for child in psutil.Process().children(recursive=True):
        if not _is_among(_describe(child), before.child) and not _is_shared_helper(child):
            _end(child)


def _end(child: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        child.kill()
        child.wait(SETTLE_S)


def _children() -> Iterable[str]:
    for child in psutil.Process().children():
        if child.status() == psutil.STATUS_ZOMBIE and child.pid not in _known_to_subprocess():
            # An orphan that came to us and ended: nobody else will ever wait for it.
            _reap(child.pid)
        elif not _is_shared_helper(child):
            yield _describe(child)


def _known_to_subprocess() -> set[int]:
    """Children whose Popen object was dropped unwaited: subprocess keeps them to poll later."""
    import subprocess  # its private list is looked up, not its functions

    return {process.pid for process in getattr(subprocess, "_active", None) or []}


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _describe(child: psutil.Process) -> str:
    try:
        return f"{child.pid} started {child.create_time():.2f}: {' '.join(child.cmdline())[:200]}"
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return f"{child.pid}: ended, never waited for"


def _is_shared_helper(child: psutil.Process) -> bool:
    try:
        command = " ".join(child.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False
    return any(helper in command for helper in _SHARED_HELPERS)


def _threads() -> Iterable[str]:
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            yield f"{thread.name} ({thread.ident})"


def _sockets() -> Iterable[str]:
    for entry in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are all that is wanted
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")  # noqa: PTH115 - no path: a socket
        except OSError:
            continue
        if target.startswith("socket:"):
            yield f"{target}, file descriptor {entry}"


def _folders(places: Iterable[Path]) -> Iterable[str]:
    for place in places:
        for entry in place.glob("easyscale*"):
            # The private run folder itself may stay; a socket or state in it may not.
            if any(entry.iterdir()) if entry.is_dir() else True:
                yield str(entry)


def private_places() -> list[Path]:
    """Where easyscale may write of its own accord: the temporary and the run folder."""
    places = [Path(tempfile.gettempdir())]
    if run_folder := os.environ.get("XDG_RUNTIME_DIR"):
        places.append(Path(run_folder))
    return places
