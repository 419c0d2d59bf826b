"""A wrong command line is told in our words, with the nearest thing that works."""

import click
import pytest

from easyscale_cli.main import cli
from easyscale_cli.views.usage import worded


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    (
        (["lunch"], "easyscale has no command 'lunch'", "easyscale launch"),
        (["bake"], "easyscale has no command 'bake'", "easyscale --help"),
        (["launch"], "easyscale launch needs SCRIPT", "easyscale launch --help"),
        (
            ["launch", "--logical-wokers", "3", "t.py"],
            "easyscale launch has no option --logical-wokers",
            "--logical-workers",
        ),
        (
            ["launch", "--seed", "x", "t.py"],
            "--seed: 'x' is not a valid integer",
            "easyscale launch --help",
        ),
        (["launch", "--seed"], "--seed: requires an argument", "easyscale --help"),
        (
            ["launch", "--progress", "loud", "t.py"],
            "--progress: 'loud' is none of auto, live, plain, none",
            "easyscale launch --help",
        ),
    ),
)
def test_the_value_is_named_and_one_thing_to_try(words: list[str], message: str, hint: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        cli.main(words, prog_name="easyscale", standalone_mode=False)
    told = worded(raised.value)
    assert (told.message, told.hint) == (message, hint)


def told(*words: str) -> str:
    with pytest.raises(click.UsageError) as raised:
        cli.main(list(words), prog_name="easyscale", standalone_mode=False)
    return worded(raised.value, words).message


@pytest.mark.parametrize("spelling", ["--nodes", "--nnodes"])
def test_an_option_is_named_as_it_was_spelled(spelling: str) -> None:
    assert told("launch", spelling, "0", "t.py") == f"{spelling}: 0: a job needs at least 1 node"
    assert told("launch", f"{spelling}=0", "t.py") == f"{spelling}: 0: a job needs at least 1 node"


def test_a_value_from_a_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASYSCALE_SEED", "x")
    monkeypatch.setenv("PET_NNODES", "0")
    assert told("launch", "t.py").startswith(("EASYSCALE_SEED: 'x' is", "PET_NNODES: 0: a"))
    assert told("launch", "--seed", "1", "t.py") == "PET_NNODES: 0: a job needs at least 1 node"
