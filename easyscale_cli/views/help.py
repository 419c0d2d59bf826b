"""`--help` as a person decides: groups in that order, defaults in brackets, examples last.

A page is a value; a command without one of its own gets a page made of its options.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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
_HELP_ALL: Final = "help_all"
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
    sections = [wrap(line(glyphs.prose(part)), cells) for part in page.summary.split("\n\n")]
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


def page_of(command: click.Command, ctx: click.Context, *, is_whole: bool = False) -> Page:
    """The page of a command that brings none: its options in the order of their declaration.

    A whole page has the rarely used ones too.
    """
    from easyscale_cli.views.command_help import ENDS

    options = [each for each in command.get_params(ctx) if isinstance(each, click.Option)]
    shown = [each for each in options if is_whole or not each.hidden]
    entries = tuple(Entry(*_described(each, ctx)) for each in shown)
    pieces = " ".join([ctx.command_path, *command.collect_usage_pieces(ctx)])
    notes, examples = ENDS.get(ctx.command_path, ((), ()))
    rare = [each for each in options if each.hidden and each.name != _HELP_ALL]
    if rare and not is_whole:
        more = f"{len(rare)} more option{'s' if len(rare) > 1 else ''}"
        notes = (*notes, Note("More", (f"{ctx.command_path} --help-all: {more}",)))
    return Page(
        paragraphs(command.help),
        pieces,
        (Group("Options", "", entries),) if entries else (),
        notes,
        examples,
    )


def paragraphs(text: str | None) -> str:
    """A docstring's paragraphs, each on one line."""
    parts = re.split(r"\n\s*\n", (text or "").strip())
    return "\n\n".join(" ".join(part.split()) for part in parts)


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
    """A click command whose `--help` and `-h` show its page, and `--help-all` all of it."""

    def __init__(self, name: str | None, *, page: Page | None = None, **attributes: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(name, **attributes)
        self.page = page
        if all("--help-all" not in parameter.opts for parameter in self.params):
            self.params.append(help_all_option(_print_whole_page))

    def get_help(self, ctx: click.Context) -> str:
        """What `--help` prints."""
        return page_text(self.page or page_of(self, ctx))


def help_all_option(
    callback: Callable[[click.Context, click.Parameter, bool], None],
) -> click.Option:
    """`--help-all`, which is answered before anything else is read."""
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=True,
        help="This page with all options.",
        callback=callback,
    )


def _print_whole_page(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's own
    del parameter
    if value and not ctx.resilient_parsing:
        click.echo(page_text(page_of(ctx.command, ctx, is_whole=True)))
        ctx.exit()


def commands_page(
    summary: str,
    commands: Mapping[str, str],
    *,
    path: str = "easyscale",
    options: Page | None = None,
) -> Page:
    """The page of a group of commands: what it can do, in the order of use.

    `options` is the page of what the group does by itself.
    """
    entries = tuple(Entry(name, text) for name, text in commands.items())
    own = options or Page("", f"{path} COMMAND [OPTIONS] [ARGS...]")
    more = Note("More", (f"{path} COMMAND --help", f"{path} --help-all", "easyscale --version"))
    return Page(
        summary,
        own.usage,
        (Group("Commands", "", entries), *own.groups),
        (*own.notes, more),
        own.examples,
    )


class PageGroup(click.Group):
    """A click group whose help is a page: what its commands do, in the order of use."""

    def __init__(self, name: str | None = None, **attributes: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(name, **attributes)
        self.params.append(help_all_option(print_all_pages))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they were written, which is that of use."""
        return list(self.commands) or super().list_commands(ctx)

    def get_help(self, ctx: click.Context) -> str:
        """What `--help` prints, and what the group prints without a command."""
        texts = {name: each.get_short_help_str(limit=200) for name, each in self.commands.items()}
        own = page_of(self, ctx)
        return page_text(
            commands_page(paragraphs(self.help), texts, path=ctx.command_path, options=own)
        )


def print_all_pages(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's own
    """Print the pages of a group and of every command in it, with all options."""
    del parameter
    if value and not ctx.resilient_parsing:
        click.echo("\n\n".join(_all_pages(ctx.command, ctx)))
        ctx.exit()


def _all_pages(command: click.Command, ctx: click.Context) -> Iterator[str]:
    if not isinstance(command, click.Group):
        page = command.page if isinstance(command, PageCommand) else None
        yield page_text(page or page_of(command, ctx, is_whole=True))
        return
    yield command.get_help(ctx)
    for name in command.list_commands(ctx):
        each = command.get_command(ctx, name)
        if each is not None:
            yield from _all_pages(each, each.context_class(each, info_name=name, parent=ctx))
