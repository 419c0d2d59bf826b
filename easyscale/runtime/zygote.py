"""The parent of a node's workers: imports torch once, forks a worker per request, reaps them all.

python -P -m easyscale.runtime.zygote FD --parent PID [--workers W] [--preload M,...] ...

It runs no kernel, starts no thread and no CUDA; it ends, with all below it, when its agent does.
"""

import argparse
import contextlib
import functools
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import msgspec

from easyscale.errors import EasyScaleError
from easyscale.messages import (
    STACKS_SIGNAL,
    Exited,
    Forked,
    ForkRefused,
    ForkRequest,
    FromZygote,
    Imported,
)
from easyscale.model import WorkerId
from easyscale.runtime import fork_safety, kinship
from easyscale.runtime.script import Leaving

#: The life of a forked worker, to be lived outside of the zygote's loop; gives the exit code.
Birth = Callable[[], int]

#: A request's session socket, stdout, stderr and pulse page.
_DESCRIPTORS_PER_REQUEST = 4
#: The first optimizer of a script imports it, about as slowly as torch itself.
_LATER = "torch._dynamo"
_END_DEADLINE_S = 2.0
_STARTED_S = time.monotonic()


class ZygoteUnsafe(EasyScaleError):
    """Raised when a preloaded module makes forks unsafe."""

    code = "zygote_unsafe"


class Zygote:
    """Serves one agent over `control` until that closes."""

    def __init__(self, control: socket.socket, *, warm: bool, quiet_s: float) -> None:
        self._control = control
        self._pid = os.getpid()
        self._workers: dict[int, WorkerId] = {}
        self._received = bytearray()
        self._descriptors: deque[int] = deque()
        self._decoder = msgspec.json.Decoder(ForkRequest)
        self._is_warm = warm
        self._quiet_s = quiet_s
        self._is_importing = False
        self._selector = selectors.DefaultSelector()
        self._wakeup = socket.socketpair()

    def serve(self) -> Birth:
        """Answer requests; returns in a forked worker only, with the life it has to live."""
        for end in self._wakeup:
            end.settimeout(0)
        signal.set_wakeup_fd(self._wakeup[1].fileno(), warn_on_full_buffer=False)
        self._selector.register(self._control, selectors.EVENT_READ)
        self._selector.register(self._wakeup[0], selectors.EVENT_READ)
        self._reap()
        while True:
            ready = self._selector.select(None if self._is_warm else self._quiet_s)
            if not ready:
                self._import_later_needs()
            for key, _ in ready:
                if key.fileobj is self._wakeup[0]:
                    self._wakeup[0].recv(4096)
                    self._reap()
                elif (birth := self._answer()) is not None:
                    return birth

    def say(self, message: FromZygote) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.sendall(msgspec.json.encode(message) + b"\n")

    def child_ended(self, _number: int, _frame: FrameType | None) -> None:
        # Outside of an import the loop reaps, so that no two messages are ever mixed.
        if self._is_importing:
            self._reap()

    def end(self, *_: object) -> None:
        """Take everything below along and leave."""
        if os.getpid() != self._pid:  # a child that was signalled before it had a life of its own
            os._exit(128 + signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        deadline = time.monotonic() + _END_DEADLINE_S
        while (children := _children()) and time.monotonic() < deadline:
            for pid in children:
                if pid in self._workers:
                    _kill_group(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            while _reap_one():
                pass
            time.sleep(0.002)
        os._exit(0)

    def _import_later_needs(self) -> None:
        self._is_warm = True
        self._is_importing = True
        try:
            with contextlib.suppress(ImportError):
                importlib.import_module(_LATER)
        finally:
            self._is_importing = False
        gc.freeze()
        self._reap()

    def _answer(self) -> Birth | None:
        data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 64, socket.MSG_CMSG_CLOEXEC)
        self._descriptors.extend(descriptors)
        if not data:
            self.end()
        self._received += data
        while b"\n" in self._received:
            line, _, rest = self._received.partition(b"\n")
            self._received = rest
            if (birth := self._fork(self._decoder.decode(line))) is not None:
                return birth
        return None

    def _fork(self, request: ForkRequest) -> Birth | None:
        worker = request.settings.worker
        session, stdout, stderr, page = descriptors = [
            self._descriptors.popleft() for _ in range(_DESCRIPTORS_PER_REQUEST)
        ]
        pid = self._try_fork(worker)
        if pid == 0:
            from easyscale.runtime import birth  # noqa: PLC0415 - imports torch: see _import

            return functools.partial(
                birth.live,
                request,
                (session, stdout, stderr, page),
                zygote=self._pid,
                close_inherited=self._close,
            )
        for descriptor in descriptors:
            os.close(descriptor)
        if pid is not None:
            with contextlib.suppress(OSError):  # the child does it too; whoever comes first
                os.setpgid(pid, pid)
            self._workers[pid] = worker
            self.say(Forked(worker=worker, pid=pid))
        return None

    def _try_fork(self, worker: WorkerId) -> int | None:
        if hazard := fork_safety.fork_hazard():
            self.say(ForkRefused(worker=worker, reason=hazard))
            return None
        try:
            return os.fork()
        except OSError as error:
            self.say(ForkRefused(worker=worker, reason=f"fork: {error}"))
            return None

    def _close(self) -> None:
        """Give up, in a child, what belongs to the zygote and to other workers."""
        self._selector.close()
        for end in (self._control, *self._wakeup):
            end.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _reap(self) -> None:
        """Report every ended worker, after its group was killed; orphans come to us as well."""
        while (pid := _ended_child()) is not None:
            worker = self._workers.pop(pid, None)
            if worker is not None:
                # Before it is waited for: until then nobody else can have this group's number.
                _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if worker is not None:
                self.say(Exited(worker=worker, pid=pid, status=status))


def _ended_child() -> int | None:
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid


def _reap_one() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _children() -> list[int]:
    pid = os.getpid()
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _import(preload: tuple[str, ...], *, warm: bool) -> None:
    # Collections during an import find nothing and cost a seventh of its time; what is frozen
    # is never written to by a worker's collector, so its pages stay shared.
    gc.disable()
    for name in ("torch", "easyscale.runtime.birth", "easyscale.runtime.job"):
        importlib.import_module(name)
    if warm:
        importlib.import_module(_LATER)
    for name in preload:
        importlib.import_module(name)
        if hazard := fork_safety.fork_hazard():
            raise ZygoteUnsafe(
                f"--preload {name}: after its import, {hazard}", hint=f"leave {name} out"
            )
    gc.freeze()
    gc.enable()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="easyscale.runtime.zygote")
    parser.add_argument("descriptor", type=int)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--preload", default="")
    # Nothing asked for during this time: import what the workers would import later.
    parser.add_argument("--quiet-s", type=float, default=10.0)
    return parser.parse_args()


def main() -> int:
    leaving = Leaving()
    arguments = _arguments()
    # More workers than cores would each import what one can: then the one does it first.
    warm = arguments.workers > len(os.sched_getaffinity(0))
    zygote = Zygote(
        socket.socket(fileno=arguments.descriptor), warm=warm, quiet_s=arguments.quiet_s
    )
    signal.signal(signal.SIGTERM, zygote.end)
    signal.signal(signal.SIGCHLD, zygote.child_ended)
    for number in (signal.SIGINT, STACKS_SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    kinship.die_with_parent(arguments.parent, by=signal.SIGTERM)
    kinship.adopt_orphans()
    preload = tuple(name for name in arguments.preload.split(",") if name)
    try:
        _import(preload, warm=warm)
    except BaseException:  # noqa: BLE001 - a module may raise anything, also SystemExit
        # At once: python's own end would wait for threads that a module may have started.
        traceback.print_exc()
        os._exit(1)
    zygote.say(_imported(arguments.threads))
    leaving.exit_code = zygote.serve()()
    return leaving.exit_code


def _imported(threads: int) -> Imported:
    import torch  # noqa: PLC0415 - imported by now

    from easyscale.runtime.kind import cpu_kind  # noqa: PLC0415 - imports torch

    return Imported(
        torch_version=str(torch.__version__),
        cpu_kind=cpu_kind(threads=threads),
        seconds=time.monotonic() - _STARTED_S,
    )


if __name__ == "__main__":
    sys.exit(main())
