"""The parent of an embedded etcd: starts it, ends it when its own parent ends, removes its folder.

    agent --pipe--> keeper --parent-death signal--> etcd

A server that dies by itself is started again, as empty as the first: what it had may lack a write
that was acknowledged (docs/decisions/0003). Run as `python -I -S etcd_keeper.py FOLDER SOCKETS
COMMAND...`, on the standard library alone. The end of the pipe means that the agent ended, however
it did: nothing is left behind then, not the agent's own socket in the folder SOCKETS either. The
folder of a keeper that was killed together with its agent is removed by the next one.
"""

import contextlib
import ctypes
import fcntl
import json
import math
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

STOP_GRACE_S = 2.0
#: A server that ends sooner than this cannot run here: starting it again would not help.
SOUND_AFTER_S = 2.0
_PR_SET_PDEATHSIG = 1
#: Of the flags in /proc/PID/stat, field 9.
_PF_EXITING = 0x4
_LOG_TAIL_BYTES = 4000
#: Held by the keeper of the folder that it is in for as long as the keeper lives.
_LOCK = "lock"
#: A folder that is younger may have a keeper that does not hold its lock yet.
_SWEPT_AFTER_S = 60.0


def main(folder: Path, sockets: str, command: list[str]) -> None:
    """Keep one server until it ends or nobody needs it; then say on stdout how it ended."""
    agent = os.getppid()
    wakeup, notice = os.pipe()
    os.set_blocking(notice, False)
    signal.set_wakeup_fd(notice)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        _tell(1, str(error))
        return
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    _sweep(folder.parent)
    log = folder / "etcd.log"
    try:
        status = _serve(command, folder=folder, log=log, wakeup=wakeup)
        tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        _tell(status, tail)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if sockets and (os.getppid() != agent or _is_exiting(agent)):
            for path in Path(sockets).glob(f"*-{agent}.sock"):
                path.unlink(missing_ok=True)


def _sweep(base: Path) -> None:
    """Remove the folders whose keepers were killed; of a living one the lock is held."""
    for lock in base.glob(f"easyscale-*-etcd/{_LOCK}"):
        with contextlib.suppress(OSError):  # of another user, or just gone
            if time.time() - lock.stat().st_mtime < _SWEPT_AFTER_S:
                continue
            held = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
            finally:
                os.close(held)


def _serve(command: list[str], *, folder: Path, log: Path, wakeup: int) -> int:
    """Have a server run until the agent is gone or none stays up; returns how the last ended."""
    start = 0
    while True:
        start += 1
        # Said last, it holds: each start is a cluster of its own, known by another id.
        token = f"--initial-cluster-token={folder.name}-{start}"
        started_s = time.monotonic()
        server = _start([*command, token], folder=folder, log=log)
        status, agent_gone = _await_end(server, wakeup=wakeup)
        if agent_gone or time.monotonic() - started_s < SOUND_AFTER_S:
            return status
        shutil.rmtree(folder / "data", ignore_errors=True)


def _tell(status: int, log: str) -> None:
    # The agent may be gone; then there is nobody to tell.
    with contextlib.suppress(BrokenPipeError):
        print(json.dumps({"status": status, "log": log}), flush=True)  # noqa: T201


def _start(command: list[str], *, folder: Path, log: Path) -> int:
    keeper = os.getpid()
    server = os.fork()
    if server:
        return server
    try:
        os.chdir(folder)
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
        os.dup2(2, 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Linux only; elsewhere a killed keeper leaves its server to the agent's own `stop`.
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != keeper:
            # The keeper ended before the signal was asked for.
            os._exit(1)
        os.execv(command[0], command)  # noqa: S606 - the very purpose of this file
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _await_end(server: int, *, wakeup: int) -> tuple[int, bool]:
    """Wait for the server's end or the agent's, and let the latter cause the former.

    Returns the server's status, and whether the agent is gone.
    """
    agent_gone = False
    kill_at = math.inf
    while True:
        watched = [wakeup] if agent_gone else [0, wakeup]
        timeout_s = max(0.0, kill_at - time.monotonic()) if agent_gone else None
        ready, _, _ = select.select(watched, [], [], timeout_s)
        ended, status = os.waitpid(server, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), agent_gone or _is_closed(0)
        if not ready:
            os.kill(server, signal.SIGKILL)
            return os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]), agent_gone
        signals = os.read(wakeup, 64) if wakeup in ready else b""
        if not agent_gone and (_is_closed(0) or signal.SIGTERM in signals):
            agent_gone = True
            kill_at = time.monotonic() + STOP_GRACE_S
            os.kill(server, signal.SIGTERM)


# Stands in agent/plain/keeper.py too: either runs alone by its path and can import nothing of ours.
def _is_exiting(pid: int) -> bool:
    """It is on its way out: whoever ends closes its files first, and gives up its children last."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return bool(int(text.rpartition(")")[2].split()[6]) & _PF_EXITING)


def _is_closed(pipe: int) -> bool:
    """Whether the other end is: nothing is ever written to it, so readable means closed."""
    return bool(select.select([pipe], [], [], 0)[0])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
