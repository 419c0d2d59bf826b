"""The parent of a plain launch's workers: starts programs, signals them, and outlives none of them.

Standard library only and one thread, run by its path: so a fork is safe, and the kernel ties every
worker to it. Orders come as JSON lines with descriptors; when its agent ends, all below it does.
"""

import array
import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import socket
import sys
from pathlib import Path
from typing import Any, NamedTuple

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
#: Of the flags in /proc/PID/stat, field 9.
_PF_EXITING = 0x4
_libc = ctypes.CDLL(None, use_errno=True)
#: What python changes at its start and a program expects as it was.
_RESTORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD)
#: For the agent to take; a terminal's Ctrl-C or a shell's end must not end the keeper first.
_FOR_THE_AGENT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: How often is looked whether what a worker has left behind is gone.
_POLL_S = 0.03
_DESCRIPTORS_PER_START = 2


class Process(NamedTuple):
    """A living process, as /proc has it."""

    pid: int
    parent: int
    session: int


class Worker:
    """A program that was started, until nothing of it is left."""

    def __init__(self, name: int, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.status: int | None = None
        #: Who was sent a signal and may take its time to end.
        self.signalled: set[int] = set()


class Keeper:
    """Serves one agent over `control` until that closes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._workers: dict[int, Worker] = {}
        self._received = bytearray()
        self._descriptors: list[int] = []
        self._wakeup = socket.socketpair()

    def serve(self) -> None:
        for end in self._wakeup:
            end.setblocking(False)
        signal.set_wakeup_fd(self._wakeup[1].fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ending = any(worker.status is not None for worker in self._workers.values())
            watched = [self._control, self._wakeup[0]]
            ready = select.select(watched, [], [], _POLL_S if ending else None)[0]
            if self._wakeup[0] in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wakeup[0].recv(4096)
            if self._control in ready and not self._obey():
                return
            self._reap()
            self._settle()

    def end(self) -> None:
        """Kill whatever is below, also what has taken itself out of every group."""
        while children := _children(os.getpid()):
            for pid in children:
                _kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)

    # --- orders --------------------------------------------------------------------------------

    def _obey(self) -> bool:
        data, ancillary, _, _ = self._control.recvmsg(
            65536, socket.CMSG_SPACE(64 * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
        )
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) - len(content) % numbers.itemsize])
                self._descriptors += numbers
        if not data:
            return False
        self._received += data
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            self._carry_out(json.loads(line))
        return True

    def _carry_out(self, order: dict[str, Any]) -> None:
        match order["order"]:
            case "start":
                self._start(order)
            case "signal":
                if (worker := self._workers.get(order["worker"])) is not None:
                    self._signal(worker, order["number"])
            case "kill":
                if (worker := self._workers.get(order["worker"])) is not None:
                    self._kill(worker)
            case other:
                raise ValueError(f"no order: {other}")

    def _start(self, order: dict[str, Any]) -> None:
        streams = [self._descriptors.pop(0) for _ in range(_DESCRIPTORS_PER_START)]
        try:
            pid = _start(order, streams)
        except OSError as error:
            self._say(refused=order["worker"], reason=os.strerror(error.errno or errno.EIO))
        else:
            self._workers[order["worker"]] = Worker(order["worker"], pid)
            self._say(started=order["worker"], pid=pid)
        finally:
            for descriptor in streams:
                os.close(descriptor)

    def _say(self, **answer: object) -> None:
        with contextlib.suppress(OSError):
            self._control.sendall(json.dumps(answer).encode() + b"\n")

    # --- signals and ends ----------------------------------------------------------------------

    def _signal(self, worker: Worker, number: int) -> None:
        """Signal the program and, through shells and wrappers, the scripts: not their forks."""
        below = _below(worker.pid, _processes())
        waiting = [worker.pid]
        while waiting:
            pid = waiting.pop()
            worker.signalled.add(pid)
            if not _is_python(pid):
                waiting += [process.pid for process in below if process.parent == pid]
            _kill(pid, number)

    def _kill(self, worker: Worker) -> None:
        worker.signalled.clear()
        if worker.status is None:
            for process in _below(worker.pid, _processes()):
                _kill(process.pid, signal.SIGKILL)
            _kill(worker.pid, signal.SIGKILL)

    def _reap(self) -> None:
        by_pid = {worker.pid: worker for worker in self._workers.values()}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if (worker := by_pid.get(found[0])) is not None:
                    worker.status = found[1]

    def _settle(self) -> None:
        """Tell of each worker that has ended, once nothing of its session is left."""
        for worker in [w for w in self._workers.values() if w.status is not None]:
            if not self._kill_left(worker):
                del self._workers[worker.name]
                self._say(exited=worker.name, pid=worker.pid, status=worker.status)
        if not self._workers:
            self.end()  # what a script has put into a session of its own ends with the last one

    def _kill_left(self, worker: Worker) -> bool:
        """Whether anything of an ended worker still runs; who was not told to end is killed."""
        left = [p for p in _processes() if p.session == worker.pid and p.pid != worker.pid]
        if worker.status is not None:
            for process in left:
                if process.pid not in worker.signalled:
                    _kill(process.pid, signal.SIGKILL)
        return bool(left)


def _start(order: dict[str, Any], streams: list[int]) -> int:
    """Fork and exec; raises the OSError that the exec met."""
    verdict, theirs = os.pipe2(os.O_CLOEXEC)
    keeper = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(order, streams, verdict=theirs, keeper=keeper)
    os.close(theirs)
    with os.fdopen(verdict, "rb") as answer:
        number = answer.read()
    if number:
        os.waitpid(pid, 0)
        raise OSError(int(number), "exec")
    return pid


def _become(order: dict[str, Any], streams: list[int], *, verdict: int, keeper: int) -> None:
    try:
        os.setsid()
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != keeper:
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in (*_RESTORED, *_FOR_THE_AGENT):
            signal.signal(number, signal.SIG_DFL)
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])
        os.chdir(order["folder"])
        for descriptor, place in zip(streams, (1, 2), strict=True):
            os.dup2(descriptor, place)
        os.execvpe(order["words"][0], order["words"], order["environment"])  # noqa: S606 - no shell
    except OSError as error:
        os.write(verdict, str(error.errno or errno.EIO).encode())
    except BaseException:  # noqa: BLE001 - whatever it is, this must not go on as a second keeper
        os.write(verdict, str(errno.EINVAL).encode())
    os._exit(127)


def _processes() -> list[Process]:
    """All living processes; zombies are none."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name in parentheses may hold anything, so the fields are counted from its end.
        state, parent, _, session = text.rpartition(")")[2].split()[:4]
        if state not in "ZX":
            found.append(Process(int(entry.name), int(parent), int(session)))
    return found


def _below(pid: int, processes: list[Process]) -> list[Process]:
    found: list[Process] = []
    above = {pid}
    while more := [p for p in processes if p.parent in above and p not in found]:
        found += more
        above = {process.pid for process in more}
    return found


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_python(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("python")
    except OSError:
        return False


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def main() -> int:
    descriptor, parent, sockets = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for number in _FOR_THE_AGENT:
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    keeper = Keeper(socket.socket(fileno=descriptor))
    if os.getppid() == parent:
        try:
            keeper.serve()
        finally:
            keeper.end()
            _sweep(sockets, parent)
    return 0


def _sweep(folder: str, agent: int) -> None:
    """Remove the socket of an agent that was killed."""
    if folder and (os.getppid() != agent or _is_exiting(agent)):
        for path in Path(folder).glob(f"*-{agent}.sock"):
            path.unlink(missing_ok=True)


def _is_exiting(pid: int) -> bool:
    """It is on its way out: whoever ends closes its files first, and gives up its children last."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return bool(int(text.rpartition(")")[2].split()[6]) & _PF_EXITING)


if __name__ == "__main__":
    sys.exit(main())
