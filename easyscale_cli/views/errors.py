"""An error in two lines: the fact with its values, then one thing to try; pure."""

from collections.abc import Iterable, Sequence

from easyscale.errors import EasyScaleError
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import hang, line, wrap
from easyscale_cli.views.plain import error_json
from easyscale_cli.views.style import Line, Role, Span

#: A name further away than this was hardly meant.
_NEAR = 2


def error_lines(message: str, hint: str, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """`error:` and `  try:`; long ones wrap under their own beginning."""
    lead = line(Span("error:", Role.FAILED_NAME), " ")
    told = wrap(line(glyphs.prose(message)), max(cells - 7, 1))
    lines = hang(lead, told)
    if hint:
        cure = wrap(line(Span(glyphs.prose(hint), Role.NAME)), max(cells - 7, 1))
        lines += hang(line("  try: "), cure)
    return lines


def lines_of_error(error: EasyScaleError, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """The two lines of an error raised on purpose."""
    return error_lines(error.message, error.hint, cells=cells, glyphs=glyphs)


def json_of_error(error: EasyScaleError) -> str:
    """The same for `--json`, on standard output."""
    return error_json(
        code=error.code, message=error.message, hint=error.hint, exit_code=int(error.exit_code)
    )


def near_miss(word: str, known: Iterable[str]) -> str | None:
    """The known word nearest to `word` and within two edits of it, if there is one."""
    near = [(distance, each) for each in known if (distance := _distance(word, each)) is not None]
    return min(near)[1] if near else None


def _distance(first: str, second: str) -> int | None:
    """Edits between the words, or None when they are more than two."""
    if abs(len(first) - len(second)) > _NEAR:
        return None
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        last = row
        row = [number]
        for place, other in enumerate(second, 1):
            replaced = last[place - 1] + (letter != other)
            row.append(min(replaced, last[place] + 1, row[-1] + 1))
    return row[-1] if row[-1] <= _NEAR else None


def some_of(names: Sequence[str], *, shown: int = 2) -> str:
    """`resnet50, llama-1b and 4 more`."""
    first = ", ".join(names[:shown])
    more = len(names) - shown
    return f"{first} and {more:,} more" if more > 0 else first
