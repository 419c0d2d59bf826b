"""The worker's conversation with its agent, in threads of its own that make no torch call.

The main thread reads what is newest from here without waiting; a worker whose main thread is
blocked in a collective still hears, still answers, and ends when its agent does.
"""

import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn, assert_never

from easyscale.errors import FormatError
from easyscale.messages import (
    MAX_LINE_BYTES,
    CommitSeen,
    Committed,
    Lost,
    Message,
    Planned,
    Ready,
    Stop,
    ToWorker,
    WorkerSettings,
    decode_to_worker,
    encode_line,
)
from easyscale.model import Commit, GenerationNumber, WorkerId
from easyscale.pulse import Pulse

#: How long the end of a process may wait for its last words to be taken.
FLUSH_TIMEOUT_S = 2.0
#: The same for what the script has printed, where the main thread may stand anywhere.
STREAMS_TIMEOUT_S = 1.0
_RECEIVE_BYTES = 1 << 16

_current: "Session | None" = None


def adopt(connection: socket.socket, settings: WorkerSettings, pulse: Pulse) -> "Session":
    """Make this process the worker that `settings` describe; called once, after the fork."""
    global _current  # noqa: PLW0603 - a process is one worker
    _current = Session(connection, settings, pulse)
    _current.start()
    return _current


def current() -> "Session | None":
    """The session of this process, None where a script runs without a launcher."""
    return _current


class Session:
    """What the agent said last, and the way to say something back."""

    def __init__(self, connection: socket.socket, settings: WorkerSettings, pulse: Pulse) -> None:
        self.settings = settings
        self.pulse = pulse
        self._connection = connection
        self._outgoing: queue.SimpleQueue[Message | threading.Event] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._newest: Commit | None = None
        self._lost: frozenset[WorkerId] = frozenset()
        #: For peers that ask: not all members gave an answer when they were asked last.
        self.misses_somebody = False
        #: The generation that this worker runs in, for the report of a failure.
        self.generation: GenerationNumber | None = None
        #: In a process that the script has forked: it is no worker, and has no threads of ours.
        self._is_inherited = False
        #: Set by the job: what is left to do when the script has come to its end.
        self.at_script_end: Callable[[], None] = _nothing
        #: The lines that a call of `sys.exit` went through, if the script ended by one.
        self.exit_places: frozenset[tuple[str, int]] = frozenset()

    def start(self) -> None:
        os.register_at_fork(after_in_child=self._leave_to_parent)
        for name, run in (("session", self._receive), ("session-writer", self._send)):
            threading.Thread(target=run, name=name, daemon=True).start()

    @property
    def worker(self) -> WorkerId:
        return self.settings.worker

    @property
    def newest(self) -> Commit | None:
        """The newest commit that reached this worker by any road."""
        return self._newest

    @property
    def lost(self) -> frozenset[WorkerId]:
        """Workers that are known to have ended."""
        return self._lost

    def say(self, message: Message) -> None:
        """Hand a message to the writer; returns at once, also while the agent is frozen."""
        if self._is_inherited:
            return
        self._outgoing.put(message)

    def offer(self, commit: Commit, *, by_peer: bool = False) -> None:
        """Keep a commit if it is the newest; commits are facts, whoever tells them."""
        with self._changed:
            if self._newest is not None and commit.generation <= self._newest.generation:
                return
            self._newest = commit
            self._changed.notify_all()
        if by_peer:
            self.say(CommitSeen(commit=commit))

    def wait_newer(self, than: GenerationNumber | None, *, timeout_s: float) -> Commit | None:
        """Wait for a commit above `than`; None when there is none in time."""

        def newer() -> Commit | None:
            newest = self._newest
            return newest if newest and (than is None or newest.generation > than) else None

        with self._changed:
            self._changed.wait_for(lambda: newer() is not None, timeout_s)
            return newer()

    def flush(self) -> None:
        """Wait until what was said has been taken, FLUSH_TIMEOUT_S at most."""
        if self._is_inherited:
            return
        taken = threading.Event()
        self._outgoing.put(taken)
        taken.wait(FLUSH_TIMEOUT_S)

    def fail(self, error: BaseException) -> None:
        """Report what ended the script; called before its traceback is printed."""
        from easyscale.runtime.failure import describe_failure  # noqa: PLC0415 - only on failure

        beat = self.pulse.read()
        self.say(
            describe_failure(error, rank=beat.rank, step=beat.step, generation=self.generation)
        )
        self.flush()

    def note_exit(self, leaving: SystemExit) -> None:
        """Remember where the script called `sys.exit`."""
        frames = traceback.walk_tb(leaving.__traceback__)
        self.exit_places = frozenset((frame.f_code.co_filename, line) for frame, line in frames)

    def complete(self) -> int:
        """Do what is left when the script has come to its end; returns the exit code."""
        if self._is_inherited:  # a child of the script ends as a child of any python does
            return 0
        try:
            self.at_script_end()
        except Exception as error:  # noqa: BLE001 - the script's own: it left a step half done
            self.fail(error)
            traceback.print_exception(error)
            return 1
        self.flush()
        return 0

    # --- threads ---------------------------------------------------------------------------------

    def _receive(self) -> None:
        pending = bytearray()
        with suppress(OSError, FormatError):
            while data := self._connection.recv(_RECEIVE_BYTES):
                pending += data
                *lines, rest = bytes(pending).split(b"\n")
                pending = bytearray(rest)
                if len(pending) > MAX_LINE_BYTES:
                    break
                for line in lines:
                    self._take(decode_to_worker(line))
        # The agent has gone, or speaks another language: nobody would stop this worker later.
        os._exit(1)

    def _take(self, message: ToWorker) -> None:
        match message:
            case Committed(commit=commit):
                self.offer(commit)
            case Planned(plan=plan):
                if self.worker in plan.workers:
                    self.say(Ready(generation=plan.generation))
            case Lost(workers=workers):
                with self._changed:
                    self._lost |= frozenset(workers)
                    self._changed.notify_all()
            case Stop():
                flush_streams(limit_s=STREAMS_TIMEOUT_S)
                os._exit(0)
            case _:
                assert_never(message)

    def _send(self) -> None:
        while True:
            item = self._outgoing.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            with suppress(OSError):  # the receiving thread sees the end of the agent as well
                self._connection.sendall(encode_line(item))

    def _leave_to_parent(self) -> None:
        """In a process forked by the script: an open end would hide this process's death."""
        self._is_inherited = True
        with suppress(OSError):
            self._connection.close()


def _nothing() -> None:
    """A script that never called `register` leaves nothing to do."""


def flush_streams(*, limit_s: float) -> None:
    """Flush what the script has printed; given up when somebody holds a stream for so long."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):
                stream.flush()

    # The script may be stuck in a write to a full pipe, with the stream's lock in its hands.
    thread = threading.Thread(target=flush, name="flush", daemon=True)
    thread.start()
    thread.join(limit_s)


def leave(session: Session, code: int) -> NoReturn:
    """End the process in order: streams flushed, last words taken.

    Not by SystemExit: a group that was abandoned would block python's own end.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    session.flush()
    os._exit(code)
