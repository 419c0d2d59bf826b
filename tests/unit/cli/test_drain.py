"""A drain is done when nothing of the place is left, not when the others are told to go on."""

from msgspec.structs import replace

from easyscale.job_status import Glance, SlotFacts
from easyscale_cli.commands.drain import awaited, has_left
from tests.unit.views import status_states as states


def glance(**slots: str) -> Glance:
    """Slots of nodes a and b, by name: a0, b0."""
    facts = tuple(
        SlotFacts(
            node=name[0],
            slot=f"cpu:{name[1]}",
            kind="cpu",
            state=state,
            ranks=(0, 1) if state == "in_use" else (),
        )
        for name, state in slots.items()
    )
    status = states.two_by_four("")
    return Glance(status=replace(status, slots=facts))


def test_a_worker_that_is_still_there_has_not_left() -> None:
    leaving = glance(a0="in_use", b0="draining")
    assert not has_left(leaving, "b", "")
    assert awaited(leaving, "b", "") == "node b to end its workers"
    assert has_left(glance(a0="in_use", b0="gone"), "b", "")
    assert has_left(glance(a0="in_use"), "b", "")


def test_one_slot_leaves_while_its_neighbour_stays() -> None:
    assert has_left(glance(b0="gone", b1="in_use"), "b", "cpu:0")
    assert not has_left(glance(b0="draining", b1="in_use"), "b", "cpu:0")
    assert awaited(glance(b0="draining", b1="in_use"), "b", "cpu:0") == "b/cpu:0 to end its workers"


def test_the_last_one_ends_the_job_instead() -> None:
    assert not has_left(glance(b0="gone"), "b", "")
