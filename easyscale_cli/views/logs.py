"""Lines of workers' logs as `logs` shows them: their place and rank before them, or JSON; pure."""

from collections.abc import Sequence
from typing import Any

from easyscale.reports import stamp
from easyscale_cli.views import plain
from easyscale_cli.views.cells import width_of
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import GUTTER, GUTTER_LIMIT, in_gutter
from easyscale_cli.views.literal import literal_output
from easyscale_cli.views.log_lines import LogLine
from easyscale_cli.views.stage import Look
from easyscale_cli.views.style import Palette, Role, Span, paint


class LogView:
    """Draws lines one after the other; the gutter grows with the longest place."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._gutter = GUTTER

    def text(self, lines: Sequence[LogLine]) -> str:
        """The lines, each behind its place: folded by the terminal, so that they can be copied."""
        return "".join(self._row(line) + "\n" for line in lines)

    def _row(self, line: LogLine) -> str:
        look = self._look
        coloured = look.is_terminal and look.palette is Palette.HUES
        text = literal_output(line.text, with_colours=coloured)
        tag = place_of(line, look.glyphs)
        if not look.is_terminal:
            return f"[{tag}] {text}"
        self._gutter = min(max(self._gutter, width_of(tag)), GUTTER_LIMIT)
        cell = in_gutter((Span(tag, Role.QUIET),), self._gutter, look.glyphs.cut)
        bar = (Span(f" {look.glyphs.source}", Role.QUIET),)
        return paint((*cell, *bar), look.palette) + (f" {text}" if text else "")


def place_of(line: LogLine, glyphs: Glyphs) -> str:
    """`node/slot`, and `rN` where a logical rank's micro-step printed it."""
    place = f"{glyphs.name(line.file.node)}/{glyphs.name(line.file.slot)}"
    return place if line.rank is None else f"{place} r{line.rank}"


def log_json(job: str, line: LogLine) -> str:
    """One line as one object."""
    value: dict[str, Any] = {
        "version": plain.JSON_VERSION,
        "at": None if line.at_s is None else stamp(line.at_s),
        "job": job,
        "node": line.file.node,
        "slot": line.file.slot,
        "process": line.file.spawn,
        "rank": line.rank,
        "stream": str(line.file.stream),
        "text": line.text,
    }
    return plain.to_json(value)
