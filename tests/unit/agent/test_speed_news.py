"""What is told of slots that were slow: that they are well again, and only if they are."""

import pytest
from msgspec.structs import replace as changed

from easyscale.agent import news
from easyscale.agent.actions import Announce
from easyscale.agent.settings import Identity
from easyscale.agent.state import Now, State, Turn
from easyscale.balance import SlowSlot, SpeedRecord
from easyscale.rendezvous.view import JobView
from easyscale.reports import EventKind
from tests.support.views import KEYS, Job, commit, launch_settings, number, worker

A, B = worker("a"), worker("b")
SLOW = SlowSlot(
    worker=A, since_step=4, micro_step_s=0.2, ratio=2.0, emptied=False, reason="2 x its kind"
)
RECORD = SpeedRecord(generation=number(1), planned_at="", planned_at_step=0, slow=(SLOW,))


def both() -> Job:
    job = Job().leads().node("a", ("in_use", 0.2)).node("b", ("in_use", 0.1))
    return job.committed(commit(1, {A: [0, 1], B: [2, 3]}))


def told(former: JobView, view: JobView) -> list[EventKind]:
    settings = launch_settings()
    own = Identity(node="b", incarnation="b-1", boot_id="b", host="b", address="h:1")
    state = State(settings=settings, identity=own, keys=KEYS, began_s=0.0, view=view)
    turn = Turn(state, Now(1.0), "test")
    news.tell_speeds(turn, former, view)
    return [each.event.event for each in turn.actions if isinstance(each, Announce)]


@pytest.mark.parametrize(
    ("left", "expected"), [(False, [EventKind.RECOVERED_SPEED]), (True, [])], ids=["well", "left"]
)
def test_a_slow_slot_that_has_left_is_not_said_to_be_well_again(
    *, left: bool, expected: list[EventKind]
) -> None:
    former = both().put(KEYS.speed, RECORD).view()
    job = both().put(KEYS.speed, changed(RECORD, slow=()))
    if left:  # its process takes a moment to end
        job.committed(commit(2, {B: [0, 1, 2, 3]}))
    assert told(former, job.view()) == expected
