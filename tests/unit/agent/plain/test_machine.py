"""What a plain agent does about what happens to it."""

import signal
from collections.abc import Sequence
from typing import TypeVar

import pytest

from easyscale.agent.plain import actions, events, machine
from easyscale.agent.plain.state import Phase
from easyscale.agent.plain.values import Fault, Outcome, ReportState, Round, Sight
from tests.support.plain import Agent, fault, offer, round_of, settings, terms

A = offer("a")


def running(**changes: object) -> Agent:
    """An agent of one node whose two workers run."""
    agent = Agent(settings(**changes))
    agent.feed(events.Met(store="", seconds=0.0, address=""))
    (write,) = agent.feed(events.Seen(sight=Sight(offers=(A,)), leads=True))
    assert isinstance(write, actions.Write)
    assert isinstance(write.value, Round)
    done = agent.feed(events.Seen(sight=Sight(offers=(A,), round=write.value), leads=False))
    assert [type(action) for action in done] == [actions.StartWorkers, actions.Announce]
    return agent


def ends(agent: Agent, local_rank: int, failed: Fault | None = None) -> list[object]:
    assert agent.state.round is not None
    number = agent.state.round.number
    return list(agent.feed(events.WorkerExited(round=number, local_rank=local_rank, fault=failed)))


T = TypeVar("T")


def of(done: Sequence[object], kind: type[T]) -> list[T]:
    return [action for action in done if isinstance(action, kind)]


def test_workers_that_all_end_well_are_reported_done() -> None:
    agent = running()
    assert not of(ends(agent, 0), actions.Publish)
    (published,) = of(ends(agent, 1), actions.Publish)
    assert published.report.state is ReportState.DONE
    assert agent.state.phase is Phase.MEETING


def test_the_outcome_ends_the_agent_with_its_code() -> None:
    agent = running()
    ends(agent, 0)
    ends(agent, 1)
    sight = Sight(offers=(A,), outcome=Outcome(exit_code=0, reason=""))
    done = agent.feed(events.Seen(sight=sight, leads=False))
    assert isinstance(done[-1], actions.Exit)
    assert done[-1].code == 0


def test_after_a_failure_the_others_get_sigterm_and_then_the_end_by_force() -> None:
    agent = running(shutdown_timeout_s=5.0)
    assert ends(agent, 1, fault(1)) == []
    done = list(agent.feed(events.Ticked(), after_s=0.2))
    assert of(done, actions.SignalWorkers) == [
        actions.SignalWorkers(local_ranks=(0,), number=signal.SIGTERM)
    ]
    (published,) = of(done, actions.Publish)
    assert not published.report.is_over
    assert machine.deadline(agent.state) == pytest.approx(5.2)
    assert of(list(agent.feed(events.Ticked(), after_s=5.1)), actions.KillWorkers) == [
        actions.KillWorkers(local_ranks=(0,))
    ]
    (last,) = of(ends(agent, 0, fault(0, signal=9)), actions.Publish)
    assert last.report.is_over
    assert last.report.fault == fault(1)


def test_a_victim_waits_for_the_failure_behind_it() -> None:
    agent = running()
    ends(agent, 0, fault(0, is_victim=True))
    assert agent.feed(events.Ticked(), after_s=0.5) == []
    (published,) = of(ends(agent, 1, fault(1)), actions.Publish)
    assert published.report.fault == fault(1)
    assert published.report.failed == 1


def test_all_that_failed_by_themselves_are_counted() -> None:
    agent = running()
    ends(agent, 0, fault(0))
    (published,) = of(ends(agent, 1, fault(1)), actions.Publish)
    assert published.report.failed == 2


def test_a_stop_signal_is_passed_on_as_it_is_and_ends_with_its_number() -> None:
    agent = running()
    done = list(agent.feed(events.Signalled(number=signal.SIGINT)))
    assert of(done, actions.SignalWorkers) == [
        actions.SignalWorkers(local_ranks=(0, 1), number=signal.SIGINT)
    ]
    ends(agent, 0)
    last = ends(agent, 1, fault(1, signal=2))
    assert of(last, actions.Exit)[0].code == 130
    assert not of(last, actions.ReportCause)


def test_a_second_stop_signal_kills() -> None:
    agent = running()
    agent.feed(events.Signalled(number=signal.SIGTERM))
    done = list(agent.feed(events.Signalled(number=signal.SIGTERM), after_s=1.0))
    assert done == [actions.KillWorkers(local_ranks=(0, 1))]


def test_a_signal_that_reaches_the_process_and_its_group_is_one() -> None:
    agent = running()
    agent.feed(events.Signalled(number=signal.SIGTERM))
    assert list(agent.feed(events.Signalled(number=signal.SIGTERM), after_s=0.1)) == []


def test_another_signal_is_passed_on_and_the_job_goes_on() -> None:
    agent = running()
    done = list(agent.feed(events.Signalled(number=signal.SIGUSR1)))
    assert done == [actions.SignalWorkers(local_ranks=(0, 1), number=signal.SIGUSR1)]
    assert agent.state.phase is Phase.RUNNING


def test_a_signal_before_any_worker_runs_ends_the_agent_at_once() -> None:
    agent = Agent(settings())
    done = list(agent.feed(events.Signalled(number=signal.SIGTERM)))
    assert of(done, actions.Exit)[0].code == 143


def test_a_node_that_leaves_a_job_that_goes_on_exits_0() -> None:
    agent = Agent(settings(meets=True, min_nodes=1, max_nodes=2))
    both = (A, offer("b", life="2"))
    round_ = round_of(Sight(offers=both), terms(1, 2))
    agent.feed(events.Met(store="e:1", seconds=0.1, address="a"))
    agent.feed(events.Seen(sight=Sight(offers=both, round=round_), leads=False))
    agent.feed(events.Signalled(number=signal.SIGTERM))
    ends(agent, 0)
    assert of(ends(agent, 1), actions.Exit)[0].code == 0


def test_a_stopping_round_ends_the_workers_and_the_next_one_starts_others() -> None:
    agent = Agent(settings(meets=True, min_nodes=1, max_nodes=2))
    alone = round_of(Sight(offers=(A,)), terms(1, 2))
    agent.feed(events.Met(store="e:1", seconds=0.1, address="a"))
    agent.feed(events.Seen(sight=Sight(offers=(A,), round=alone), leads=False))
    both = (A, offer("b", life="2"))
    stops = round_of(Sight(offers=both, round=alone), terms(1, 2))
    done = list(agent.feed(events.Seen(sight=Sight(offers=both, round=stops), leads=False)))
    assert of(done, actions.SignalWorkers)
    ends(agent, 0, fault(0, signal=15))
    (published,) = of(ends(agent, 1, fault(1, signal=15)), actions.Publish)
    assert (published.report.state, published.report.fault) == (ReportState.STOPPED, None)
    reports = {"a": published.report}
    second = round_of(Sight(offers=both, round=stops, reports=reports), terms(1, 2))
    done = list(agent.feed(events.Seen(sight=Sight(offers=both, round=second), leads=False)))
    (start,) = of(done, actions.StartWorkers)
    assert (start.round.world_size, start.member.group_rank) == (4, 0)


def test_a_done_node_ends_well_when_etcd_stays_away() -> None:
    agent = running()
    ends(agent, 0)
    ends(agent, 1)
    agent.feed(events.StoreAway(reason="no answer"))
    assert not of(list(agent.feed(events.Ticked(), after_s=59.0)), actions.Exit)
    assert of(list(agent.feed(events.Ticked(), after_s=1.5)), actions.Exit)[0].code == 0


def test_a_spare_node_that_is_told_to_leave_exits_0() -> None:
    agent = Agent(settings(meets=True, min_nodes=1, max_nodes=1))
    other = offer("b", life="2")
    agent.feed(events.Met(store="e:1", seconds=0.1, address="a"))
    alone = round_of(Sight(offers=(other,)), terms())
    agent.feed(events.Seen(sight=Sight(offers=(other, A), round=alone), leads=False))
    done = list(agent.feed(events.Signalled(number=signal.SIGTERM)))
    assert of(done, actions.Exit)[0].code == 0


def test_a_rank_that_ended_well_long_before_the_others_is_named_once() -> None:
    agent = running()
    ends(agent, 1)
    assert agent.feed(events.Ticked(), after_s=59.0) == []
    (told,) = of(list(agent.feed(events.Ticked(), after_s=1.5)), actions.Announce)
    assert told.event.reason == "rank 1 ended with 0 a minute ago, rank 0 goes on"
    assert agent.feed(events.Ticked(), after_s=100.0) == []
