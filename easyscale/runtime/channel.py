"""How workers talk to each other's listeners: one JSON line says hello, then binary frames.

A hello carries the job's token and the caller's worker id; without the right token nobody is
answered. Pure standard library and msgspec: no call here ever enters torch.
"""

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Protocol

import msgspec

from easyscale.errors import GenerationBroken
from easyscale.model import GenerationNumber, Record, WorkerId, encode

#: A hello holds at most a commit record of some thousand members.
MAX_HELLO_BYTES = 1 << 20
#: One chunk of a state stream, one value of the key-value store, one answer.
MAX_FRAME_BYTES = 64 << 20
#: How often a blocked read looks at the interrupt.
POLL_S = 0.02
_LENGTH_BYTES = 4
#: What stands before the chunks of a state: it is being made, any number of times; here it is.
MAKING = b"making"
HERE = b"here"
#: Frames up to this size go out in one call.
_SMALL_BYTES = 1 << 16


class Interrupt(Protocol):
    """Asked again and again while something waits."""

    def __call__(self) -> str | None:
        """Return why the wait must end now, or None."""
        ...


def never() -> str | None:
    """Interrupt nothing."""
    return None


class Kind(StrEnum):
    """What a connection is for."""

    STORE = "store"
    ASK = "ask"
    #: What its script has registered: names, shapes, types.
    LAYOUT = "layout"
    STATE = "state"


class Hello(Record, frozen=True, kw_only=True):
    """The first line of every connection."""

    token: str
    worker: WorkerId
    kind: Kind
    #: Tells two processes apart that claim one worker id.
    process: str = ""
    generation: GenerationNumber | None = None
    #: The newest commit record the caller knows, as JSON: commits travel by any road.
    commit: str = ""
    #: What of the state is asked for; opaque here.
    request: str = ""


class Do(StrEnum):
    """The operations of a generation's key-value store."""

    SET = "set"
    GET = "get"
    WAIT = "wait"
    ADD = "add"
    CHECK = "check"
    DELETE = "delete"


class KeyRequest(msgspec.Struct, frozen=True):
    """One operation on the key-value store; `value` travels behind it in the same frame."""

    do: Do
    keys: tuple[str, ...]
    amount: int = 0
    timeout_s: float = 0.0


class Refused(ConnectionError):
    """Raised when a listener closed the connection without an answer: token, identity or state."""


class StateIncomplete(GenerationBroken):
    """Raised when a state stream ended early or is not what its digest promises."""

    code = "state_incomplete"


def split_address(address: str) -> tuple[str, int]:
    """Take `host:port` or `[v6]:port` apart."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """Write a listener's address as commit records carry it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Wire:
    """Frames over one connection, each read under a deadline and an interrupt."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        #: Bytes that were read with a line and belong behind it.
        self._early = bytearray()
        self._lock = threading.Lock()
        self._users = 0
        self._is_closed = False

    def close(self) -> None:
        """End the connection, and with it whatever blocks on it in another thread."""
        # shutdown wakes a thread that is blocked in a read; close alone does not.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._is_closed = True
            self._let_go()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the descriptor until the call is over: its number may be another socket's by then.

        A thread on its way into a wait would wait on that one, for ever.
        """
        with self._lock:
            if self._is_closed:
                raise ConnectionError("the connection was closed on this side")
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                self._let_go()

    def _let_go(self) -> None:
        if self._is_closed and not self._users:
            self._socket.close()

    def send(self, *parts: bytes | memoryview, timeout_s: float) -> None:
        """Send one frame made of `parts`."""
        with self._in_use():
            self._send(parts, timeout_s)

    def _send(self, parts: Sequence[bytes | memoryview], timeout_s: float) -> None:
        self._socket.settimeout(timeout_s)
        length = sum(len(part) for part in parts)
        if length > MAX_FRAME_BYTES:
            raise ValueError(f"a frame of {length} bytes is above {MAX_FRAME_BYTES}")
        head = length.to_bytes(_LENGTH_BYTES)
        if length <= _SMALL_BYTES:
            self._socket.sendall(b"".join((head, *parts)))
            return
        self._socket.sendall(head)
        for part in parts:
            self._socket.sendall(part)

    def receive(self, *, timeout_s: float, interrupt: Interrupt = never) -> bytearray:
        """Receive one frame; TimeoutError when no byte came for `timeout_s`."""
        with self._in_use():
            head = self._exactly(_LENGTH_BYTES, timeout_s=timeout_s, interrupt=interrupt)
            length = int.from_bytes(head)
            if length > MAX_FRAME_BYTES:
                raise ConnectionError(f"a peer announced a frame of {length} bytes")
            return self._exactly(length, timeout_s=timeout_s, interrupt=interrupt)

    def send_line(self, line: bytes, *, timeout_s: float) -> None:
        with self._in_use():
            self._socket.settimeout(timeout_s)
            self._socket.sendall(line + b"\n")

    def receive_line(self, *, limit: int, timeout_s: float) -> bytes:
        """Receive up to a line feed; what came with it waits for the next read."""
        with self._in_use():
            return self._receive_line(limit=limit, timeout_s=timeout_s)

    def _receive_line(self, *, limit: int, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        line = bytearray()
        while b"\n" not in line:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(1 << 16)
            line += part
            if not part or len(line) > limit or time.monotonic() > deadline:
                raise ConnectionError("a peer's hello is no line in time")
        head, _, self._early = line.partition(b"\n")
        return bytes(head)

    def _exactly(self, length: int, *, timeout_s: float, interrupt: Interrupt) -> bytearray:
        data = bytearray(length)
        early = self._early[:length]
        data[: len(early)] = early
        del self._early[:length]
        view = memoryview(data)[len(early) :]
        deadline = time.monotonic() + timeout_s
        while view:
            self._socket.settimeout(POLL_S if interrupt is not never else timeout_s)
            try:
                count = self._socket.recv_into(view)
            except TimeoutError:
                if (reason := interrupt()) is not None:
                    raise GenerationBroken(f"a read from a peer was given up: {reason}") from None
                if time.monotonic() > deadline:
                    raise
                continue
            if not count:
                raise Refused("a peer closed the connection")
            view = view[count:]
            deadline = time.monotonic() + timeout_s
        return data


def dial(address: str, hello: Hello, *, timeout_s: float) -> Wire:
    """Connect to a listener and say hello."""
    wire = Wire(socket.create_connection(split_address(address), timeout=timeout_s))
    try:
        wire.send_line(encode(hello).encode(), timeout_s=timeout_s)
    except BaseException:
        wire.close()
        raise
    return wire


def ask(address: str, *, token: str, worker: WorkerId, timeout_s: float, commit: str = "") -> str:
    """Ask a worker for what it knows; OSError when it cannot be reached or does not answer."""
    hello = Hello(token=token, worker=worker, kind=Kind.ASK, commit=commit)
    return _answer(address, hello, timeout_s=timeout_s).decode()


def ask_layout(address: str, *, token: str, worker: WorkerId, timeout_s: float) -> bytes:
    """Ask a worker what its script has registered; OSError as above."""
    hello = Hello(token=token, worker=worker, kind=Kind.LAYOUT)
    return bytes(_answer(address, hello, timeout_s=timeout_s))


def _answer(address: str, hello: Hello, *, timeout_s: float) -> bytearray:
    wire = dial(address, hello, timeout_s=timeout_s)
    try:
        return wire.receive(timeout_s=timeout_s)
    finally:
        wire.close()


def fetch_state(
    address: str,
    *,
    token: str,
    worker: WorkerId,
    request: str,
    timeout_s: float,
    interrupt: Interrupt = never,
) -> Iterator[bytearray]:
    """Yield the chunks of another worker's state, in the sizes they were given there.

    Nothing may be applied before the iterator ends by itself: only then is the digest checked.
    `timeout_s` bounds a silence, not the transfer; while the state is made there, its source says
    so again and again.
    """
    hello = Hello(token=token, worker=worker, kind=Kind.STATE, request=request)
    digest = hashlib.blake2b(digest_size=32)
    wire = None
    try:
        wire = dial(address, hello, timeout_s=timeout_s)
        while (word := wire.receive(timeout_s=timeout_s, interrupt=interrupt)) == MAKING:
            pass
        if word != HERE:
            raise StateIncomplete(f"what {address} sends is no state")
        while chunk := wire.receive(timeout_s=timeout_s, interrupt=interrupt):
            digest.update(chunk)
            yield chunk
        promised = wire.receive(timeout_s=timeout_s, interrupt=interrupt)
    except OSError as error:
        raise StateIncomplete(f"the state from {address} did not arrive whole: {error}") from error
    finally:
        if wire is not None:
            wire.close()
    if promised != digest.digest():
        raise StateIncomplete(f"the state from {address} is not what its digest promises")


class Keys(Protocol):
    """The key-value store of one generation, here or behind process rank 0's listener."""

    def set(self, key: str, value: bytes) -> None: ...
    def get(self, key: str, *, timeout_s: float) -> bytes: ...
    def wait(self, keys: Sequence[str], *, timeout_s: float) -> None: ...
    def add(self, key: str, amount: int) -> int: ...
    def check(self, keys: Sequence[str]) -> bool: ...
    def delete(self, key: str) -> bool: ...
    def close(self) -> None: ...


class RemoteKeys:
    """The key-value store of a generation, used through process rank 0's listener."""

    def __init__(self, connect: Callable[[], Wire], *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._wire = connect()

    def set(self, key: str, value: bytes) -> None:
        self._call(KeyRequest(Do.SET, (key,)), value)

    def get(self, key: str, *, timeout_s: float) -> bytes:
        return self._call(KeyRequest(Do.GET, (key,), timeout_s=timeout_s))

    def wait(self, keys: Sequence[str], *, timeout_s: float) -> None:
        self._call(KeyRequest(Do.WAIT, tuple(keys), timeout_s=timeout_s))

    def add(self, key: str, amount: int) -> int:
        return int(self._call(KeyRequest(Do.ADD, (key,), amount=amount)))

    def check(self, keys: Sequence[str]) -> bool:
        return self._call(KeyRequest(Do.CHECK, tuple(keys))) == b"1"

    def delete(self, key: str) -> bool:
        return self._call(KeyRequest(Do.DELETE, (key,))) == b"1"

    def close(self) -> None:
        self._wire.close()

    def _call(self, request: KeyRequest, value: bytes = b"") -> bytes:
        line = msgspec.json.encode(request) + b"\n"
        self._wire.send(line, value, timeout_s=self._timeout_s)
        answer = self._wire.receive(timeout_s=request.timeout_s + self._timeout_s)
        if answer[:1] != b"+":
            raise TimeoutError(answer[1:].decode(errors="replace"))
        return bytes(answer[1:])
