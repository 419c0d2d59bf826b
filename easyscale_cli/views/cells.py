"""How many terminal cells a text takes, and cutting it to a number of cells.

Only prose is cut, at its end; a node's name loses its front, since ends differ and fronts do not.
"""

import unicodedata
from functools import lru_cache

_WIDE = frozenset("WF")
_NO_CELL = frozenset({"Mn", "Me", "Cf"})


def width_of(text: str) -> int:
    """Cells that a terminal gives to `text`, which holds no control characters."""
    if text.isascii():
        return len(text)
    return sum(_width_of_character(character) for character in text)


@lru_cache(maxsize=1_024)
def _width_of_character(character: str) -> int:
    if unicodedata.east_asian_width(character) in _WIDE:
        return 2
    return 0 if unicodedata.category(character) in _NO_CELL else 1


def head(text: str, cells: int) -> str:
    """The longest beginning of `text` that fits into `cells`."""
    if text.isascii():
        return text[: max(cells, 0)]
    taken = 0
    for index, character in enumerate(text):
        taken += _width_of_character(character)
        if taken > cells:
            return text[:index]
    return text


def tail(text: str, cells: int) -> str:
    """The longest end of `text` that fits into `cells`."""
    return head(text[::-1], cells)[::-1]


def cut_end(text: str, cells: int, mark: str) -> str:
    """`text` in at most `cells`; what is missing at its end is told by `mark`."""
    if width_of(text) <= cells:
        return text
    return head(text, cells - width_of(mark)).rstrip() + mark if cells >= width_of(mark) else ""


def cut_front(text: str, cells: int, mark: str) -> str:
    """`text` in at most `cells`; what is missing at its front is told by `mark`."""
    if width_of(text) <= cells:
        return text
    return mark + tail(text, cells - width_of(mark)) if cells >= width_of(mark) else ""
