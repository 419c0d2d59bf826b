"""How the command line of `verify` is read, and what it answers with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from easyscale.agent.verify.verified import RunRow, Verified
from easyscale.messages import ScriptTarget
from easyscale_cli import main
from easyscale_cli.commands import verify
from easyscale_cli.output import Output
from easyscale_cli.rehearsing import passed_to_init
from easyscale_cli.views.glyphs import UNICODE
from easyscale_cli.views.style import Line, plain_text
from tests.unit.views import verify_states as states

Asked = tuple[ScriptTarget, int, dict[str, Any]]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text("import easyscale\njob = easyscale.init(logical_workers=16, seed=0)\n")
    return path


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What would have been compared; the answer is that of the second word after the script."""
    asked_for: list[Asked] = []

    def answer(target: ScriptTarget, n: int, *, asked: dict[str, Any], output: Output) -> Verified:
        asked_for.append((target, n, asked))
        verdict = next(iter(target.arguments), "same")
        found: Verified = getattr(states, verdict.upper(), states.SAME)
        return found

    monkeypatch.setattr(verify, "_verify", answer)
    return asked_for


@pytest.mark.parametrize(
    ("words", "steps", "rest"),
    [
        (["train.py"], 30, ()),
        (["train.py", "--steps", "7"], 7, ()),
        (["--steps", "7", "train.py", "--lr", "0.1"], 7, ("--lr", "0.1")),
        (["--steps", "7", "--", "train.py", "--steps", "9"], 7, ("--steps", "9")),
        (["train.py", "same", "--steps", "7", "-x"], 7, ("same", "-x")),
    ],
)
def test_words_that_are_not_ours_are_the_scripts(
    script: Path, answers: list[Asked], words: Sequence[str], steps: int, rest: tuple[str, ...]
) -> None:
    assert main.run(["verify", *words]) == 0
    target, n, asked = answers[0]
    assert (target.path, target.arguments, n) == (str(script), rest, 16)
    assert asked["steps"] == steps


@pytest.mark.parametrize(
    ("name", "code"), [("same", 0), ("differs", 1), ("not_comparable", 1), ("not_finished", 1)]
)
def test_only_the_same_bits_are_exit_0(
    script: Path,
    answers: list[Asked],
    capfd: pytest.CaptureFixture[str],
    name: str,
    code: int,
) -> None:
    assert main.run(["verify", "--json", "train.py", name]) == code
    assert json.loads(capfd.readouterr().out)["verdict"] == getattr(states, name.upper()).verdict


def test_a_script_that_does_not_say_its_logical_workers_needs_the_option(
    script: Path, answers: list[Asked], capfd: pytest.CaptureFixture[str]
) -> None:
    script.write_text("import easyscale\njob = easyscale.init(logical_workers=N)\n")
    assert main.run(["verify", "train.py"]) == 2
    assert "easyscale verify --logical-workers 16 train.py" in capfd.readouterr().err
    assert main.run(["verify", "--logical-workers", "4", "train.py"]) == 0
    assert answers[0][1] == 4


def test_a_script_that_is_not_there_is_named(
    script: Path, answers: list[Asked], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["verify", "trian.py"]) == 2
    assert "train.py" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("easyscale.init(logical_workers=8)", 8),
        ("from easyscale import init\nwith init(seed=1, logical_workers=3): pass", 3),
        ("easyscale.init()", None),
        ("easyscale.init(logical_workers=True)", None),
        ("def broken(", None),
    ],
)
def test_the_number_that_stands_in_init_is_read(
    tmp_path: Path, text: str, found: int | None
) -> None:
    path = tmp_path / "s.py"
    path.write_text(text)
    assert passed_to_init(path) == found


class Terminal:
    """Stands for an Output; keeps what was drawn."""

    as_json = False
    cells = 80

    def __init__(self) -> None:
        self.glyphs = UNICODE
        self.shown: list[str] = []

    def show(self, lines: Sequence[Line]) -> None:
        self.shown += [plain_text(row) for row in lines]

    def show_live(self, row: Line) -> None:
        self.shown.append("live " + plain_text(row))

    def end_live(self) -> None:
        self.shown.append("end")


def test_a_row_is_written_once_and_what_explains_a_difference_is_told_beside_the_table() -> None:
    terminal = Terminal()
    screen = verify._Screen(states.PLANNED, steps=30, output=terminal)  # type: ignore[arg-type]
    fixed, again = states.ROWS[:2]
    started = RunRow(
        name=fixed.name, layout="16", changes="", digest=None, seconds=None, same=None, step=3
    )
    screen.take(started)
    screen.take(fixed)
    screen.take(again)
    screen.take(started)  # the fixed run once more, to look for the cause
    assert "step 3/30" in terminal.shown[1]
    assert terminal.shown[2:6:2] == ["end", "end"]
    assert terminal.shown[-1] == "live looking for the cause: fixed, 1 process, step 3"
