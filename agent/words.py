"""How reasons name workers, ranks and numbers: the same words in stream, log, status and JSON."""

import signal
from collections.abc import Iterable, Sequence
from itertools import groupby

from easyscale.model import WorkerId

#: A reason names at most this many places.
MOST_NAMED = 3
#: And brings so much of a text that is not ours.
MOST_LETTERS = 200


def places(workers: Iterable[WorkerId]) -> str:
    """`a/cuda:0, b/cuda:1 and 3 more`."""
    return listed([worker.place for worker in workers])


def listed(names: Sequence[str]) -> str:
    """`a, b and c`, cut after the third."""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:2])} and {len(names) - 2} more"
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return names[0] if names else "nobody"


def ranks(held: Iterable[int]) -> str:
    """`rank 14`, `ranks 0-2,7`."""
    values = sorted(held)
    runs = [
        [value for _, value in run]
        for _, run in groupby(enumerate(values), key=lambda pair: pair[1] - pair[0])
    ]
    spans = ",".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
    return f"rank{'s' if len(values) > 1 else ''} {spans}"


def in_a_line(text: str) -> str:
    """What an exception says, as a part of a reason: line breaks and all beyond 200 letters go."""
    told = " ".join(text.split())
    return told if len(told) <= MOST_LETTERS else f"{told[: MOST_LETTERS - 2].rstrip()} …"


def signal_name(number: int) -> str:
    """`SIGTERM`; a number that has no name is told as such."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def count(number: int, noun: str) -> str:
    """`1 slot`, `1,000 slots`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def becomes(before_s: float, after_s: float) -> str:
    """`156 → 118 ms`, `1.2 → 0.86 s`: three digits, one unit."""
    if before_s < 1:
        return f"{before_s * 1000:.3g} → {after_s * 1000:.3g} ms"
    return f"{before_s:.3g} → {after_s:.3g} s"
