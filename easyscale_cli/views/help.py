"""`--help` as a person decides: groups in that order, defaults in brackets, examples last.

A page is a value; a command without one of its own gets a page made of its options.
"""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import click

from easyscale_cli.views.glyphs import Glyphs, choose_glyphs
from easyscale_cli.views.layout import blank, hang, line, width, wrap
from easyscale_cli.views.style import (
    ColorChoice,
    Line,
    Role,
    Span,
    decide_palette,
    paint,
)

#: Where the texts begin, and the widest that a page becomes.
_TEXT_AT: Final = 33
_WIDEST: Final = 100
_OPTION: Final = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]*")


@dataclass(frozen=True, slots=True)
class Entry:
    """Options with their values, and what they mean; a line break in the text is kept."""

    options: str
    text: str

    @property
    def names(self) -> list[str]:
        """The options that stand in the left column."""
        return _OPTION.findall(self.options)


@dataclass(frozen=True, slots=True)
class Group:
    """Options that answer one question."""

    title: str
    note: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A title and a few items on its own line."""

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """What somebody wants to do, and the command line for it."""

    wish: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The help of one command."""

    summary: str
    usage: str
    groups: tuple[Group, ...] = ()
    notes: tuple[Note, ...] = ()
    examples: tuple[Example, ...] = field(default=())


def page_lines(page: Page, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """The page in at most `cells`, and no wider than is read with ease."""
    cells = min(cells, _WIDEST)
    sections = [wrap(line(glyphs.prose(page.summary)), cells)]
    sections.append(hang(line("Usage: "), wrap(line(Span(page.usage, Role.NAME)), cells - 7)))
    sections += [_group_lines(group, cells, glyphs) for group in page.groups]
    sections += [_note_lines(note, cells) for note in page.notes]
    if page.examples:
        sections.append(_example_lines(page.examples))
    lines = [row for section in sections for row in ((), *section)]
    return lines[1:]


def _group_lines(group: Group, cells: int, glyphs: Glyphs) -> list[Line]:
    title = line(Span(group.title, Role.NAME))
    if group.note:
        title = (*title, Span(f"  {group.note}", Role.QUIET))
    rows = [row for entry in group.entries for row in _entry_lines(entry, cells, glyphs)]
    return [title, *rows]


def _entry_lines(entry: Entry, cells: int, glyphs: Glyphs) -> list[Line]:
    text_at = min(_TEXT_AT, cells // 2)
    room = cells - text_at - 1
    text = [row for part in entry.text.split("\n") for row in wrap(line(glyphs.prose(part)), room)]
    options = [line("  ", *row) for row in wrap(_options_line(entry.options), cells - 2)]
    last = options[-1]
    if width(last) >= text_at or len(options) > 1:
        return [*options, *hang(blank(text_at), text)]
    return hang(last + blank(text_at - width(last)), text)


def _options_line(options: str) -> Line:
    """Options bold, their values quiet."""
    pieces: list[Span] = []
    end = 0
    for found in _OPTION.finditer(options):
        pieces.append(Span(options[end : found.start()], Role.QUIET))
        pieces.append(Span(found.group(), Role.NAME))
        end = found.end()
    pieces.append(Span(options[end:], Role.QUIET if end else Role.NAME))
    return tuple(piece for piece in pieces if piece.text)


def _note_lines(note: Note, cells: int) -> list[Line]:
    """Items are never broken; they stand under the first one."""
    room = cells - len(note.title) - 2
    rows: list[str] = []
    for item in note.items:
        if rows and len(rows[-1]) + 2 + len(item) <= room:
            rows[-1] += f"  {item}"
        else:
            rows.append(item)
    parts = [part for row in rows for part in wrap(line(row), room)]
    return hang(line(Span(note.title, Role.NAME), "  "), parts)


def _example_lines(examples: Sequence[Example]) -> list[Line]:
    rows: list[Line] = [line(Span("Examples", Role.NAME))]
    for example in examples:
        rows.append(line(f"  {example.wish}:"))
        rows += [line(Span(f"    {text}", Role.NAME)) for text in example.lines]
    return rows


def page_of(command: click.Command, ctx: click.Context) -> Page:
    """The page of a command that brings none: its options in the order of their declaration."""
    entries = [
        Entry(*_described(parameter, ctx))
        for parameter in command.get_params(ctx)
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]
    pieces = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    options = Group("Options", "", tuple(entries))
    return Page(" ".join((command.help or "").split()), pieces, (options,) if entries else ())


def _described(option: click.Option, ctx: click.Context) -> tuple[str, str]:
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    value = "" if option.is_flag or option.count else f" {option.make_metavar(ctx)}"
    text = (option.help or "").rstrip(".")
    if option.show_default and option.default is not None and not option.is_flag:
        text = f"{text} [{option.default}]".strip()
    return f"{names}{value}", text[:1].lower() + text[1:]


def page_text(page: Page) -> str:
    """The page for standard output as it is: its width, encoding and colours."""
    environ = os.environ
    palette = decide_palette(ColorChoice.AUTO, environ=environ, is_terminal=sys.stdout.isatty())
    glyphs = choose_glyphs(encoding=sys.stdout.encoding, ascii_asked=False, environ=environ)
    rows = page_lines(page, cells=_cells_of_terminal(), glyphs=glyphs)
    return "\n".join(paint(row, palette) for row in rows)


def _cells_of_terminal() -> int:
    try:
        return max(os.get_terminal_size(sys.stdout.fileno()).columns, 60)
    except (OSError, ValueError):
        return 80


class PageCommand(click.Command):
    """A click command whose `--help` and `-h` show its page."""

    def __init__(self, name: str | None, *, page: Page | None = None, **attributes: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(name, **attributes)
        self.page = page

    def get_help(self, ctx: click.Context) -> str:
        """What `--help` prints."""
        return page_text(self.page or page_of(self, ctx))


def commands_page(summary: str, commands: Mapping[str, str], *, path: str = "easyscale") -> Page:
    """The page of a group of commands: what it can do, in the order of use."""
    entries = tuple(Entry(name, text) for name, text in commands.items())
    return Page(
        summary,
        f"{path} COMMAND [OPTIONS] [ARGS...]",
        (Group("Commands", "", entries),),
        (Note("More", (f"{path} COMMAND --help", "easyscale --version")),),
    )


class PageGroup(click.Group):
    """A click group whose help is a page: what its commands do, in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were written, which is that of use."""
        del ctx
        return list(self.commands)

    def get_help(self, ctx: click.Context) -> str:
        """What `--help` prints, and what the group prints without a command."""
        texts = {name: each.get_short_help_str(limit=200) for name, each in self.commands.items()}
        page = commands_page(" ".join((self.help or "").split()), texts, path=ctx.command_path)
        return page_text(page)
