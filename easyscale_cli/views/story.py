"""How a job got where it is: what happened, what was decided on it, and why; pure."""

from collections.abc import Mapping, Sequence
from datetime import tzinfo

from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import Column, columns, line
from easyscale_cli.views.slot_rows import node_name
from easyscale_cli.views.style import Line, Role, Span


def story_lines(
    story: Sequence[Mapping[str, str]], *, cells: int, glyphs: Glyphs, zone: tzinfo | None
) -> list[Line]:
    """One row per decision, oldest first; nothing is cut, since a story is read to find a fault."""
    table = [
        Column("WHEN"),
        Column("NODE", leaves=2),
        Column("EVENT", leaves=1),
        Column("DECISION, AND WHY", is_prose=True),
    ]
    rows = [
        [
            line(Span(numbers.clock(each["at"], zone), Role.QUIET)),
            line(node_name(each["node"], glyphs)),
            line(glyphs.name(each["event"])),
            line(glyphs.prose(": ".join(filter(None, (each["decision"], each["reason"]))))),
        ]
        for each in story
    ]
    return columns(table, rows, cells, mark=glyphs.cut, whole=len(rows))


def story_json(job: str, story: Sequence[Mapping[str, str]]) -> str:
    """The same as one object."""
    return plain.to_json({"version": plain.JSON_VERSION, "job": job, "story": list(story)})
