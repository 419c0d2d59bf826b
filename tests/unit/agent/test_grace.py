"""The grace of a signal bounds everything: the workers, what is waited for, and the farewell."""

import pytest

from easyscale.agent import actions, events
from easyscale.agent.leaving import FAREWELL_S
from easyscale.messages import Drained
from easyscale.model import Mode
from easyscale.reports import EventKind
from tests.support.views import Job, commit, launch_settings, number
from tests.unit.agent.test_machine import OTHER, W0, Agent, of, said

GRACE_S = 3.0


def signalled(*, away: bool = False) -> Agent:
    """One worker of two at work; SIGTERM came at 100 s."""
    agent = Agent(launch_settings(grace_s=GRACE_S), slots=1).running(members=(W0, OTHER))
    if away:
        agent.take(events.StoreAway(reason="no answer"))
    agent.take(events.Signalled(number=15))
    return agent


def ends(done: list[actions.AgentAction]) -> list[float | None]:
    return [action.farewell_s for action in of(done, actions.Exit)]


def test_where_the_grace_has_killed_the_workers_little_is_left_for_a_farewell() -> None:
    agent = signalled(away=True)
    agent.now += GRACE_S
    assert [kill.worker for kill in of(agent.tick(), actions.KillWorker)] == [W0]
    agent.now += 0.1
    agent.tick()
    assert [kill.worker for kill in of(agent.done, actions.KillWorker)] == [W0], "once"
    assert ends(agent.exits(W0, signal=9)) == [FAREWELL_S]


def test_who_drained_early_has_the_rest_of_the_grace_for_a_farewell() -> None:
    agent = signalled()
    agent.view(Job().committed(commit(2, [OTHER], mode=Mode.BOUNDARY)))
    agent.now += 1.0
    agent.take(said(W0, Drained(generation=number(2), step=8)))
    assert ends(agent.exits(W0, code=0)) == [pytest.approx(GRACE_S - 1.0)]
    assert agent.announced[-1].event is EventKind.LEFT
    assert agent.announced[-1].step == 8, "not what the store knew last"


def test_an_outcome_is_waited_for_no_longer_than_the_grace() -> None:
    agent = Agent(launch_settings(grace_s=GRACE_S), slots=1).running()
    agent.take(events.Signalled(number=15))
    agent.take(said(W0, Drained(generation=number(2), step=8)))
    agent.now += GRACE_S - 0.1
    assert ends([*agent.exits(W0, code=0), *agent.tick()]) == []
    agent.now += 0.1
    assert ends(agent.tick()) == [FAREWELL_S]


def test_a_second_signal_leaves_little_time_for_a_farewell() -> None:
    agent = signalled()
    agent.now += 1.0
    agent.take(events.Signalled(number=15))
    assert ends(agent.exits(W0, signal=9)) == [FAREWELL_S]


def test_who_leaves_without_a_signal_takes_its_time() -> None:
    agent = Agent(slots=1).running(members=(W0, OTHER))
    agent.view(Job().committed(commit(1, [W0, OTHER])).wish("drain", "a", by="ann"))
    agent.view(Job().committed(commit(2, [OTHER], mode=Mode.BOUNDARY)))
    agent.take(said(W0, Drained(generation=number(2), step=8)))
    assert ends(agent.exits(W0, code=0)) == [None]
