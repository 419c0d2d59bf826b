"""The agent's door to other machines: who proves to know the job's token is told, never obeyed.

    agent   {"version", "challenge"}                    a fresh number
    caller  {"version", "nonce", "proof"} + question    HMAC of both numbers and the question
    agent   {"proof"} + answer                          HMAC of both numbers and the answer

The token itself never travels; what an agent is asked to do comes through etcd.
"""

import contextlib
import hashlib
import hmac
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from easyscale.agent.doors.dialogue import (
    MAX_ANSWER_BYTES,
    MAX_QUESTION_BYTES,
    AgentSilent,
    Handler,
    Lines,
    answer_in,
    answer_to,
    question,
)

log = logging.getLogger(__name__)

VERSION = 1
_MAX_HEAD_BYTES = 1024
#: A stranger who says nothing, or too slowly, is cut off after this.
_HELLO_S = 5.0
_SEND_S = 10.0
_MOST_AT_ONCE = 32
_CLOSE_S = 5.0
_RETRY_S = 0.01


class Greeting(msgspec.Struct, frozen=True):
    """What an agent says first."""

    version: int
    challenge: str


class Proven(msgspec.Struct, frozen=True):
    """What a caller says before its question."""

    version: int
    nonce: str
    proof: str


class Answered(msgspec.Struct, frozen=True):
    """What an agent says before its answer."""

    proof: str


class RemoteDoor:
    """Bound from the start, so that its address can stand in the node's record; opened later."""

    def __init__(self, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=128)
        port = self._listener.getsockname()[1]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._token: Callable[[], str] = str
        self._handlers: Mapping[str, Handler] = {}
        self._places = threading.BoundedSemaphore(_MOST_AT_ONCE)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._accept, name="remote-door", daemon=True)

    def open(self, *, token: Callable[[], str], handlers: Mapping[str, Handler]) -> None:
        """Begin to answer those who know the token, which is asked for each time: it may change."""
        self._token, self._handlers = token, handlers
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, which a close does not
        if self._thread.is_alive():
            self._thread.join(_CLOSE_S)
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, peer = self._listener.accept()
            except OSError:
                # Out of descriptors, or the caller was gone again: the next may do better.
                self._is_closed.wait(_RETRY_S)
                continue
            if not self._places.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection, peer), daemon=True).start()

    def _serve(self, connection: socket.socket, peer: object) -> None:
        try:
            with connection:
                self._converse(connection)
        except (OSError, msgspec.MsgspecError, PermissionError) as error:
            log.info("a caller from %s is not answered: %s", peer, error)
        finally:
            self._places.release()

    def _converse(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        challenge = secrets.token_hex(16)
        connection.settimeout(_HELLO_S)
        connection.sendall(_line(Greeting(VERSION, challenge)))
        lines = Lines(connection, deadline=time.monotonic() + _HELLO_S)
        head = msgspec.json.decode(lines.next(limit=_MAX_HEAD_BYTES), type=Proven)
        asked = lines.next(limit=MAX_QUESTION_BYTES)
        token = self._token()
        proof = _proof(token, "ask", challenge, head.nonce, asked)
        if not token or not hmac.compare_digest(proof.encode(), head.proof.encode()):
            raise PermissionError("it does not know the job's token")
        answer = answer_to(asked, self._handlers)
        proof = _proof(token, "answer", challenge, head.nonce, answer)
        connection.settimeout(_SEND_S)
        connection.sendall(_line(Answered(proof)) + answer + b"\n")


def ask_at(
    address: str,
    token: str,
    request: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float,
) -> Any:  # noqa: ANN401 - JSON
    """Ask the agent at an address; raises AgentSilent, or AgentRefused with its own words."""
    try:
        return _ask(address, token, question(request, arguments), timeout_s=timeout_s)
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise AgentSilent(
            f"the agent at {address} did not answer within {timeout_s:g} s: {error}"
        ) from error


def _ask(address: str, token: str, asked: bytes, *, timeout_s: float) -> Any:  # noqa: ANN401 - JSON
    host, _, port = address.rpartition(":")
    where = (host.removeprefix("[").removesuffix("]"), int(port))
    deadline = time.monotonic() + timeout_s
    with socket.create_connection(where, timeout=timeout_s) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines = Lines(connection, deadline=deadline)
        greeting = msgspec.json.decode(lines.next(limit=_MAX_HEAD_BYTES), type=Greeting)
        if greeting.version != VERSION:
            raise AgentSilent(
                f"the agent at {address} speaks version {greeting.version}, this is {VERSION}",
                hint="pip install -U easyscale-torch, the same on both",
            )
        nonce = secrets.token_hex(16)
        proof = _proof(token, "ask", greeting.challenge, nonce, asked)
        connection.sendall(_line(Proven(VERSION, nonce, proof)) + asked + b"\n")
        head = lines.next(limit=_MAX_HEAD_BYTES)
        if not head:
            raise AgentSilent(f"the agent at {address} refused: it serves another job, or is full")
        answer = lines.next(limit=MAX_ANSWER_BYTES)
    said = msgspec.json.decode(head, type=Answered).proof
    expected = _proof(token, "answer", greeting.challenge, nonce, answer)
    if not hmac.compare_digest(said.encode(), expected.encode()):
        raise AgentSilent(f"who answers at {address} does not know the job's token")
    return answer_in(answer)


def _line(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _proof(token: str, role: str, challenge: str, nonce: str, body: bytes) -> str:
    text = b"\0".join((role.encode(), challenge.encode(), nonce.encode(), body))
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()
