"""What a person may ask of a plain or packed job, and what becomes of it."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from easyscale.agent.plain import actions, events, wishes
from easyscale.agent.plain.actions import PlainAction
from easyscale.agent.plain.state import Phase
from easyscale.agent.plain.values import Offer, Outcome, ReportState, RoundPhase, Sight
from easyscale.errors import ExitCode, UsageError
from easyscale.model import Wish
from tests.support.plain import Agent, decided, offer, outcome_of, report, round_of, settings, terms

A, B = offer("a"), offer("b", life="2")
STOP = Wish(kind="stop", by="ann")


def check(wish: Wish, sight: Sight, *, packed: bool = False, least: int = 1) -> Wish:
    return wishes.check(wish, sight, job="job", is_packed=packed, least=least, is_whole=True)


def drain(node: str, *slots: str) -> Wish:
    return Wish(kind="drain", node=node, slots=slots, by="asked by ann")


def running(*offers: Offer, packed: int | None = None) -> Sight:
    sight = Sight(offers=offers)
    return replace(sight, round=round_of(sight, terms(1, 3, packed=packed)), revision=1)


def of(done: Sequence[PlainAction], kind: type[PlainAction]) -> list[PlainAction]:
    return [action for action in done if isinstance(action, kind)]


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (
            Wish(kind="devices", node="a", target="cpu:4"),
            "is plain: its number of workers is fixed",
        ),
        (drain("a", "local:0"), "do not move from slot to slot"),
        (Wish(kind="migrate", node="a", target="b"), "is plain, which knows no migrate"),
    ],
)
def test_what_a_plain_job_cannot_do_is_refused_in_one_sentence(wish: Wish, words: str) -> None:
    with pytest.raises(wishes.NotInThisMode, match=words) as met:
        check(wish, running(A, B))
    assert (met.value.exit_code, met.value.code) == (ExitCode.USAGE, "not_in_this_mode")


def test_a_node_that_the_job_needs_cannot_be_drained() -> None:
    with pytest.raises(UsageError, match="node b is needed: job 'job' has 2 nodes"):
        check(drain("b"), running(A, B), least=2)


def test_the_last_node_is_the_job_and_the_last_slot_its_node() -> None:
    assert check(drain("a"), running(A)) == STOP
    assert check(drain("a", "local:0"), running(A, B), packed=True) == drain("a", "local:0")
    assert check(drain("a", "local:0", "local:1"), running(A, B), packed=True) == drain("a")
    assert check(drain("a", "local:0", "local:1"), running(A), packed=True) == STOP


def test_nodes_that_do_not_meet_cannot_leave_each_other() -> None:
    with pytest.raises(wishes.NotInThisMode, match="do not meet"):
        wishes.check(drain("a"), running(A), job="job", is_packed=False, least=1, is_whole=False)


# --- stop --------------------------------------------------------------------------------------


def test_the_leader_ends_a_job_that_somebody_stops() -> None:
    outcome = outcome_of(replace(running(A), wishes={"w": STOP}), terms())
    assert outcome == Outcome(exit_code=0, reason="stopped by ann", is_stop=True)
    assert not outcome.is_finished, "a new launch of that name begins anew"


def test_a_job_that_has_just_finished_was_not_stopped() -> None:
    sight = running(A)
    assert sight.round is not None
    done = {"a": report(sight.round, ReportState.DONE)}
    outcome = outcome_of(replace(sight, reports=done, wishes={"w": STOP}), terms())
    assert outcome.is_finished


def test_workers_of_a_stopped_job_get_sigterm_and_the_agent_ends_with_0() -> None:
    agent = Agent(settings())
    sight = running(A)
    agent.feed(events.Met(store="", seconds=0.0, address=""))
    agent.feed(events.Seen(sight=sight, leads=False))
    done = agent.feed(events.Asked(wish_id="w", wish=STOP))
    assert of(done, actions.Ask) == [actions.Ask(wish_id="w", wish=STOP)]
    outcome = Outcome(exit_code=0, reason="stopped by ann", is_stop=True)
    done = agent.feed(events.Seen(sight=replace(sight, outcome=outcome), leads=False))
    assert of(done, actions.SignalWorkers) == [actions.SignalWorkers(local_ranks=(0, 1), number=15)]
    agent.feed(events.WorkerExited(round=1, local_rank=0, fault=None))
    done = agent.feed(events.WorkerExited(round=1, local_rank=1, fault=None))
    assert of(done, actions.Exit) == [actions.Exit(code=0, reason="stopped by ann")]
    (told,) = of(done, actions.Conclude)
    assert isinstance(told, actions.Conclude)
    assert not told.summary.finished


# --- drain a node ------------------------------------------------------------------------------


def test_a_round_stops_for_a_drained_node_and_the_next_one_is_without_it() -> None:
    sight = replace(running(A, B), wishes={"w": drain("b")})
    stops = round_of(sight, terms(1, 3))
    assert (stops.phase, stops.drained, stops.lost) == (RoundPhase.STOPPING, ("b",), ())
    both = {
        "a": report(stops, ReportState.STOPPED),
        "b": report(stops, ReportState.STOPPED, life="2"),
    }
    waiting = replace(sight, round=stops, reports={"a": both["a"]})
    assert decided(waiting, terms(1, 3)) is None, "its workers have not ended yet"
    second = round_of(replace(sight, round=stops, reports=both), terms(1, 3))
    assert [member.node for member in second.members] == ["a"], "while b may still be registered"


def test_a_drained_node_leaves_once_its_workers_have_ended() -> None:
    agent = Agent(settings(node_name="b", meets=True, max_nodes=3), life="2")
    sight = running(A, B)
    agent.feed(events.Met(store="e:1", seconds=0.1, address="b"))
    agent.feed(events.Seen(sight=sight, leads=False))
    asked = replace(sight, wishes={"w": drain("b")})
    assert agent.feed(events.Seen(sight=asked, leads=False)) == [], "the leader stops the round"
    stops = round_of(asked, terms(1, 3))
    done = agent.feed(events.Seen(sight=replace(asked, round=stops), leads=False))
    assert of(done, actions.SignalWorkers)
    agent.feed(events.WorkerExited(round=1, local_rank=0, fault=None))
    done = agent.feed(events.WorkerExited(round=1, local_rank=1, fault=None))
    assert [type(action) for action in done] == [actions.Publish, actions.Exit]
    assert of(done, actions.Exit)[0] == actions.Exit(
        code=0, reason="the job goes on without this node"
    )


def test_a_node_that_is_in_no_round_leaves_at_once() -> None:
    agent = Agent(settings(node_name="b", meets=True, max_nodes=3), life="2")
    agent.feed(events.Met(store="e:1", seconds=0.1, address="b"))
    alone = replace(running(A), wishes={"w": drain("b")})
    done = agent.feed(events.Seen(sight=alone, leads=False))
    assert [type(action) for action in done] == [actions.Announce, actions.Exit]


def test_a_newcomer_that_shall_leave_joins_no_round() -> None:
    sight = running(A)
    joined = replace(sight, offers=(A, B), wishes={"w": drain("b")})
    assert decided(joined, terms(1, 3)) is None


# --- slots of a packed node --------------------------------------------------------------------


def packed() -> Agent:
    agent = Agent(settings(logical_workers=4))
    agent.feed(events.Met(store="", seconds=0.0, address=""))
    agent.feed(events.Seen(sight=running(A, packed=4), leads=False))
    assert agent.state.phase is Phase.RUNNING
    return agent


def test_a_drained_slot_is_offered_no_more() -> None:
    agent = packed()
    sight = replace(agent.state.sight, wishes={"w": drain("a", "local:1")})
    done = agent.feed(events.Seen(sight=sight, leads=False))
    assert of(done, actions.Offer) == [actions.Offer(places=("local:0",))]
    assert of(done, actions.Settle) == [actions.Settle(wish_id="w")]
    assert agent.feed(events.Seen(sight=sight, leads=False)) == [], "once"


def test_other_slots_are_found_offered_and_the_wish_is_settled() -> None:
    agent = packed()
    wish = Wish(kind="devices", node="a", target="cpu:3", by="ann")
    sight = replace(agent.state.sight, wishes={"w": wish})
    done = agent.feed(events.Seen(sight=sight, leads=False))
    assert done == [actions.FindSlots(wish_id="w", wish=wish)]
    places = ("cpu:0", "cpu:1", "cpu:2")
    done = agent.feed(events.SlotsChanged(places=places, reason="ann", wish_id="w"))
    assert of(done, actions.Offer) == [actions.Offer(places=places)]
    assert of(done, actions.Settle) == [actions.Settle(wish_id="w")]


def test_slots_that_are_not_there_are_refused_in_the_wish() -> None:
    agent = packed()
    wish = Wish(kind="devices", node="a", target="cuda:9", by="ann")
    agent.feed(events.Seen(sight=replace(agent.state.sight, wishes={"w": wish}), leads=False))
    (settled,) = agent.feed(events.SlotsRefused(wish_id="w", reason="no cuda:9"))
    assert isinstance(settled, actions.Settle)
    assert settled.refused is not None
    assert settled.refused.refused == "no cuda:9"
