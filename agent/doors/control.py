"""The agent's local door: what the command line on this machine asks, answered at once.

A Unix socket in a folder of this user's alone; the kernel says who is at the other end.
"""

import contextlib
import hashlib
import logging
import os
import re
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from easyscale.agent.doors.dialogue import (
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    AgentRefused,
    AgentSilent,
    Handler,
    Lines,
    answer_in,
    answer_to,
    question,
)
from easyscale.errors import EasyScaleError, UsageError

log = logging.getLogger(__name__)

#: A socket's path holds 107 bytes and a zero.
MAX_PATH_BYTES = 107
#: Of a socket within its folder: see `_name_of`; Linux counts processes up to 2**22.
_LONGEST_NAME = len("-".join(("j" * 20, "d" * 8, "4194304"))) + len(".sock")
_DEADLINE_S = 10.0
#: An agent on a busy machine takes its time; one that hangs must not hide the others for long.
_DISCOVERY_S = 3.0
_MOST_AT_ONCE = 16
_CREDENTIALS = struct.Struct("3i")


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


def swept_folder(environment: Mapping[str, str]) -> Path | None:
    """Where a killed agent leaves its socket; None where there is no place for one."""
    try:
        return run_folder(environment)
    except (EasyScaleError, OSError):
        return None


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
                lines = Lines(connection, deadline=time.monotonic() + _DEADLINE_S)
                if line := lines.next(limit=MAX_QUESTION_BYTES):
                    answer = answer_to(line, self._handlers)
                    connection.settimeout(_DEADLINE_S)
                    connection.sendall(answer + b"\n")
        finally:
            self._places.release()


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
            connection.sendall(question(request, arguments) + b"\n")
            line = Lines(connection, deadline=deadline).next(limit=MAX_ANSWER_BYTES)
            if not line:
                raise AgentSilent(f"the agent at {path} ended before it answered")
            return answer_in(line)
    except (OSError, ValueError) as error:
        raise AgentSilent(
            f"the agent at {path} did not answer within {timeout_s:g} s: {error}"
        ) from error


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
