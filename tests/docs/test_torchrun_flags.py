"""The table of torchrun's flags: made from both parsers, so that it cannot say what is not so."""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from torch.distributed.run import get_args_parser

from easyscale_cli.commands.launch import command
from easyscale_cli.torchrun_flags import FLAGS, Flag, State, told

PAGE = Path(__file__).parent.parent.parent / "docs" / "torchrun.md"
BEGIN, END = "<!-- the flags begin: written by the test that reads both parsers -->", "<!-- end -->"
#: Flags of torchrun without a variable of their own.
NO_VARIABLE = {"logs_specs", "numa_binding"}


def torchruns() -> Iterator[argparse.Action]:
    for action in get_args_parser()._actions:
        if action.option_strings and action.dest != "help":
            yield action


def option_of(name: str) -> click.Option:
    return next(
        option
        for option in command.params
        if isinstance(option, click.Option) and name in option.opts
    )


def flag_of(action: argparse.Action) -> Flag:
    return next(flag for flag in FLAGS if flag.name in action.option_strings)


def test_every_flag_of_torchrun_has_its_line_and_none_is_invented() -> None:
    names = [flag.name for flag in FLAGS]
    assert sorted(names) == sorted(set(names))
    theirs = [[o for o in a.option_strings if o in names] for a in torchruns()]
    assert all(len(found) == 1 for found in theirs), theirs
    assert sorted(found[0] for found in theirs) == sorted(names)


@pytest.mark.parametrize("action", tuple(torchruns()), ids=lambda action: action.dest)
def test_ours_takes_every_spelling_and_the_variable(action: argparse.Action) -> None:
    flag = flag_of(action)
    option = option_of(flag.name)
    assert option.name == flag.dest
    for spelling in action.option_strings:
        assert spelling.replace("_", "-") in option.opts
    if action.dest not in NO_VARIABLE:
        assert f"PET_{action.dest.upper()}" in (option.envvar or ())
    assert option.is_flag == (action.nargs == 0)


def row(action: argparse.Action) -> str:
    flag = flag_of(action)
    short = [o for o in action.option_strings if o[:2] != "--"]
    names = ", ".join(f"`{name}`" for name in [*short, flag.name])
    default = action.default
    if isinstance(default, str) and default.startswith("~"):
        default = ""
    shown = "" if default in (None, "", [], False) else f"`{default}`"
    elastic = told(flag.elastic)
    return f"| {names} | {shown} | {told(flag.plain)} | {elastic} |"


def table() -> str:
    rows = "\n".join(row(action) for action in torchruns())
    head = "| flag | torchrun's default | plain and packed | elastic |\n|---|---|---|---|"
    return f"{head}\n{rows}"


def test_the_page_shows_the_state_of_each_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    made = f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"
    if os.environ.get("EASYSCALE_REGENERATE"):
        PAGE.write_text(made)
    assert made == PAGE.read_text()


def test_a_reason_stands_wherever_a_flag_does_not_work() -> None:
    for flag in FLAGS:
        for use in (flag.plain, flag.elastic):
            assert use.state is State.WORKS or use.why, flag.name
