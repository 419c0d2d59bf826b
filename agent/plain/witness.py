"""What is known of a worker that failed by itself: error file, last words, signal; pure.

An error file is what `@record` writes, a traceback what python prints; both are read as data.
"""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from easyscale.agent.plain.values import Fault
from easyscale.agent.words import signal_name

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
#: `ValueError: text`, `torch.distributed.DistBackendError: text`, or a bare `KeyboardInterrupt`.
_RAISED = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_FOREIGN = re.compile(r"/(site-packages|dist-packages|lib/python3[.\d]*)/")
_EXCERPT_LINES = 4
_MAX_HEADLINE = 500
#: What torch says in a worker whose peer has ended.
_PEER_LOST = re.compile(
    r"Connection (?:closed|reset) by peer|Connection refused|Broken pipe|connectFullMesh"
    r"|Socket Timeout|ProcessGroup\w*'s watchdog|NCCL communicator was aborted"
    r"|remote process exited|store->get|TCPStore|Timed out waiting \d+ms",
)
#: What python says when the script itself cannot be read.
_HOPELESS = frozenset({"SyntaxError", "IndentationError", "TabError"})


class Frame(NamedTuple):
    file: str
    line: int
    function: str


class Raised(NamedTuple):
    """The last exception of a text."""

    type: str
    text: str
    frames: tuple[Frame, ...]

    @property
    def headline(self) -> str:
        name = self.type.removeprefix("builtins.")
        return (f"{name}: {self.text}" if self.text else name)[:_MAX_HEADLINE]


class Evidence(NamedTuple):
    """All that a worker left behind; `read_line` gives a line of a source file, or nothing."""

    error_file: bytes
    stderr: str
    read_line: Callable[[str, int], str]
    #: Where the person stands: files below it are told from there.
    folder: str = ""


def fault_of(
    evidence: Evidence,
    *,
    rank: int,
    node: str,
    pid: int,
    code: int | None,
    number: int | None,
    log: str,
    error_file: str,
) -> Fault:
    """What failed, by the best witness: the error file, a traceback, the signal, the exit code."""
    said = recorded(evidence.error_file)
    raised = last_raised(said[1] if said else evidence.stderr)
    headline = _headline(said, raised, evidence.stderr, code=code, number=number)
    fault = Fault(
        headline=headline,
        rank=rank,
        node=node,
        pid=pid,
        exit_code=code,
        signal=number,
        log=log,
        error_file=error_file if said else "",
        is_victim=_PEER_LOST.search(headline) is not None,
    )
    if raised is None or number is not None:
        return fault
    return msgspec.structs.replace(
        fault,
        is_hopeless=raised.type in _HOPELESS and bool(raised.frames),
        **_place(raised, evidence),
    )


def could_not_start(reason: str, *, words: list[str], rank: int, node: str) -> Fault:
    """A program that cannot be executed: the same at every try."""
    return Fault(
        headline=f"{words[0]}: {reason[:1].lower()}{reason[1:]}",
        rank=rank,
        node=node,
        pid=None,
        exit_code=None,
        signal=None,
        log="",
        is_hopeless=True,
    )


def recorded(content: bytes) -> tuple[str, str] | None:
    """Message and call stack from an error file; None where there is none to be read."""
    try:
        message: Any = json.loads(content)["message"]
    except (ValueError, TypeError, KeyError):
        return None
    if isinstance(message, str):
        return message, ""
    if not isinstance(message, dict) or not isinstance(message.get("message"), str):
        return None
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else ""
    return message["message"], stack if isinstance(stack, str) else ""


def last_raised(text: str) -> Raised | None:
    """The exception that the last traceback of a text ends with."""
    _, found, after = text.rpartition(_TRACEBACK)
    frames: list[Frame] = []
    for line in after.splitlines():
        if (frame := _FRAME.match(line)) is not None:
            frames.append(Frame(frame["file"], int(frame["line"]), frame["function"] or "<module>"))
        elif (
            line
            and not line.startswith(" ")
            and (raised := _RAISED.match(line)) is not None
            # Of a script that it cannot read python says no more than this, without a heading.
            and (found or (frames and raised["type"] in _HOPELESS))
        ):
            return Raised(raised["type"], raised["text"] or "", tuple(frames))
    return None


def _headline(
    said: tuple[str, str] | None,
    raised: Raised | None,
    stderr: str,
    *,
    code: int | None,
    number: int | None,
) -> str:
    last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), "")
    words = f' (last on stderr: "{last[:200]}")' if last else ""
    if number is not None:
        return f"killed by {signal_name(number)}{words}"
    if said is not None:
        return said[0].strip().partition("\n")[0][:_MAX_HEADLINE]
    if raised is not None:
        return raised.headline
    return f"exit {code}, no traceback{words}"


def _place(raised: Raised, evidence: Evidence) -> dict[str, Any]:
    """The innermost frame in the person's own files, as the fields of a fault."""
    own = [frame for frame in raised.frames if _is_own(frame.file)]
    if not own:
        return {}
    here = own[-1]
    caller = own[-2] if len(own) > 1 else None
    first = max(1, here.line - _EXCERPT_LINES + 1)
    lines = (
        (number, evidence.read_line(here.file, number)) for number in range(first, here.line + 1)
    )
    return {
        "file": from_folder(here.file, evidence.folder),
        "line": here.line,
        "function": "" if here.function == "<module>" else here.function,
        "caller": f"{from_folder(caller.file, evidence.folder)}:{caller.line}" if caller else "",
        "excerpt": tuple((number, text.rstrip("\n")) for number, text in lines if text),
        "hidden_frames": len(raised.frames) - len(own),
    }


def from_folder(path: str, folder: str) -> str:
    """A path as it is written from a folder above it."""
    return path.removeprefix(f"{folder}/") if folder else path


def _is_own(filename: str) -> bool:
    """Not python's nor an installed package's; the worker's python may be another than ours."""
    return not filename.startswith("<") and _FOREIGN.search(filename) is None
