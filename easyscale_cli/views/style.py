"""The roles of text and how a terminal shows them: its own 16 colours, never a background.

A view says *what* a text is (good, quiet, a name); whether that becomes a colour is decided once
per stream. Without colour nothing is lost: every hue is accompanied by a glyph or a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rich.text import Text
    from rich.theme import Theme


class Role(StrEnum):
    """What a piece of text is; the value is the name of its style in the theme."""

    TEXT = "easyscale.text"
    QUIET = "easyscale.quiet"
    NAME = "easyscale.name"
    GOOD = "easyscale.good"
    LIVE = "easyscale.live"
    LOOK = "easyscale.look"
    FAILED = "easyscale.failed"
    GOOD_NAME = "easyscale.good_name"
    LIVE_NAME = "easyscale.live_name"
    FAILED_NAME = "easyscale.failed_name"


#: Yellow and green are too faint for words on light themes, so LOOK and GOOD colour glyphs; the
#: gutter verbs are bold and stand beside a text that says the same.
STYLES: Mapping[Role, str] = {
    Role.TEXT: "",
    Role.QUIET: "dim",
    Role.NAME: "bold",
    Role.GOOD: "green",
    Role.LIVE: "cyan",
    Role.LOOK: "yellow",
    Role.FAILED: "red",
    Role.GOOD_NAME: "bold green",
    Role.LIVE_NAME: "bold cyan",
    Role.FAILED_NAME: "bold red",
}

_ATTRIBUTES = {"bold": "1", "dim": "2"}
_HUES = {"red": "31", "green": "32", "yellow": "33", "cyan": "36"}


class Span(NamedTuple):
    """A piece of text with its role; the text holds no escape and no line break."""

    text: str
    role: Role = Role.TEXT


#: One row of a screen.
Line = tuple[Span, ...]


class Palette(Enum):
    """What a stream may show."""

    NONE = "none"
    ATTRIBUTES = "attributes"
    HUES = "hues"


class ColorChoice(StrEnum):
    """The values of `--color`."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


def decide_palette(
    choice: ColorChoice, *, environ: Mapping[str, str], is_terminal: bool
) -> Palette:
    """Decide colour for a stream: `--color`, NO_COLOR, FORCE_COLOR, then the terminal."""
    if choice is ColorChoice.ALWAYS:
        return Palette.HUES
    if choice is ColorChoice.NEVER:
        return Palette.NONE
    can_show = is_terminal and environ.get("TERM") != "dumb"
    if "NO_COLOR" in environ:
        return Palette.ATTRIBUTES if can_show else Palette.NONE
    if environ.get("FORCE_COLOR", "0") not in {"", "0"}:
        return Palette.HUES
    return Palette.HUES if can_show else Palette.NONE


def plain_text(line: Line) -> str:
    """The text alone."""
    return "".join(span.text for span in line)


def paint(line: Line, palette: Palette) -> str:
    """The text with the escapes that `palette` allows; every style is ended within the line."""
    if palette is Palette.NONE:
        return plain_text(line)
    return "".join(_paint_span(span, palette) for span in line)


def _paint_span(span: Span, palette: Palette) -> str:
    codes = _CODES[palette][span.role]
    return f"\x1b[{codes}m{span.text}\x1b[0m" if codes and span.text else span.text


def _codes_of(style: str, palette: Palette) -> str:
    known = _ATTRIBUTES | _HUES if palette is Palette.HUES else _ATTRIBUTES
    return ";".join(known[word] for word in style.split() if word in known)


_CODES = {
    palette: {role: _codes_of(style, palette) for role, style in STYLES.items()}
    for palette in (Palette.ATTRIBUTES, Palette.HUES)
}


def rich_theme(palette: Palette) -> Theme:
    """The one theme for rich's console; rich costs 60 ms, paid only by who draws a full screen."""
    from rich.theme import Theme

    known = {Palette.NONE: (), Palette.ATTRIBUTES: tuple(_ATTRIBUTES)}.get(
        palette, (*_ATTRIBUTES, *_HUES)
    )
    return Theme(
        {
            str(role): " ".join(word for word in style.split() if word in known) or "none"
            for role, style in STYLES.items()
        }
    )


def rich_text(lines: Iterable[Line]) -> Text:
    """The lines as one rich text: literal, without markup, neither wrapped nor cut."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore", end="")
    for number, line in enumerate(lines):
        if number:
            text.append("\n")
        for span in line:
            text.append(span.text, style=str(span.role))
    return text
