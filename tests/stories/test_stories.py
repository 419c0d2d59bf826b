"""Every story in this folder happens exactly as it is written."""

from pathlib import Path

import pytest

from tests.support.stories import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_the_story_happens_as_it_is_written(path: Path) -> None:
    expected, actual = play(path)
    assert actual == expected


def test_the_page_of_stories_names_every_one() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "stories.md").read_text()
    assert [path.stem for path in STORIES if f"`{path.stem}`" not in page] == []
