"""The agent's local door: what the command line on this machine asks, answered at once.

One JSON line asks, one answers, over a Unix socket in a folder of this user's alone:

{"request": "status", "arguments": {}}   ->   {"answer": ...}
                                              {"error": {"code", "message", "hint", "exit_code"}}
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from easyscale.errors import EasyScaleError, ExitCode, UsageError

log = logging.getLogger(__name__)

#: Takes a request's arguments, returns what JSON can say; may raise EasyScaleError.
Handler = Callable[[Mapping[str, Any]], object]

#: A socket's path holds 107 bytes and a zero.
MAX_PATH_BYTES = 107
#: Of a socket within its folder: see `_name_of`; Linux counts processes up to 2**22.
_LONGEST_NAME = len("-".join(("j" * 20, "d" * 8, "4194304"))) + len(".sock")
_MAX_LINE_BYTES = 8 * 1024 * 1024
_DEADLINE_S = 10.0
_DISCOVERY_S = 1.0
_MOST_AT_ONCE = 16
_CREDENTIALS = struct.Struct("3i")


class AgentSilent(EasyScaleError):
    """Raised when an agent on this machine did not answer in time, or is no more."""

    code = "agent_silent"


class AgentRefused(EasyScaleError):
    """What an agent answered with an error of its own."""

    def __init__(self, message: str, *, hint: str, code: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.exit_code = ExitCode(exit_code)


class LocalAgent(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that lives on this machine."""

    job: str
    node: str
    pid: int
    socket: str


def run_folder(environment: Mapping[str, str]) -> Path:
    """Where this user's sockets lie; made private, refused when it is somebody else's."""
    runtime = environment.get("XDG_RUNTIME_DIR", "")
    candidates = [Path(runtime) / "easyscale"] if runtime and Path(runtime).is_dir() else []
    candidates.append(Path(tempfile.gettempdir()) / f"easyscale-{os.getuid()}")
    for folder in candidates:
        if len(os.fsencode(folder / ("x" * _LONGEST_NAME))) <= MAX_PATH_BYTES:
            return _private(folder)
    raise UsageError(
        f"{candidates[-1]} is too long a path for a socket, which holds {MAX_PATH_BYTES} bytes",
        hint="set TMPDIR to a shorter path",
    )


def _private(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if folder.is_symlink() or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise UsageError(
            f"{folder} is not a folder of this user alone", hint=f"remove it: rm -r {folder}"
        )
    return folder


class ControlServer:
    """Answers on behalf of one agent, in threads of its own."""

    def __init__(
        self, folder: Path, *, job: str, node: str, handlers: Mapping[str, Handler]
    ) -> None:
        self._me = LocalAgent(
            job=job,
            node=node,
            pid=os.getpid(),
            socket=str(folder / _name_of(job, node, os.getpid())),
        )
        who: dict[str, Handler] = {"who": lambda _: self._me}
        self._handlers = who | dict(handlers)
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()  # of an earlier process with our number
        self._listener.bind(self._me.socket)
        self.path.chmod(0o600)
        self._listener.listen(_MOST_AT_ONCE)
        self._thread = threading.Thread(target=self._accept, name="easyscale-control", daemon=True)
        self._thread.start()

    @property
    def path(self) -> Path:
        return Path(self._me.socket)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which a close does not
        self._thread.join(_DEADLINE_S)
        self._listener.close()
        self.path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError):
                if not _is_ours(connection):
                    return
                line = _read_line(connection, deadline=time.monotonic() + _DEADLINE_S)
                if line:
                    connection.settimeout(_DEADLINE_S)
                    connection.sendall(msgspec.json.encode(self._answer(line)) + b"\n")
        finally:
            self._places.release()

    def _answer(self, line: bytes) -> dict[str, object]:
        try:
            asked = json.loads(line)
            handler = self._handlers.get(asked["request"])
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise UsageError(f"no request {asked['request']!r}; there are {known}")
            return {"answer": handler(asked.get("arguments") or {})}
        except EasyScaleError as error:
            return {"error": _describe(error)}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            return {"error": _describe(UsageError(f"the request is not understood: {error}"))}


def ask(
    path: Path, request: str, arguments: Mapping[str, Any] | None = None, *, timeout_s: float
) -> Any:  # noqa: ANN401 - JSON
    """Ask the agent behind a socket; raises AgentSilent, or AgentRefused with its own words."""
    deadline = time.monotonic() + timeout_s
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            if not _is_ours(connection):
                raise AgentSilent(f"{path} belongs to another user")
            line = json.dumps({"request": request, "arguments": arguments or {}}).encode()
            connection.sendall(line + b"\n")
            answer = json.loads(_read_line(connection, deadline=deadline) or b"null")
    except (OSError, ValueError) as error:
        raise AgentSilent(
            f"the agent at {path} did not answer within {timeout_s:g} s: {error}"
        ) from error
    if answer is None:
        raise AgentSilent(f"the agent at {path} ended before it answered")
    if "error" in answer:
        raise AgentRefused(**answer["error"])
    return answer["answer"]


def local_agents(folder: Path) -> tuple[LocalAgent, ...]:
    """The agents of this user on this machine; what dead ones left is removed."""
    found = []
    for path in sorted(folder.glob("*.sock")):
        if _is_dead(path):
            path.unlink(missing_ok=True)
            continue
        with contextlib.suppress(AgentSilent, AgentRefused, msgspec.ValidationError):
            found.append(msgspec.convert(ask(path, "who", timeout_s=_DISCOVERY_S), LocalAgent))
    return tuple(found)


def _is_dead(path: Path) -> bool:
    """Nobody listens any more; a busy agent is not dead."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_DISCOVERY_S)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _name_of(job: str, node: str, pid: int) -> str:
    """Short whatever the names are, readable as far as that goes, unique by job, node, process."""
    readable = re.sub(r"[^A-Za-z0-9_-]", "-", job)[:20]
    digest = hashlib.sha256(f"{job}/{node}".encode()).hexdigest()[:8]
    return f"{readable}-{digest}-{pid}.sock"


def _is_ours(connection: socket.socket) -> bool:
    """The kernel's word for who is at the other end: this user, or root."""
    facts = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(facts)
    return uid in {os.getuid(), 0}


def _read_line(connection: socket.socket, *, deadline: float) -> bytes:
    """Up to the first line's end; empty when the other side ended before it."""
    received = bytearray()
    while not received.endswith(b"\n"):
        left_s = deadline - time.monotonic()
        if left_s <= 0 or len(received) > _MAX_LINE_BYTES:
            raise TimeoutError("no whole line in time")
        connection.settimeout(left_s)
        data = connection.recv(65536)
        if not data:
            return b""
        received += data
    return bytes(received)


def _describe(error: EasyScaleError) -> dict[str, object]:
    return {
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
        "exit_code": int(error.exit_code),
    }
