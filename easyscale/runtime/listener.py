"""A worker's one listening socket: serves a generation's keys, what it knows, and its state.

It lives across generations. Each connection has a thread of its own, and none of them ever calls
torch: a worker whose main thread is blocked in a collective still answers.
"""

import hashlib
import hmac
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import assert_never

import msgspec

from easyscale.errors import FormatError
from easyscale.model import GenerationNumber, WorkerId, decode
from easyscale.runtime.channel import (
    HERE,
    MAKING,
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Do,
    Hello,
    KeyRequest,
    Kind,
    Wire,
    join_address,
)

#: How long a caller may take to say hello, and to read what it asked for.
HELLO_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 60.0
#: A forming group keeps its connection open without a word while its micro-steps run.
IDLE_TIMEOUT_S = 24 * 3600.0
#: Generations whose keys are kept: the running one, those before it that somebody still leaves,
#: and newer ones that a peer has heard of first.
KEPT_GENERATIONS = 8
MAX_STORE_BYTES = 256 << 20
MAX_CONNECTIONS = 4096


class LocalKeys:
    """The key-value store of one generation, in the memory of process rank 0."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._claims: dict[WorkerId, str] = {}
        self._closed = False
        self._bytes = 0

    def claim(self, worker: WorkerId, process: str) -> bool:
        """Admit a worker id for the first process that says it, and for no other."""
        with self._changed:
            return self._claims.setdefault(worker, process) == process

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._bytes += len(value) - len(self._values.get(key, b""))
            if self._bytes > MAX_STORE_BYTES:
                raise TimeoutError(f"the store of this generation holds {self._bytes} bytes")
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, *, timeout_s: float) -> bytes:
        with self._changed:
            self._await((key,), timeout_s)
            return self._values[key]

    def wait(self, keys: Sequence[str], *, timeout_s: float) -> None:
        with self._changed:
            self._await(keys, timeout_s)

    def add(self, key: str, amount: int) -> int:
        with self._changed:
            value = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(value).encode()
            self._changed.notify_all()
            return value

    def check(self, keys: Sequence[str]) -> bool:
        with self._changed:
            return self._has(keys)

    def delete(self, key: str) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None

    def close(self) -> None:
        """Free whoever waits here: the generation is given up."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _await(self, keys: Sequence[str], timeout_s: float) -> None:
        self._changed.wait_for(lambda: self._closed or self._has(keys), timeout_s)
        if not self._has(keys):
            missing = [key for key in keys if key not in self._values]
            why = "before it was given up" if self._closed else f"within {timeout_s:.1f} s"
            raise TimeoutError(f"nobody set {missing} {why}")

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What a listener says for its worker; called from any thread, never to enter torch."""

    #: JSON for `ask`: the newest commit known, the position, what the worker waits for.
    know: Callable[[], str]
    #: Chunks of the state for a request, before them None from time to time while it is made.
    #: None in place of all, or a LookupError, where there is none to give.
    state: Callable[[str], Iterable[bytes | memoryview | None] | None]
    #: A peer told us of this commit record (JSON).
    heard: Callable[[str], None]
    #: The layout of what the script has registered; empty where nobody is to be told.
    layout: Callable[[], bytes] = bytes


class Listener:
    """Accepts and serves peers until closed."""

    def __init__(self, *, host: str, token: str, worker: WorkerId, answers: Answers) -> None:
        self._token = token
        self.worker = worker
        #: Tells this process apart from another that claims our worker id.
        self.process = secrets.token_hex(8)
        self._answers = answers
        self._lock = threading.Lock()
        self._keys: dict[GenerationNumber, LocalKeys] = {}
        self._wires: set[Wire] = set()
        self._closed = threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=1024)
        self.host = host
        self.address = join_address(host, self._socket.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)
        self._thread.start()

    def keys(self, generation: GenerationNumber) -> LocalKeys:
        """Return the keys of a generation; those of old ones are given up."""
        with self._lock:
            if generation not in self._keys:
                self._keys[generation] = LocalKeys()
                for old in sorted(self._keys)[:-KEPT_GENERATIONS]:
                    self._keys.pop(old).close()
            return self._keys.setdefault(generation, LocalKeys())

    def close(self) -> None:
        """Stop listening and end every connection."""
        self._closed.set()
        with self._lock:
            wires, keys = list(self._wires), list(self._keys.values())
        # A blocked accept is woken by shutdown, not by close.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for wire in wires:
            wire.close()
        for store in keys:
            store.close()
        self._thread.join(timeout=HELLO_TIMEOUT_S)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._closed.is_set():
                    return
                # Out of file descriptors, or the peer was gone again: the next may do better.
                time.sleep(0.01)
                continue
            with suppress(OSError):
                wire = Wire(connection)
                with self._lock:
                    full = self._closed.is_set() or len(self._wires) >= MAX_CONNECTIONS
                    if not full:
                        self._wires.add(wire)
                if full:
                    wire.close()
                    continue
                threading.Thread(
                    target=self._serve, args=(wire,), name="listener-peer", daemon=True
                ).start()

    def _serve(self, wire: Wire) -> None:
        # Whatever a peer does wrong ends its connection and nothing else.
        with suppress(OSError, FormatError, msgspec.MsgspecError, LookupError, ValueError):
            line = wire.receive_line(limit=MAX_HELLO_BYTES, timeout_s=HELLO_TIMEOUT_S)
            hello = decode(line, Hello, source="a peer's hello")
            if hmac.compare_digest(hello.token.encode(), self._token.encode()):
                if hello.commit:
                    self._answers.heard(hello.commit)
                self._answer(wire, hello)
        wire.close()
        with self._lock:
            self._wires.discard(wire)

    def _answer(self, wire: Wire, hello: Hello) -> None:
        match hello.kind:
            case Kind.ASK:
                wire.send(self._answers.know().encode(), timeout_s=HELLO_TIMEOUT_S)
            case Kind.LAYOUT:
                wire.send(self._answers.layout(), timeout_s=HELLO_TIMEOUT_S)
            case Kind.STATE:
                self._send_state(wire, hello.request)
            case Kind.STORE:
                if hello.generation is not None:
                    keys = self.keys(hello.generation)
                    if keys.claim(hello.worker, hello.process):
                        _serve_keys(wire, keys)
            case _:
                assert_never(hello.kind)

    def _send_state(self, wire: Wire, request: str) -> None:
        chunks = self._answers.state(request)
        if chunks is None:
            return
        digest = hashlib.blake2b(digest_size=32)
        is_here = False
        for chunk in chunks:
            if chunk is None:
                wire.send(MAKING, timeout_s=SEND_TIMEOUT_S)
                continue
            if not is_here:
                wire.send(HERE, timeout_s=SEND_TIMEOUT_S)
                is_here = True
            view = memoryview(chunk).cast("B")
            # An empty frame is the end of the stream.
            for start in range(0, len(view), MAX_FRAME_BYTES):
                part = view[start : start + MAX_FRAME_BYTES]
                digest.update(part)
                wire.send(part, timeout_s=SEND_TIMEOUT_S)
        wire.send(b"", timeout_s=SEND_TIMEOUT_S)
        wire.send(digest.digest(), timeout_s=SEND_TIMEOUT_S)


def _serve_keys(wire: Wire, keys: LocalKeys) -> None:
    while True:
        frame = wire.receive(timeout_s=IDLE_TIMEOUT_S)
        line, _, value = bytes(frame).partition(b"\n")
        request = msgspec.json.decode(line, type=KeyRequest)
        try:
            answer = b"+" + _perform(request, keys, value)
        except TimeoutError as error:
            answer = b"-" + str(error).encode()
        wire.send(answer, timeout_s=SEND_TIMEOUT_S)


def _perform(request: KeyRequest, keys: LocalKeys, value: bytes) -> bytes:
    match request.do:
        case Do.SET:
            keys.set(request.keys[0], value)
            return b""
        case Do.GET:
            return keys.get(request.keys[0], timeout_s=request.timeout_s)
        case Do.WAIT:
            keys.wait(request.keys, timeout_s=request.timeout_s)
            return b""
        case Do.ADD:
            return str(keys.add(request.keys[0], request.amount)).encode()
        case Do.CHECK:
            return b"1" if keys.check(request.keys) else b"0"
        case Do.DELETE:
            return b"1" if keys.delete(request.keys[0]) else b"0"
        case _:
            assert_never(request.do)
