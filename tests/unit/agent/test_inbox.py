"""What the loop takes next: reports with the tick, everything else at once and in order."""

import pytest

from easyscale.agent.events import (
    AgentEvent,
    Deposed,
    Ticked,
    WorkerExited,
    WorkerSaid,
    ZygoteLost,
)
from easyscale.agent.inbox import BUSY_TICK_S, IDLE_TICK_S, Inbox
from easyscale.errors import StoreRefused
from easyscale.messages import Finished, StepReport
from easyscale.model import Position, WorkerId
from easyscale.pulse import Beat, Phase

W0, W1 = (WorkerId("a", "a-boot-1", f"cpu:{n}", 1) for n in range(2))
NEWS = Deposed(reason="the lease ended")
BEAT = Beat(phase=Phase.EXCHANGE, position=3, step=3, rank=None, micro_steps=6, since_s=1.0)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inbox(clock: Clock) -> Inbox:
    return Inbox(clock=clock)


def beats() -> dict[WorkerId, Beat]:
    return {W0: BEAT}


def said(worker: WorkerId, step: int) -> WorkerSaid:
    report = StepReport(
        position=Position(step),
        step=step,
        steps=None,
        epoch=0,
        epochs=None,
        metrics={},
        step_s=None,
        micro_step_s=None,
        exchange_wait_s=None,
        data_wait_s=None,
        samples_per_step=None,
    )
    return WorkerSaid(worker=worker, message=report)


def finished(worker: WorkerId) -> WorkerSaid:
    message = Finished(digest="d", step=9, position=Position(9), is_main=True, metrics={}, epochs=1)
    return WorkerSaid(worker=worker, message=message)


def steps_in(event: AgentEvent) -> dict[WorkerId, int]:
    assert isinstance(event, Ticked)
    return {worker: report.step for worker, report in event.reports.items()}


def test_reports_wait_for_the_tick_and_the_newest_of_each_worker_is_in_it(
    inbox: Inbox, clock: Clock
) -> None:
    for event in (said(W0, 1), said(W1, 1), said(W0, 2)):
        inbox.put(event)
    inbox.put(NEWS)
    assert inbox.take(beats, is_busy=True) == NEWS
    clock.now_s += BUSY_TICK_S
    ticked = inbox.take(beats, is_busy=True)
    assert steps_in(ticked) == {W0: 2, W1: 1}
    assert isinstance(ticked, Ticked)
    assert ticked.beats == {W0: BEAT}
    clock.now_s += BUSY_TICK_S
    assert steps_in(inbox.take(beats, is_busy=True)) == {}


@pytest.mark.parametrize(
    "last",
    [
        finished(W0),
        WorkerExited(worker=W0, pid=7, exit_code=1, signal=None, last_words=""),
        ZygoteLost(reason="SIGKILL"),
    ],
)
def test_what_a_worker_says_last_comes_after_its_reports(inbox: Inbox, last: AgentEvent) -> None:
    inbox.put(said(W0, 8))
    inbox.put(last)
    assert steps_in(inbox.take(beats, is_busy=True)) == {W0: 8}
    assert inbox.take(beats, is_busy=True) == last


def test_without_a_report_nothing_is_put_off(inbox: Inbox) -> None:
    inbox.put(finished(W0))
    assert inbox.take(beats, is_busy=True) == finished(W0)


@pytest.mark.parametrize(("is_busy", "every_s"), [(True, BUSY_TICK_S), (False, IDLE_TICK_S)])
def test_a_tick_that_is_due_comes_before_any_number_of_events(
    inbox: Inbox, clock: Clock, *, is_busy: bool, every_s: float
) -> None:
    taken: list[AgentEvent] = []
    for number in range(40):
        inbox.put(Deposed(reason=str(number)))
        inbox.put(said(W0, number))
    for _ in range(45):
        taken.append(inbox.take(beats, is_busy=is_busy))
        clock.now_s += every_s / 4
    ticks = [number for number, event in enumerate(taken) if isinstance(event, Ticked)]
    assert ticks[:3] == [4, 8, 12]
    assert [event for event in taken if isinstance(event, Deposed)] == [
        Deposed(reason=str(number)) for number in range(len(taken) - len(ticks))
    ]


def test_a_moment_that_the_machine_waits_for_gives_a_tick_behind_what_lies_here(
    inbox: Inbox, clock: Clock
) -> None:
    inbox.put(NEWS)
    assert inbox.take(beats, is_busy=False, wake_s=clock.now_s) == NEWS
    assert steps_in(inbox.take(beats, is_busy=False, wake_s=clock.now_s)) == {}


def test_a_failure_of_a_thread_is_raised_in_the_loop(inbox: Inbox) -> None:
    inbox.fail(StoreRefused("no"))
    with pytest.raises(StoreRefused, match="no"):
        inbox.take(beats, is_busy=True)
