"""One JSON line asks, one answers: what an agent's doors share, the local and the remote one.

{"request": "status", "arguments": {}}   ->   {"answer": ...}
                                              {"error": {"code", "message", "hint", "exit_code"}}
"""

import json
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from easyscale.errors import EasyScaleError, ExitCode, UsageError

#: Takes a request's arguments, returns what JSON can say; may raise EasyScaleError.
Handler = Callable[[Mapping[str, Any]], object]

MAX_ANSWER_BYTES = 8 << 20
MAX_QUESTION_BYTES = 64 << 10


class AgentSilent(EasyScaleError):
    """Raised when an agent did not answer in time, or is no more."""

    code = "agent_silent"


class AgentRefused(EasyScaleError):
    """What an agent answered with an error of its own."""

    def __init__(self, message: str, *, hint: str, code: str, exit_code: int) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.exit_code = ExitCode(exit_code)


def question(request: str, arguments: Mapping[str, Any] | None) -> bytes:
    """The line that asks."""
    return json.dumps({"request": request, "arguments": arguments or {}}).encode()


def answer_to(line: bytes, handlers: Mapping[str, Handler]) -> bytes:
    """The line that answers; whatever is wrong with the question is an answer too."""
    answer = msgspec.json.encode(_answer(line, handlers))
    if len(answer) <= MAX_ANSWER_BYTES:
        return answer
    error = UsageError(f"the answer has {len(answer)} bytes, the limit is {MAX_ANSWER_BYTES}")
    return msgspec.json.encode({"error": _describe(error)})


def _answer(line: bytes, handlers: Mapping[str, Handler]) -> dict[str, object]:
    try:
        asked = json.loads(line)
        handler = handlers.get(asked["request"])
        if handler is None:
            known = ", ".join(sorted(handlers))
            raise UsageError(f"no request {asked['request']!r}; there are {known}")
        return {"answer": handler(asked.get("arguments") or {})}
    except EasyScaleError as error:
        return {"error": _describe(error)}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return {"error": _describe(UsageError(f"the request is not understood: {error}"))}


def answer_in(line: bytes) -> Any:  # noqa: ANN401 - JSON
    """What an answer's line says; raises AgentRefused with the agent's own words, or ValueError."""
    said = json.loads(line)
    if not isinstance(said, dict) or not ({"answer", "error"} & said.keys()):
        raise ValueError("what came is no answer")
    if "error" not in said:
        return said["answer"]
    try:
        refusal = AgentRefused(**said["error"])
    except TypeError as error:
        raise ValueError(f"what came is no answer: {error}") from error
    raise refusal


class Lines:
    """Reads whole lines from a socket, each within a size and all within one deadline."""

    def __init__(self, connection: socket.socket, *, deadline: float) -> None:
        self._connection = connection
        self._deadline = deadline
        self._received = bytearray()

    def next(self, *, limit: int) -> bytes:
        """The next line without its end; empty when the other side ended before it."""
        searched = 0
        while (end := self._received.find(b"\n", searched)) < 0:
            searched = len(self._received)
            left_s = self._deadline - time.monotonic()
            if searched > limit:
                raise ConnectionError(f"a line of more than {limit} bytes")
            if left_s <= 0:
                raise TimeoutError("no whole line in time")
            self._connection.settimeout(left_s)
            data = self._connection.recv(65536)
            if not data:
                return b""
            self._received += data
        if end > limit:
            raise ConnectionError(f"a line of more than {limit} bytes")
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line


def _describe(error: EasyScaleError) -> dict[str, object]:
    return {
        "message": error.message,
        "hint": error.hint,
        "code": error.code,
        "exit_code": int(error.exit_code),
    }
