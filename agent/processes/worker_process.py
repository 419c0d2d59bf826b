"""One worker as its agent holds it: conversation, pulse, output, and how far it has been stopped.

Everything here is called from the supervisor's thread; nothing waits.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from easyscale.agent.processes.log_files import worker_folder
from easyscale.agent.processes.logs import Capture
from easyscale.errors import FormatError
from easyscale.messages import MAX_LINE_BYTES, FromWorker, ToWorker, decode_from_worker, encode_line
from easyscale.model import WorkerId
from easyscale.printed import RankReader
from easyscale.pulse import Pulse
from easyscale.reports import Source, Stream

log = logging.getLogger(__name__)


class Rung(IntEnum):
    """How far the stop ladder has been climbed; never down."""

    RUNNING = 0
    ASKED = 1
    TERMINATED = 2
    KILLED = 3


@dataclass(slots=True, kw_only=True)
class WorkerProcess:
    """A worker from the request to fork it until its end is told."""

    worker: WorkerId
    session: socket.socket
    capture: Capture
    pulse: Pulse
    pid: int | None = None
    #: What waitpid gave, once it has ended.
    status: int | None = None
    rung: Rung = Rung.RUNNING
    reason: str = ""
    #: When the present rung, or the wait for its output and its group, has lasted long enough.
    deadline: float | None = None
    is_cut: bool = False
    is_talking: bool = True
    #: It has closed its end, and who is to tell how it ended has not by then: the kernel is asked.
    untold: float | None = None
    _received: bytearray = field(default_factory=bytearray)
    _outgoing: bytearray = field(default_factory=bytearray)

    @property
    def is_alive(self) -> bool:
        return self.pid is not None and self.status is None

    @property
    def has_outgoing(self) -> bool:
        return self.is_talking and bool(self._outgoing)

    def say(self, message: ToWorker) -> None:
        if self.is_talking:
            self._outgoing += encode_line(message)

    def flush(self) -> None:
        """Send what its socket takes now; raises FormatError when it has stopped reading."""
        try:
            while self._outgoing:
                sent = self.session.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            if len(self._outgoing) > MAX_LINE_BYTES:
                raise FormatError(
                    f"worker {self.worker} has left {len(self._outgoing)} bytes unread"
                ) from None
        except OSError:
            self._outgoing.clear()  # it closed its end; what it said last is still to be read

    def read(self) -> list[FromWorker]:
        """What it said since last time; raises FormatError for what it may not say."""
        self._receive()
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        if len(rest) > MAX_LINE_BYTES:
            raise FormatError(f"worker {self.worker} sent {len(rest)} bytes without an end")
        return [decode_from_worker(bytes(line)) for line in lines]

    def _receive(self) -> None:
        while len(self._received) <= MAX_LINE_BYTES:
            try:
                data = self.session.recv(65536)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.is_talking = False
                return
            self._received += data

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the worker and all it has started in its group."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def signal(self, number: int) -> None:
        if self.is_alive:
            assert self.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def climb(self, rung: Rung, *, now: float, limit_s: float) -> None:
        """Do what the rung says, log it once and give it its time."""
        if rung <= self.rung:
            return
        self.rung = rung
        self.deadline = now + limit_s
        match rung:
            case Rung.TERMINATED:
                self.signal_group(signal.SIGTERM)
            case Rung.KILLED:
                self.signal_group(signal.SIGKILL)
            case Rung.ASKED | Rung.RUNNING:
                pass
        log.info("worker %s: %s, %s", self.worker, rung.name.lower(), self.reason)

    def has_living_group(self) -> bool:
        """Whether anything of its group still runs; zombies do not."""
        assert self.pid is not None
        try:
            os.killpg(self.pid, 0)
        except (ProcessLookupError, PermissionError):
            return False
        return _lives_in_group(self.pid)

    def close(self) -> None:
        self.session.close()
        self.capture.close()
        self.pulse.close()


def prepare(
    worker: WorkerId,
    log_dir: Path,
    *,
    ended: Callable[[], None],
    lost: Callable[[Stream, str], None],
) -> tuple[WorkerProcess, tuple[int, int, int, int]]:
    """Make both ends of all that joins a worker and its agent; theirs go with the request."""
    with contextlib.ExitStack() as undo:
        page = Pulse.allocate()
        undo.callback(os.close, page)
        pulse = Pulse.attach(page)
        capture = Capture(
            source=Source(worker.node, worker.slot, 0),
            ranks=RankReader(page),
            ended=ended,
            lost=lost,
        )
        undo.callback(capture.close)
        capture.open_files(worker_folder(log_dir, worker))
        theirs = [page]
        for stream in reversed(Stream):
            mine, other = os.pipe2(os.O_CLOEXEC)
            capture.attach(stream, mine)
            undo.callback(os.close, other)
            theirs.insert(0, other)
        session, other_session = socket.socketpair()
        session.settimeout(0)
        undo.pop_all()
    process = WorkerProcess(worker=worker, session=session, capture=capture, pulse=pulse)
    stdout, stderr, page = theirs
    return process, (other_session.detach(), stdout, stderr, page)


def _lives_in_group(group: int) -> bool:
    """Look through /proc: a signal reaches zombies too, which only their parent can remove."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            text = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name in parentheses may hold anything, so the fields are counted from its end.
        state, _, process_group = text.rpartition(")")[2].split()[:3]
        if int(process_group) == group and state not in "ZX":
            return True
    return False
