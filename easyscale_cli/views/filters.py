"""What a person filters by: a node, a slot, `r13` for a logical rank, or any word; pure."""

import re
from collections.abc import Sequence

from easyscale.job_status import SlotFacts
from easyscale.reports import JobEvent
from easyscale_cli.views.log_lines import LogLine

LONGEST = 64
_RANK = re.compile(r"r(\d+)")


def slots_with(slots: Sequence[SlotFacts], text: str) -> list[SlotFacts]:
    """Those whose place, kind, state or note says it, or that hold the rank."""
    return [slot for slot in slots if _says(_words_of(slot), slot.ranks, text)]


def events_with(events: Sequence[JobEvent], text: str) -> list[JobEvent]:
    """Those whose kind, place or reason says it, or that name the rank."""
    return [event for event in events if _says(_told(event), _ranks_of(event), text)]


def log_lines_with(lines: Sequence[LogLine], text: str) -> list[LogLine]:
    """Those that say it, or that the rank printed."""
    return [
        line for line in lines if _says(line.text, () if line.rank is None else (line.rank,), text)
    ]


def _says(words: str, ranks: Sequence[int], text: str) -> bool:
    if (rank := _RANK.fullmatch(text)) is not None:
        return int(rank[1]) in ranks or re.search(rf"\brank {rank[1]}\b", words) is not None
    return text.casefold() in words.casefold()


def _words_of(slot: SlotFacts) -> str:
    odd = [word for word in ("slow", "hung") if getattr(slot, word)]
    words = [slot.place, slot.kind, slot.state.replace("_", " "), *odd, slot.note or ""]
    return " ".join(words)


def _told(event: JobEvent) -> str:
    place = "/".join(str(event.facts[key]) for key in ("node", "slot") if event.facts.get(key))
    return f"{event.event} {place} {event.reason}".replace("_", " ")


def _ranks_of(event: JobEvent) -> list[int]:
    told: list[int] = []
    for key in ("ranks", "ranks_moved"):
        value = event.facts.get(key)
        told += (
            [each for each in value if isinstance(each, int)] if isinstance(value, tuple) else []
        )
    return told
