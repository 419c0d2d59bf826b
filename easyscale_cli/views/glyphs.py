"""The marks of the screens in two frozen sets: one cell each, no emoji, no special font.

The ASCII set is for terminals whose encoding is not UTF-8 and for people who ask for it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from easyscale_cli.views.literal import literal


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of marks; every one is one cell wide, the arrow of ASCII alone takes two."""

    done: str
    failed: str
    look: str
    running: str
    waiting: str
    joined: str
    left: str
    rebalanced: str
    restored: str
    snapshot: str
    separator: str
    arrow: str
    times: str
    cut: str
    minus: str
    bar_done: str
    bar_edge: str
    bar_rest: str
    rule: str
    source: str
    here: str
    standby: str
    degree: str
    spark: str
    against_kind: str

    @property
    def is_ascii(self) -> bool:
        """Whether this is the set for terminals without UTF-8."""
        return self.done.isascii()

    @property
    def between(self) -> str:
        """The separator of two facts with its spaces."""
        return f" {self.separator} "

    def name(self, text: str) -> str:
        """Show a text of users, nodes or files literally; what the set cannot say by its number."""
        shown = literal(text)
        if self.is_ascii and not shown.isascii():
            return shown.encode("ascii", "backslashreplace").decode("ascii")
        return shown

    def prose(self, text: str) -> str:
        """Show a reason, which is kept in either spelling, with the marks of this set."""
        if self.is_ascii:
            return self.name(text.translate(_TO_ASCII))
        return _TIMES.sub(" " + self.times, literal(text).replace("->", self.arrow))


#: `1.7 x its kind`, but neither `0x1f` nor `3 x y`, where the x is a name.
_TIMES = re.compile(r"(?<=\d) x(?=[ ,;:)]|$)")

UNICODE = Glyphs(
    done="✓",
    failed="✗",
    look="!",
    running="●",
    waiting="○",
    joined="+",
    left="−",  # noqa: RUF001 - a minus sign is as wide as the plus beside it
    rebalanced="⇄",
    restored="↺",
    snapshot="◆",
    separator="·",
    arrow="→",
    times="×",  # noqa: RUF001 - the sign of multiplication is meant
    cut="…",
    minus="−",  # noqa: RUF001 - as above
    bar_done="━",
    bar_edge="╸",
    bar_rest="─",
    rule="─",
    source="│",
    here="▸",
    standby="·",
    degree="°",
    spark="▁▂▃▄▅▆▇█",
    against_kind="▃▅▇█",
)

ASCII = Glyphs(
    done="v",
    failed="x",
    look="!",
    running="*",
    waiting="o",
    joined="+",
    left="-",
    rebalanced="~",
    restored="<",
    snapshot="#",
    separator="|",
    arrow="->",
    times="x",
    cut="~",
    minus="-",
    bar_done="#",
    bar_edge="|",
    bar_rest=".",
    rule="-",
    source="|",
    here=">",
    standby=".",
    degree="",
    spark="12345678",
    against_kind="-+*#",
)

_TO_ASCII = str.maketrans(
    {
        "→": "->",
        "×": "x",  # noqa: RUF001 - the sign of multiplication is meant
        "·": "|",
        "…": "~",
        "−": "-",  # noqa: RUF001 - the minus sign is meant
        "°": "",
        "✓": "v",
        "✗": "x",
    }
)


def choose_glyphs(*, encoding: str | None, ascii_asked: bool, environ: Mapping[str, str]) -> Glyphs:
    """Choose the set: ASCII where it is asked for or where the stream cannot say the other one."""
    if ascii_asked or environ.get("EASYSCALE_ASCII", "") not in {"", "0"}:
        return ASCII
    spoken = (encoding or "ascii").lower().replace("_", "-")
    return UNICODE if spoken in {"utf-8", "utf8", "utf-8-sig", "cp65001"} else ASCII
