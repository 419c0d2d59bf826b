"""Which slots this node offers, and how that changes: found, asked for, withdrawn. Pure.

A slot that goes keeps its worker until a boundary; a new one gets a worker that joins by itself.
"""

import msgspec
from msgspec.structs import replace

from easyscale.agent import crew, news, respawns
from easyscale.agent.actions import FindSlots, KillWorker, Transact, Write
from easyscale.agent.events import DeviceTroubled, SlotsFound, SlotsRefused
from easyscale.agent.hardware.gpu_health import Trouble
from easyscale.agent.state import Phase, Stage, Turn
from easyscale.model import Wish, encode
from easyscale.rendezvous.agreement import MOST_TIDIED
from easyscale.rendezvous.store import Delete
from easyscale.reports import EventKind


def heard(turn: Turn, event: SlotsFound | SlotsRefused | DeviceTroubled) -> None:
    """What the devices of this node came to."""
    match event:
        case DeviceTroubled():
            _troubled(turn, event)
        case SlotsFound():
            _found(turn, event)
        case SlotsRefused():
            _refuse(turn, event)


def _found(turn: Turn, event: SlotsFound) -> None:
    """New slots get workers; those that went shall hold nothing."""
    if event.wish_id:
        _answer(turn, event.wish_id)
    if turn.state.stage is not Stage.RUNNING:
        return  # all of them are withdrawn, and new ones would not be used
    names = {slot.name for slot in event.slots}
    went = frozenset(slot.name for slot in turn.state.slots) - names
    kept = [slot for slot in turn.state.slots if slot.name in went & turn.state.workers.keys()]
    turn.set(
        slots=tuple(sorted((*event.slots, *kept))),
        withdrawn=turn.state.withdrawn - frozenset(names),
        why_withdrawn={s: why for s, why in turn.state.why_withdrawn.items() if s not in names},
    )
    for name in sorted(went):
        respawns.lift_quarantine(turn, name)  # a slot that is given again has been looked at
    if went:
        withdraw(turn, went, event.reason or "the device went away")


def withdraw(turn: Turn, slots: frozenset[str], by: str) -> None:
    """These slots shall hold nothing: members leave at a boundary, the others at once."""
    fresh = slots - turn.state.withdrawn
    turn.set(
        withdrawn=turn.state.withdrawn | slots,
        why_withdrawn={**turn.state.why_withdrawn, **dict.fromkeys(sorted(fresh), by)},
    )
    turn.because(f"withdraws {', '.join(sorted(slots))}", by)
    for worker in tuple(turn.state.workers.values()):
        if worker.id.slot in slots and worker.phase in (
            Phase.FORKING,
            Phase.STARTING,
            Phase.STANDBY,
        ):
            crew.stop(turn, worker, f"slot withdrawn: {by}")


def _troubled(turn: Turn, event: DeviceTroubled) -> None:
    """Tell it; a device in need of a reset is emptied, what is lost computes no more."""
    slots = frozenset(slot.name for slot in turn.state.slots if slot.uuid in event.uuids)
    fresh = slots - turn.state.withdrawn
    follows = {
        Trouble.NONE: "",
        Trouble.TELL: "",
        Trouble.DRAIN: "; the slot is emptied at the next step, the GPU needs a reset",
        Trouble.LOST: "; the slot is lost",
    }[event.trouble]
    for name in sorted(slots if event.trouble is Trouble.TELL else fresh):
        news.announce(turn, EventKind.NOTE, f"{turn.state.node}/{name}: {event.reason}{follows}")
    if event.trouble in (Trouble.DRAIN, Trouble.LOST) and fresh:
        withdraw(turn, fresh, event.reason)
    if event.trouble is Trouble.LOST:
        for worker in tuple(turn.state.workers.values()):
            if worker.id.slot in slots and worker.killed_s is None:
                turn.put_worker(replace(worker, stopped=event.reason, killed_s=turn.now.s))
                turn.do(KillWorker(worker=worker.id, reason=event.reason))


def seek(turn: Turn, wish_id: str, wish: Wish) -> None:
    """Find what the wish names, once; one that is done goes, now or with the next view."""
    state = turn.state
    if wish_id in state.sought_done:
        _answer(turn, wish_id)
    elif wish_id not in state.sought and state.stage is Stage.RUNNING:
        turn.set(sought=state.sought | {wish_id})
        turn.do(FindSlots(devices=wish.target, wish_id=wish_id, by=wish.by or "a wish"))


def _answer(turn: Turn, wish_id: str) -> None:
    """The wish is done: it leaves the store, and those refused before it go with it."""
    state = turn.state
    refused = [
        each
        for each, wish in sorted(state.view.wishes.items())
        if wish.refused and wish.node == state.node and each != wish_id
    ]
    done = (wish_id, *refused[:MOST_TIDIED])
    deletes = tuple(Delete(state.keys.wish(each)) for each in done)
    turn.set(sought_done=state.sought_done | {wish_id})
    turn.do(Transact(name=f"answered {wish_id}", compares=(), operations=deletes))


def _refuse(turn: Turn, event: SlotsRefused) -> None:
    """Say in the wish why it cannot be done, for whoever asked."""
    wish = turn.state.view.wishes.get(event.wish_id)
    turn.because("other devices refused", event.reason)
    if wish is not None:
        value = encode(msgspec.structs.replace(wish, refused=event.reason))
        key = turn.state.keys.wish(event.wish_id)
        turn.do(Write(key=key, value=value, leased=False))
