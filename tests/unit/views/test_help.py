"""`--help`: complete, in the order of decisions, at every width."""

from collections.abc import Callable, Iterator

import click
import pytest

from easyscale_cli.commands.launch import command as launch
from easyscale_cli.main import cli, run
from easyscale_cli.views.command_help import ENDS
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.help import (
    PageCommand,
    commands_page,
    page_lines,
    page_of,
)
from easyscale_cli.views.launch_help import LAUNCH_PAGE
from easyscale_cli.views.style import plain_text


@pytest.mark.parametrize("cells", (60, 80, 120))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_the_help_of_launch_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    lines = page_lines(LAUNCH_PAGE, cells=cells, glyphs=ASCII if is_ascii else UNICODE)
    compare_screen("launch-help", lines, cells=cells, is_ascii=is_ascii)


def test_the_help_of_launch_names_every_option_it_takes_and_no_other() -> None:
    taken = {
        name
        for parameter in launch.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
    }
    entries = [entry for group in LAUNCH_PAGE.groups for entry in group.entries]
    named = {name for entry in entries for name in entry.names}
    told = " ".join(entry.text for entry in entries)
    assert named <= taken
    assert [name for name in sorted(taken - named) if f"also {name}" not in told] == []


@pytest.mark.parametrize("word", ("-h", "--help"))
def test_help_is_the_page_and_the_page_alone(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = PageCommand(
        "launch", page=LAUNCH_PAGE, context_settings={"help_option_names": ["-h", "--help"]}
    )
    with pytest.raises(SystemExit) as ending:
        command.main([word])
    assert ending.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Train SCRIPT on the devices there are now")
    assert "\x1b" not in shown


def test_a_command_without_a_page_gets_one_made_of_its_options() -> None:
    command = PageCommand(
        "jobs",
        help="List the jobs.",
        params=[
            click.Option(["--json", "as_json"], is_flag=True, help="One JSON object."),
            click.Option(["--every", "-e"], default=2, show_default=True, help="Seconds between."),
            click.Option(["--secret"], hidden=True),
        ],
    )
    page = page_of(command, click.Context(command, info_name="jobs"))
    rows = [plain_text(row) for row in page_lines(page, cells=80, glyphs=UNICODE)]
    assert rows == [
        "List the jobs.",
        "",
        "Usage: jobs [OPTIONS]",
        "",
        "Options",
        "  --json                         one JSON object",
        "  -e, --every INTEGER            seconds between [2]",
        "  --help                         show this message and exit",
        "",
        "More  jobs --help-all: 1 more option",
    ]
    whole = page_of(command, click.Context(command, info_name="jobs"), is_whole=True)
    assert "--secret" in {name for group in whole.groups for e in group.entries for name in e.names}


def commands_of(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{path} {name}")


EVERY = dict(commands_of(cli, "easyscale"))


@pytest.mark.parametrize("path", EVERY)
def test_every_command_closes_its_page_with_examples_of_itself(path: str) -> None:
    command = EVERY[path]
    page = command.page if isinstance(command, PageCommand) and command.page else None
    examples = page.examples if page else ENDS[path][1]
    assert examples
    assert any(path in text for example in examples for text in example.lines)


def test_there_are_no_examples_of_commands_that_are_not_there() -> None:
    assert set(ENDS) <= set(EVERY)


@pytest.mark.parametrize("path", EVERY)
def test_every_page_fits_eighty_columns_and_tells_every_option(path: str) -> None:
    command = EVERY[path]
    parent: click.Context | None = None
    for word, each in zip(path.split(), [cli, *(EVERY[p] for p in prefixes(path))], strict=True):
        parent = click.Context(each, info_name=word, parent=parent)
    assert parent is not None
    page = page_of(command, parent, is_whole=True)
    rows = [plain_text(row) for row in page_lines(page, cells=80, glyphs=ASCII)]
    assert [row for row in rows if len(row) > 80 and not row.startswith("    ")] == []
    if path == "easyscale launch":
        return  # it has a page of its own
    usual = page_of(command, parent)
    silent = [e.options for group in usual.groups for e in group.entries if not e.text]
    assert silent == []


def prefixes(path: str) -> list[str]:
    words = path.split()
    return [" ".join(words[:count]) for count in range(2, len(words) + 1)]


def test_all_help_is_the_pages_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help-all"]) == 0
    shown = capsys.readouterr().out
    for path in EVERY:
        assert f"Usage: {path} " in shown


def test_the_commands_are_listed_with_what_they_do() -> None:
    page = commands_page("Elastic training.", {"launch": "train a script", "jobs": "list jobs"})
    rows = [plain_text(row) for row in page_lines(page, cells=80, glyphs=UNICODE)]
    assert rows[4:7] == [
        "Commands",
        "  launch                         train a script",
        "  jobs                           list jobs",
    ]
