"""The agent's end of its keeper (keeper.py): starts it, orders workers, hears their ends."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from easyscale.agent.plain import keeper

_CLOSE_TIMEOUT_S = 5.0


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A program to start, as the first process of a session of its own."""

    worker: int
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    #: The cores it may run on; () are all.
    cores: Sequence[int] = ()


class Answer(msgspec.Struct, frozen=True):
    """What a keeper says of one worker: exactly one of the first three is set."""

    started: int | None = None
    refused: int | None = None
    exited: int | None = None
    pid: int = 0
    #: As waitpid gives it.
    status: int = 0
    reason: str = ""


class KeeperLink:
    """One keeper process. Orders return at once; answers come on a thread of the link."""

    def __init__(
        self, *, hear: Callable[[Answer], None], lost: Callable[[str], None], sockets: Path | None
    ) -> None:
        """`sockets`: where this agent's own lies, which goes with an agent that is killed."""
        self._hear = hear
        self._lost = lost
        self._is_closing = False
        #: It ended before it was told to.
        self.is_lost = False
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair()
        self._control = ours
        with theirs:
            # -I and -S: it needs nothing installed, and no file of the user's can be imported.
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", str(Path(keeper.__file__).resolve())),
                    *(str(theirs.fileno()), str(os.getpid()), str(sockets or "")),
                ],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._thread = threading.Thread(target=self._run, name="easyscale-keeper", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, order: Order, *, stdout: int, stderr: int) -> None:
        """Start a worker that writes to these descriptors; they stay the caller's to close."""
        line = {"order": "start"} | msgspec.to_builtins(order)
        self._tell(line, descriptors=(stdout, stderr))

    def signal(self, worker: int, number: int) -> None:
        """Send a signal to the script of a worker and to what stands around it."""
        self._tell({"order": "signal", "worker": worker, "number": int(number)})

    def kill(self, worker: int) -> None:
        """Kill a worker and all below it."""
        self._tell({"order": "kill", "worker": worker})

    def close(self) -> None:
        """End the keeper, which ends whatever still runs."""
        self._is_closing = True
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._thread.join(_CLOSE_TIMEOUT_S)
        self._control.close()

    def _tell(self, line: Mapping[str, object], descriptors: tuple[int, ...] = ()) -> None:
        data = json.dumps(line).encode() + b"\n"
        with self._lock, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            sent = 0
            if descriptors:
                sent = socket.send_fds(self._control, [data], descriptors)
            if sent < len(data):
                self._control.sendall(data[sent:])

    def _run(self) -> None:
        received = b""
        decoder = msgspec.json.Decoder(Answer)
        while data := self._receive():
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                self._hear(decoder.decode(line))
        if not self._is_closing:
            self.is_lost = True
            self._lost(self._how_it_ended())

    def _receive(self) -> bytes:
        try:
            return self._control.recv(65536)
        except OSError:
            return b""

    def _how_it_ended(self) -> str:
        code = self._process.wait()
        if code >= 0:
            return f"exit {code}"
        return signal.Signals(-code).name
