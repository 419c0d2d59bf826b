"""How a script ends, and who is told."""

import sys
from pathlib import Path

import pytest

from easyscale.messages import ScriptTarget
from easyscale.model import GenerationNumber
from easyscale.runtime import script
from easyscale.runtime.failure import describe_failure


@pytest.fixture(autouse=True)
def own_main(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script becomes `__main__` of this very process."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))


def run(path: Path, text: str) -> tuple[int, list[BaseException], list[SystemExit]]:
    path.write_text(text)
    failed: list[BaseException] = []
    exited: list[SystemExit] = []
    code = script.run(ScriptTarget(path=str(path)), failed=failed.append, exited=exited.append)
    return code, failed, exited


def test_an_interrupt_is_told_with_its_line_and_ends_as_python_would(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.py"
    code, failed, exited = run(path, "x = 1\nraise KeyboardInterrupt\n")
    assert (code, len(failed), exited) == (130, 1, [])
    assert "KeyboardInterrupt" in capsys.readouterr().err
    told = describe_failure(failed[0], rank=2, step=7, generation=GenerationNumber(1, 1))
    assert (told.type, told.text) == ("KeyboardInterrupt", "")
    assert (told.file, told.line, told.rank) == (str(path), 2, 2)


@pytest.mark.parametrize(
    ("text", "code", "failures", "exits"),
    [
        ("pass", 0, 0, 0),
        ("raise ValueError('no')", 1, 1, 0),
        ("import sys; sys.exit(3)", 3, 0, 1),
        ("import sys; sys.exit()", 0, 0, 1),
    ],
)
def test_only_an_exception_is_told_as_a_failure(
    tmp_path: Path, text: str, code: int, failures: int, exits: int
) -> None:
    ended, failed, exited = run(tmp_path / "train.py", text)
    assert (ended, len(failed), len(exited)) == (code, failures, exits)
