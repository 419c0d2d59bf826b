"""Golden screens: kept as text files, written anew when EASYSCALE_REGENERATE is set."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from easyscale_cli.views.layout import width
from easyscale_cli.views.style import Line, plain_text

GOLDEN = Path(__file__).parent / "golden"

CompareScreen = Callable[..., None]


@pytest.fixture
def compare_screen() -> CompareScreen:
    """Compare a screen with its golden file, and hold it to what is true of every screen."""

    def compare(name: str, lines: Sequence[Line], *, cells: int, is_ascii: bool) -> None:
        texts = [plain_text(row) for row in lines]
        for row, text in zip(lines, texts, strict=True):
            is_digest = text.strip().removeprefix("digest ").isalnum() and len(text) >= 64
            assert width(row) <= cells or is_digest, f"wider than {cells}: {text!r}"
            assert text == text.rstrip(), f"ends in a space: {text!r}"
            assert text.isprintable(), f"holds a control character: {text!r}"
            assert text.isascii() or not is_ascii, f"not ASCII: {text!r}"
        path = GOLDEN / f"{name}-{cells}{'-ascii' if is_ascii else ''}.txt"
        shown = "\n".join(texts) + "\n"
        if os.environ.get("EASYSCALE_REGENERATE"):
            path.write_text(shown, encoding="utf-8")
        assert shown == path.read_text(encoding="utf-8")

    return compare
