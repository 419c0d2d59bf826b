"""The examples can be read in one sitting and name the job that the pages launch."""

from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_under_60_lines_and_names_16_logical_workers(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) < 60
    assert "easyscale.init(logical_workers=16" in text


def test_there_are_two_examples() -> None:
    assert [path.name for path in EXAMPLES] == ["char_gpt.py", "digits.py"]
