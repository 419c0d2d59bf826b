"""Lines, facts, columns, bars: the few forms that every screen is composed of; all widths exact.

Facts never shrink: they move to the next line or their column leaves. Only prose wraps or is cut.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from easyscale_cli.views.cells import cut_end, cut_front, head, width_of
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.style import Line, Role, Span

GUTTER = 12
GUTTER_LIMIT = 24
#: Between two columns, and between the texts at the two ends of a line.
GAP = 2
#: One point is a value, not yet a history.
_LEAST_POINTS = 2
#: Narrower prose is a column of single words; other columns leave first.
_LEAST_PROSE = 24


def line(*pieces: str | Span) -> Line:
    """A line of plain texts and styled spans."""
    return tuple(
        piece if isinstance(piece, Span) else Span(piece) for piece in pieces if piece and piece[0]
    )


def width(row: Line) -> int:
    """Cells that a line takes."""
    return sum(width_of(span.text) for span in row)


def blank(cells: int) -> Line:
    """So many spaces."""
    return (Span(" " * cells),) if cells > 0 else ()


def join(rows: Iterable[Line], between: str, role: Role = Role.QUIET) -> Line:
    """The rows one after the other with a quiet separator."""
    joined: list[Span] = []
    for row in rows:
        if joined:
            joined.append(Span(between, role))
        joined.extend(row)
    return tuple(joined)


def cut(row: Line, cells: int, mark: str) -> Line:
    """The line in at most `cells`, with `mark` where its end is missing."""
    if width(row) <= cells:
        return row
    room = cells - width_of(mark)
    kept: list[Span] = []
    for span in row:
        piece = head(span.text, room)
        kept.append(Span(piece, span.role))
        room -= width_of(piece)
        if piece != span.text:
            break
    kept[-1] = Span(kept[-1].text.rstrip() + mark, kept[-1].role)
    return tuple(kept) if cells > 0 else ()


def spread(left: Line, right: Line, cells: int, mark: str) -> Line:
    """One text at each end of the line; the right one leaves where both do not fit."""
    gap = cells - width(left) - width(right)
    return left + blank(gap) + right if right and gap >= GAP else cut(left, cells, mark)


def ends(left: Line, right: Line, cells: int, mark: str) -> list[Line]:
    """One text at each end of the line, or one under the other where both do not fit."""
    if not (left and right) or width(left) + GAP + width(right) <= cells:
        return [spread(left, right, cells, mark)] if left or right else []
    return [cut(left, cells, mark), cut(right, cells, mark)]


def gutter_of(tags: Iterable[str]) -> int:
    """The width that the longest tag asks for, between 12 and 24."""
    return min(max([GUTTER, *map(width_of, tags)]), GUTTER_LIMIT)


def in_gutter(tag: Line, cells: int, mark: str) -> Line:
    """The tag at the right of the gutter; one that is too long loses its front."""
    if width(tag) <= cells:
        return blank(cells - width(tag)) + tag
    text = cut_front("".join(span.text for span in tag), cells, mark)
    return (Span(text, tag[-1].role),)


def facts(rows: Sequence[Line], cells: int, glyphs: Glyphs) -> list[Line]:
    """Facts separated by a dot, broken at a dot; a fact that alone is too long wraps as prose."""
    lines: list[list[Span]] = [[]]
    room = cells
    between = Span(glyphs.between, Role.QUIET)
    for fact in rows:
        lead = width_of(between.text) if lines[-1] else 0
        if lines[-1] and lead + width(fact) > room:
            lines.append([])
            room, lead = cells, 0
        if lead:
            lines[-1].append(between)
        wrapped = wrap(fact, cells) if width(fact) > cells else [fact]
        lines[-1].extend(wrapped[0])
        lines.extend(list(row) for row in wrapped[1:])
        room = cells - sum(width_of(span.text) for span in lines[-1])
    return [tuple(row) for row in lines if row]


def wrap(row: Line, cells: int) -> list[Line]:
    """Prose broken at spaces; a word longer than the line is broken where the line ends."""
    lines: list[list[Span]] = [[]]
    room = cells
    for span in row:
        for number, word in enumerate(span.text.split(" ")):
            gap = " " if number and lines[-1] else ""
            if lines[-1] and len(gap) + width_of(word) > room:
                lines.append([])
                room, gap = cells, ""
            rest = word
            while width_of(rest) > room - len(gap):
                piece = head(rest, room - len(gap)) or rest[:1]
                lines[-1].append(Span(gap + piece, span.role))
                lines.append([])
                rest, room, gap = rest[len(piece) :], cells, ""
            if gap or rest:
                lines[-1].append(Span(gap + rest, span.role))
                room -= len(gap) + width_of(rest)
    return [trim(tuple(each)) for each in lines if each] or [()]


def trim(row: Line) -> Line:
    """The line without spaces at its end."""
    kept = list(row)
    while kept and not kept[-1].text.rstrip():
        kept.pop()
    if kept:
        kept[-1] = Span(kept[-1].text.rstrip(), kept[-1].role)
    return tuple(kept)


def hang(first: Line, rows: Sequence[Line]) -> list[Line]:
    """`first` before the first row, the others under where that row begins."""
    indent = blank(width(first))
    return [
        trim((first if number == 0 else indent) + row) for number, row in enumerate(rows or [()])
    ]


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; `leaves` orders the leaving, 0 never leaves, the highest goes first."""

    header: str
    right: bool = False
    leaves: int = 0
    is_prose: bool = False
    least: int = 0


def columns(
    table: Sequence[Column],
    rows: Sequence[Sequence[Line]],
    cells: int,
    *,
    mark: str,
    whole: int = 3,
) -> list[Line]:
    """The table without lines: a column is as wide as its widest cell, and leaves by its rank.

    Only the prose column shrinks: its cells wrap in the first `whole` rows and are cut in the rest.
    """
    kept = list(range(len(table)))
    widths = [
        max([width_of(column.header), column.least, *(width(row[index]) for row in rows)])
        for index, column in enumerate(table)
    ]
    prose = next((index for index, column in enumerate(table) if column.is_prose), None)
    spare = max(widths[prose] - _LEAST_PROSE, 0) if prose is not None else 0
    gap = _gap(kept, widths, cells, spare)
    while gap is None:
        leaving = max(kept, key=lambda index: (table[index].leaves, index))
        if table[leaving].leaves == 0:
            gap = 1
        else:
            kept.remove(leaving)
            gap = _gap(kept, widths, cells, spare)
    excess = sum(widths[index] for index in kept) + gap * (len(kept) - 1) - cells
    if prose is not None and excess > 0:
        widths[prose] = max(widths[prose] - excess, 1)
    heading = tuple((Span(column.header, Role.QUIET),) for column in table)
    lines = _row(table, heading, kept, widths, gap, wrapped=False, mark=mark)
    for number, row in enumerate(rows):
        lines += _row(table, row, kept, widths, gap, wrapped=number < whole, mark=mark)
    return [cut(each, cells, mark) for each in lines]


def _gap(kept: Sequence[int], widths: Sequence[int], cells: int, spare: int) -> int | None:
    """The spaces between the columns, or None when they do not fit: prose shrinks last."""
    taken = sum(widths[index] for index in kept) - cells
    for shrunk in (0, spare):
        for gap in (GAP, 1):
            if taken + gap * (len(kept) - 1) <= shrunk:
                return gap
    return None


def _row(
    table: Sequence[Column],
    row: Sequence[Line],
    kept: Sequence[int],
    widths: Sequence[int],
    gap: int,
    *,
    wrapped: bool,
    mark: str,
) -> list[Line]:
    texts: dict[int, list[Line]] = {}
    for index in kept:
        if width(row[index]) <= widths[index]:
            texts[index] = [row[index]]
        elif wrapped and table[index].is_prose:
            texts[index] = wrap(row[index], widths[index])
        else:
            texts[index] = [cut(row[index], widths[index], mark)]
    lines: list[Line] = []
    for number in range(max(map(len, texts.values()))):
        cells: list[Line] = []
        for index in kept:
            text = texts[index][number] if number < len(texts[index]) else ()
            room = blank(widths[index] - width(text))
            cells.append(room + text if table[index].right else text + room)
        lines.append(trim(join(cells, " " * gap, Role.TEXT)))
    return lines


def bar(share: float, cells: int, glyphs: Glyphs) -> Line:
    """How much is done, to half a cell."""
    halves = math.floor(min(max(share, 0.0), 1.0) * cells * 2)
    full, edge = divmod(halves, 2)
    done = glyphs.bar_done * full + glyphs.bar_edge * edge
    return line(Span(done, Role.LIVE), Span(glyphs.bar_rest * (cells - full - edge), Role.QUIET))


def band(pieces: int, share: float, cells: int, glyphs: Glyphs) -> Line:
    """A step as a slot lives it: micro-steps, each taking `share` of the step, then the wait."""
    each = max(round(share * cells), 1)
    busy = min(each * pieces, cells)
    marks = [busy * number // pieces for number in range(pieces + 1)] if pieces else [0]
    # Micro-steps that are not two cells long run into one another.
    ends = marks if each > 1 else [0, busy]
    done = "".join(
        glyphs.bar_done * (end - begin - 1) + glyphs.bar_edge
        for begin, end in pairwise(ends)
        if end > begin
    )
    return line(Span(done, Role.LIVE), Span(glyphs.bar_rest * (cells - busy), Role.QUIET))


def sparkline(history: Sequence[float], cells: int, glyphs: Glyphs) -> str:
    """The history in at most `cells` marks; a value that is no number shows as `!`."""
    points = _resample(history, cells)
    finite = [value for value in points if math.isfinite(value)]
    if len(points) < _LEAST_POINTS or not finite:
        return ""
    # Halved, so that the distance of two very large values is still a number.
    low, distance = min(finite) / 2, max(finite) / 2 - min(finite) / 2
    top = len(glyphs.spark) - 1
    return "".join(
        glyphs.look
        if not math.isfinite(value)
        else glyphs.spark[round((value / 2 - low) / distance * top) if distance else 0]
        for value in points
    )


def _resample(history: Sequence[float], cells: int) -> list[float]:
    if len(history) <= cells:
        return list(history)
    edges = [round(index * len(history) / cells) for index in range(cells + 1)] if cells > 0 else []
    return [sum(history[begin:end]) / (end - begin) for begin, end in pairwise(edges)]


def rule(title: str, cells: int, glyphs: Glyphs, role: Role) -> Line:
    """A line across the screen that carries a title near its left end."""
    text = cut_end(title, cells - 6, glyphs.cut)
    rest = cells - width_of(text) - 4
    return line(
        Span(glyphs.rule * 2 + " ", role), Span(text, role), Span(" " + glyphs.rule * rest, role)
    )


def first_that_fits(forms: Sequence[Callable[[], Line]], cells: int, mark: str) -> Line:
    """The longest wording that fits, the shortest one cut if none does."""
    row: Line = ()
    for form in forms:
        row = form()
        if width(row) <= cells:
            return row
    return cut(row, cells, mark)
