"""What the leader of a plain job decides on what it sees."""

import msgspec
import pytest

from easyscale.agent.plain import court
from easyscale.agent.plain.settings import StaticPlace
from easyscale.agent.plain.values import Outcome, ReportState, Round, RoundPhase, Sight
from tests.support.plain import LONG_S, decided, fault, offer, outcome_of, report, round_of, terms

A, B, C = offer("a"), offer("b"), offer("c")


def stopping(round_: Round) -> Round:
    return msgspec.structs.replace(round_, phase=RoundPhase.STOPPING)


def test_a_job_of_one_node_begins_at_once() -> None:
    first = decided(Sight(offers=(A,)), terms(), quiet_s=0.0)
    assert isinstance(first, Round)
    assert (first.number, first.world_size, first.restarts) == (1, 2, 0)
    assert (first.master_addr, first.master_port) == ("a.net", A.port)


def test_the_least_nodes_are_waited_for_and_named_when_they_do_not_come() -> None:
    sight, wanted = Sight(offers=(A,)), terms(2, 4)
    assert decided(sight, wanted, short_s=599.0) is None
    late = decided(sight, wanted, short_s=600.0)
    assert isinstance(late, Outcome)
    assert (late.exit_code, late.reason) == (4, "1 of 2 nodes came within 600 s: have a")


def test_more_than_the_least_get_a_last_call_and_the_most_do_not() -> None:
    assert decided(Sight(offers=(A, B)), terms(2, 3), quiet_s=2.9) is None
    assert decided(Sight(offers=(A, B)), terms(2, 3), quiet_s=3.0) is not None
    assert decided(Sight(offers=(A, B, C)), terms(2, 3), quiet_s=0.0) is not None


def test_a_round_ends_well_when_all_of_its_nodes_have() -> None:
    sight = Sight(offers=(A, B))
    wanted = terms(2, 2)
    running = round_of(sight, wanted)
    one = Sight(offers=(A, B), round=running, reports={"a": report(running, ReportState.DONE)})
    assert decided(one, wanted) is None
    both = {n: report(running, ReportState.DONE) for n in "ab"}
    done = outcome_of(Sight(offers=(A, B), round=running, reports=both), wanted)
    assert done.exit_code == 0


def test_a_failure_stops_the_round_and_is_charged_once_all_have_stopped() -> None:
    wanted = terms(2, 2, restarts=1)
    running = round_of(Sight(offers=(A, B)), wanted)
    failed = report(running, ReportState.FAILED, failed=fault(1))
    stops = round_of(Sight(offers=(A, B), round=running, reports={"a": failed}), wanted)
    assert (stops.number, stops.phase) == (1, RoundPhase.STOPPING)
    assert decided(Sight(offers=(A, B), round=stops, reports={"a": failed}), wanted) is None
    both = {"a": failed, "b": report(running, ReportState.STOPPED)}
    again = round_of(Sight(offers=(A, B), round=stops, reports=both), wanted)
    assert (again.number, again.restarts, again.reason) == (2, 1, "restart 1 of 1")
    final = outcome_of(
        Sight(offers=(A, B), round=stopping(again), reports=both),
        wanted,
    )
    assert (final.exit_code, final.fault, final.victims) == (1, fault(1), 3)


def test_a_failure_beside_a_lost_node_is_not_charged() -> None:
    wanted = terms(1, 2)
    running = round_of(Sight(offers=(A, B)), wanted)
    reports = {"a": report(running, ReportState.FAILED, failed=fault(is_victim=True))}
    again = round_of(Sight(offers=(A,), round=stopping(running), reports=reports), wanted)
    assert (again.number, again.restarts, again.world_size) == (2, 0, 2)


def test_a_lost_node_stops_the_round_and_the_job_waits_for_the_least() -> None:
    wanted = terms(2, 2)
    running = round_of(Sight(offers=(A, B)), wanted)
    stops = round_of(Sight(offers=(A,), round=running), wanted)
    assert stops.reason == "lost b"
    reports = {"a": report(running, ReportState.STOPPED)}
    assert decided(Sight(offers=(A,), round=stops, reports=reports), wanted) is None
    other = offer("b", life="2")
    again = round_of(Sight(offers=(A, other), round=stops, reports=reports), wanted)
    assert [member.node for member in again.members] == ["a", "b"]


def test_a_newcomer_is_let_in_where_there_is_room_and_nothing_has_ended() -> None:
    running = round_of(Sight(offers=(A, B)), terms(1, 2))
    assert decided(Sight(offers=(A, B, C), round=running), terms(1, 2)) is None
    joined = round_of(Sight(offers=(A, B, C), round=running), terms(1, 3))
    assert (joined.phase, joined.reason) == (RoundPhase.STOPPING, "c joined")
    reports = {"a": report(running, ReportState.DONE)}
    assert decided(Sight(offers=(A, B, C), round=running, reports=reports), terms(1, 3)) is None


def test_what_fails_the_same_at_every_start_is_not_tried_again() -> None:
    wanted = terms(restarts=3)
    running = round_of(Sight(offers=(A,)), wanted)
    reports = {"a": report(running, ReportState.FAILED, failed=fault(is_hopeless=True))}
    final = outcome_of(Sight(offers=(A,), round=stopping(running), reports=reports), wanted)
    assert final.exit_code == 1
    assert "not restarted" in final.reason


def test_workers_that_failed_beside_the_first_are_no_victims_of_it() -> None:
    wanted = terms(2, 2)
    running = round_of(Sight(offers=(A, B)), wanted)
    reports = {
        name: msgspec.structs.replace(report(running, ReportState.FAILED, failed=why), failed=2)
        for name, why in (("a", fault(0)), ("b", fault(2, node="b")))
    }
    seen = Sight(offers=(A, B), round=stopping(running), reports=reports)
    final = outcome_of(seen, wanted)
    assert (running.world_size, final.also_failed, final.victims) == (4, 3, 0)


def test_the_first_cause_is_no_victim() -> None:
    lost = fault(0, is_victim=True)
    cause = fault(3, node="b")
    assert court.first_fault([lost, cause, fault(2)]) == cause


def test_a_packed_job_has_its_ranks_on_whatever_slots_there_are() -> None:
    wanted = terms(1, None, packed=5)
    running = round_of(Sight(offers=(A, B)), wanted)
    assert (running.world_size, [m.workers for m in running.members]) == (5, [3, 2])
    other = msgspec.structs.replace(A, places=("local:0",))
    changed = round_of(Sight(offers=(other, B), round=running), wanted)
    assert changed.reason == "a: other slots"
    reports = {n: report(running, ReportState.STOPPED) for n in "ab"}
    again = round_of(Sight(offers=(other, B), round=changed, reports=reports), wanted)
    assert (again.world_size, [m.workers for m in again.members]) == (5, [2, 3])
    assert again.restarts == 0


@pytest.mark.parametrize(("node_rank", "first"), [(0, 0), (1, 2), (2, 4)])
def test_static_nodes_number_their_workers_by_their_own_number(node_rank: int, first: int) -> None:
    place = StaticPlace(nodes=3, node_rank=node_rank, master_addr="head", master_port=29500)
    here = court.at_static_place(round_of(Sight(offers=(A,)), terms()), place)
    (member,) = here.members
    assert (member.first_rank, member.group_rank, here.world_size) == (first, node_rank, 6)
    assert (here.master_addr, here.master_port, here.group_world_size) == ("head", 29500, 3)


def test_nothing_follows_an_outcome() -> None:
    sight = Sight(offers=(A,), outcome=Outcome(exit_code=0, reason=""))
    assert decided(sight, terms(), short_s=LONG_S) is None


def test_a_packed_job_needs_no_more_slots_than_ranks() -> None:
    wanted = terms(1, None, packed=2)
    alone = round_of(Sight(offers=(A,)), wanted)
    assert decided(Sight(offers=(A, B), round=alone), wanted) is None
    few = terms(1, None, packed=3)
    crowded = round_of(Sight(offers=(A,)), few)
    assert round_of(Sight(offers=(A, B), round=crowded), few).reason == "b joined"


def test_a_node_without_ranks_holds_up_nothing() -> None:
    wanted = terms(1, None, packed=2)
    running = round_of(Sight(offers=(A, B)), wanted)
    assert [member.workers for member in running.members] == [2, 0]
    assert running.group_world_size == 1
    idle = {"b": report(running, ReportState.DONE)}
    assert decided(Sight(offers=(A,), round=running, reports=idle), wanted) is None
    few = msgspec.structs.replace(A, places=("local:0",))
    changed = round_of(Sight(offers=(few, B), round=running, reports=idle), wanted)
    assert changed.reason == "a: other slots"
    both = idle | {"a": report(running, ReportState.DONE)}
    assert outcome_of(Sight(offers=(A, B), round=running, reports=both), wanted).exit_code == 0
