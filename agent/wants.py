"""What wishes, slots and measurements ask of the running generation. Pure."""

from collections.abc import Collection
from dataclasses import dataclass

from easyscale.agent import drafts, gathering
from easyscale.agent.wishes import is_drained, moves_away
from easyscale.model import Commit, SlotRecord, Wish, WorkerId
from easyscale.rendezvous.agreement import JobView


@dataclass(frozen=True, slots=True)
class Wanted:
    """Who stays, who goes, who may come, and what else somebody asks for."""

    stay: tuple[WorkerId, ...]
    #: Members that shall hold nothing, with the word of who asked.
    leave: tuple[WorkerId, ...]
    absent: tuple[WorkerId, ...]
    fresh: tuple[SlotRecord, ...]
    stop: Wish | None
    #: In the order in which they were asked: one that waits holds back none after it.
    migrate: tuple[Wish, ...]
    #: The first wish for a profile, with its id: whoever asks later waits until it is done.
    profile: tuple[str, Wish] | None
    rebalance: bool


def wanted(
    view: JobView,
    base: Commit,
    limit: gathering.NodeLimit,
    *,
    benched: Collection[WorkerId] = (),
) -> Wanted:
    """What everybody who has a say wants of the members; whoever is benched is no newcomer."""
    slots = drafts.slots_of(view)
    leave = tuple(w for w in base.workers if view.is_present(w) and is_drained(view, w, slots))
    absent = tuple(w for w in base.workers if not view.is_present(w))
    wishes = tuple(view.wishes.values())
    return Wanted(
        stay=tuple(w for w in base.workers if w not in leave and w not in absent),
        leave=leave,
        absent=absent,
        fresh=tuple(
            slot
            for slot in gathering.newcomers(view, limit)
            if slot.worker is not None
            and slot.worker not in benched
            and not is_drained(view, slot.worker, slots)
            and not any(moves_away(wish, slot.worker) for wish in wishes)
        ),
        stop=next((wish for wish in wishes if wish.kind == "stop"), None),
        migrate=tuple(w for w in wishes if any(moves_away(w, worker) for worker in base.workers)),
        profile=next((each for each in view.wishes.items() if each[1].kind == "profile"), None),
        rebalance=any(wish.kind == "rebalance" for wish in wishes),
    )
