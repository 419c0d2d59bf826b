"""What a person needs to know of an exception in their script: which line of theirs, and its text.

Frames of python, of installed packages and of easyscale are counted, not shown.
"""

import linecache
import site
import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

import easyscale
from easyscale.errors import EasyScaleError, ScriptError, UsageError
from easyscale.messages import Failure, SourceLine
from easyscale.model import GenerationNumber, LogicalRank

#: Lines of the script in the report, the failing one among them.
_EXCERPT_LINES = 4
_MAX_TEXT = 2000
_MAX_TRACEBACK = 20_000


def describe_failure(
    error: BaseException,
    *,
    rank: int | None,
    step: int,
    generation: GenerationNumber | None,
) -> Failure:
    """Say what ended a script, at the innermost line of the user's own files."""
    frames = _frames(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        place = traceback.FrameSummary(error.filename, error.lineno, "<module>", lookup_line=False)
    elif own:
        place = own[-1]
    else:
        place = traceback.FrameSummary("", 0, "", lookup_line=False)
    caller = own[-2] if len(own) > 1 else None
    line = place.lineno or 0
    return Failure(
        type=_type_name(error),
        text=_text(error)[:_MAX_TEXT],
        rank=None if rank is None else LogicalRank(rank),
        step=step,
        generation=generation,
        file=place.filename,
        line=line,
        function=place.name,
        caller="" if caller is None else f"{caller.filename}:{caller.lineno}",
        excerpt=_excerpt(place.filename, line),
        hidden_frames=len(frames) - len(own),
        traceback="".join(traceback.format_exception(error))[-_MAX_TRACEBACK:],
        refused=isinstance(error, ScriptError | UsageError),
        hint=error.hint if isinstance(error, EasyScaleError) else "",
    )


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    frames = traceback.extract_tb(trace)
    # What stands between python and the script is no frame of anybody's code.
    first = next((i for i, frame in enumerate(frames) if _is_own(frame.filename)), 0)
    return list(frames[first:])


def _is_own(filename: str) -> bool:
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


def _foreign_folders() -> list[Path]:
    names = {"stdlib", "platstdlib", "purelib", "platlib"}
    folders = [sysconfig.get_path(name) for name in names]
    folders += [*site.getsitepackages(), site.getusersitepackages(), easyscale.__path__[0]]
    return [Path(folder).resolve() for folder in folders]


def _excerpt(filename: str, line: int) -> tuple[SourceLine, ...]:
    if not line:
        return ()
    first = max(1, line - _EXCERPT_LINES + 1)
    lines = ((number, linecache.getline(filename, number)) for number in range(first, line + 1))
    return tuple(SourceLine(number, text.rstrip("\n")) for number, text in lines if text)


def _type_name(error: BaseException) -> str:
    cls = type(error)
    plain = cls.__module__ in {"builtins", "__main__"} or isinstance(error, EasyScaleError)
    return cls.__name__ if plain else f"{cls.__module__}.{cls.__qualname__}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as other:  # noqa: BLE001 - a user's __str__ may raise anything
        return f"(its text cannot be had: {type(other).__name__})"
