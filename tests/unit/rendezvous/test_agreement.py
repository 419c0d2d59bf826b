"""The commit rule: what a leader's transaction compares and writes, and what forbids it."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.model import (
    Assignment,
    Commit,
    Ending,
    Head,
    JobState,
    Mode,
    Outcome,
    Plan,
    WorkerId,
    decode,
)
from easyscale.rendezvous.agreement import (
    MOST_NODE_COMPARES,
    MOST_TIDIED,
    CommitAtOnce,
    CommitPlan,
    Decision,
    End,
    Fence,
    GiveUp,
    JobView,
    Propose,
    Tidy,
    incarnation_of,
    objection,
    outlives,
    transaction,
)
from easyscale.rendezvous.keys import Incarnation
from easyscale.rendezvous.store import (
    MAX_COMPARES,
    Created,
    Delete,
    DeletePrefix,
    Modified,
    Operation,
    Put,
    absent,
    check_transaction,
)
from easyscale.rendezvous.tidying import stale_keys
from tests.support.views import KEYS, Job, commit, job_spec, number, worker

A, B, C, D = (worker(name) for name in "abcd")
TOKEN = 7


def plan_of(made: Commit) -> Plan:
    return Plan(
        generation=made.generation,
        mode=made.mode,
        assignments=tuple(Assignment(m.worker, m.ranks) for m in made.members),
        main=made.main,
        reason=made.reason,
    )


def proposal(generation: int) -> Plan:
    return plan_of(commit(generation, [A, B], mode=Mode.BOUNDARY))


def running(*workers: WorkerId) -> Job:
    job = Job().leads()
    for name in sorted({w.node for w in workers}):
        job.node(name, "in_use")
    return job.committed(commit(1, workers))


def put_of(operations: tuple[Operation, ...], key: str) -> str:
    return next(o.value for o in operations if isinstance(o, Put) and o.key == key)


# --- what a transaction holds ------------------------------------------------------------------


def test_every_decision_is_fenced_by_the_leader_and_the_head() -> None:
    job = running(A, B)
    next_one = commit(2, [A, B], mode=Mode.BOUNDARY)
    job.planned(plan_of(next_one), ready=[A, B])
    view = job.view()
    late = commit(3, [A], mode=Mode.NOW)
    outcome = Outcome(state=JobState.STOPPED, exit_code=0, reason="asked")
    decisions: list[Decision] = [
        Propose(proposal(3)),
        CommitPlan(next_one),
        CommitAtOnce(late),
        GiveUp(next_one.generation),
        End(outcome),
        Fence((Incarnation("a", "1"),), "ann"),
        Tidy((KEYS.plan(number(1)),)),
    ]
    for decision in decisions:
        made = transaction(decision, view, keys=KEYS, token=TOKEN)
        assert made.compares[:2] == (
            Created(KEYS.leader, TOKEN),
            Modified(KEYS.head, view.head_revision),
        )


def test_a_plan_takes_the_next_number_and_moves_the_head() -> None:
    view = running(A, B).view()
    made = transaction(Propose(proposal(2)), view, keys=KEYS, token=TOKEN)
    assert absent(KEYS.plan(number(2))) in made.compares
    head = decode(put_of(made.operations, KEYS.head), Head, source="head")
    assert (head.planned, head.committed) == (2, 1)


def test_a_boundary_commit_compares_its_plan_and_every_node() -> None:
    job = running(A, B)
    made = commit(2, [A, B], mode=Mode.BOUNDARY)
    view = job.planned(plan_of(made), ready=[A, B]).view()
    txn = transaction(CommitPlan(made, ("drain-b",)), view, keys=KEYS, token=TOKEN)
    assert set(txn.compares[2:]) == {
        absent(KEYS.commit(number(2))),
        Modified(KEYS.plan(number(2)), view.plan_revisions[number(2)]),
        Created(KEYS.node("a"), view.nodes["a"].create_revision),
        Created(KEYS.node("b"), view.nodes["b"].create_revision),
    }
    assert Delete(KEYS.wish("drain-b")) in txn.operations
    head = decode(put_of(txn.operations, KEYS.head), Head, source="head")
    assert (head.planned, head.committed, head.digest) == (2, 2, made.digest)


def test_a_commit_at_once_kills_the_open_plan_and_needs_none_of_its_own() -> None:
    view = running(A, B).gone(B).view()
    made = commit(2, [A], mode=Mode.NOW)
    txn = transaction(CommitAtOnce(made), view, keys=KEYS, token=TOKEN)
    assert {absent(KEYS.commit(number(2))), absent(KEYS.plan(number(2)))} <= set(txn.compares)
    written = {o.key for o in txn.operations if isinstance(o, Put)}
    assert written == {KEYS.commit(number(2)), KEYS.head}
    head = decode(put_of(txn.operations, KEYS.head), Head, source="head")
    assert (head.planned, head.committed) == (2, 2)


def test_a_thousand_members_still_fit_into_one_transaction() -> None:
    workers = [worker(f"n{i:03}") for i in range(1000)]
    job = running(*workers)
    made = commit(2, dict.fromkeys(workers, ()), mode=Mode.BOUNDARY)
    view = job.planned(plan_of(made), ready=workers).view()
    txn = transaction(CommitPlan(made), view, keys=KEYS, token=TOKEN)
    assert len(txn.compares) <= MAX_COMPARES
    assert not any(c.key.startswith(KEYS.nodes) for c in txn.compares)


MANY = 1000


@pytest.mark.parametrize("members", [MOST_NODE_COMPARES, MANY])
def test_no_decision_about_a_thousand_nodes_is_over_the_limits_of_etcd(members: int) -> None:
    workers = [worker(f"n{i:03}") for i in range(MANY)]
    job = running(*workers)
    for each in workers:
        job.gone(each)
    made = commit(2, dict.fromkeys(workers[:members], ()), mode=Mode.BOUNDARY)
    view = job.planned(plan_of(made), ready=workers).view()
    names = tuple(f"drain-{i}" for i in range(MANY))
    at_once = commit(3, dict.fromkeys(workers[:members], ()), mode=Mode.RESTORE)
    agents = tuple(Incarnation(each.node, each.incarnation) for each in workers)
    decisions: list[Decision] = [
        Propose(msgspec.structs.replace(plan_of(made), generation=number(3))),
        CommitPlan(made, names),
        CommitAtOnce(at_once, job_spec(kind="k"), clears_outcome=True, forgives=tuple(workers)),
        GiveUp(made.generation),
        End(Outcome(state=JobState.STOPPED, exit_code=0, reason="asked"), names),
        Fence(agents, "ann", names),
        Tidy(tuple(KEYS.wish(name) for name in names)),
    ]
    assert {type(decision) for decision in decisions} == set(get_args(Decision))
    for decision in decisions:
        made_of_it = transaction(decision, view, keys=KEYS, token=TOKEN)
        check_transaction(made_of_it.compares, made_of_it.operations)


def test_a_wish_to_fence_more_agents_than_fit_goes_with_the_last_of_them() -> None:
    agents = tuple(Incarnation("a", f"{i:03}") for i in range(MOST_TIDIED + 1))
    view = running(A).view()
    first = transaction(Fence(agents, "ann", ("w",)), view, keys=KEYS, token=TOKEN)
    rest = transaction(Fence(agents[MOST_TIDIED:], "ann", ("w",)), view, keys=KEYS, token=TOKEN)
    assert Delete(KEYS.wish("w")) not in first.operations
    assert Delete(KEYS.wish("w")) in rest.operations
    puts = [one.key for one in (*first.operations, *rest.operations) if isinstance(one, Put)]
    assert puts == [KEYS.gone_agent("a", one.incarnation) for one in agents]


def test_a_new_start_clears_the_outcome_and_forgives_but_keeps_the_proof_of_endings() -> None:
    job = running(A).gone(A).outcome(Outcome(state=JobState.FAILED, exit_code=1, reason="x"))
    made = commit(2, [worker("a", 2)])
    decision = CommitAtOnce(made, spec=job_spec(kind="k"), clears_outcome=True, forgives=(A,))
    txn = transaction(decision, job.view(), keys=KEYS, token=TOKEN)
    assert Delete(KEYS.outcome) in txn.operations
    assert Delete(KEYS.progress) in txn.operations
    kept = decode(put_of(txn.operations, KEYS.gone_worker(A)), Ending, source="gone")
    assert kept.signal == 9
    assert kept.failure is None


def test_giving_a_plan_up_drops_what_was_said_about_it() -> None:
    job = running(A, B).planned(proposal(2), ready=[A])
    txn = transaction(GiveUp(number(2)), job.view(), keys=KEYS, token=TOKEN)
    assert txn.operations == (Delete(KEYS.plan(number(2))), DeletePrefix(KEYS.ready_in(number(2))))


# --- C1: numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "mode"), [(1, Mode.NOW), (3, Mode.NOW), (2, Mode.BOUNDARY)])
def test_c1_refuses_any_number_but_the_one_that_is_due(generation: int, mode: Mode) -> None:
    view = running(A, B).view()
    assert objection(commit(generation, [A, B], mode=mode), view) is not None


def test_c1_an_open_plan_is_dead_once_a_loss_was_answered() -> None:
    job = running(A, B).planned(proposal(2), ready=[A, B])
    job.committed(commit(3, [A], mode=Mode.NOW))
    assert objection(commit(2, [A, B], mode=Mode.BOUNDARY), job.view()) is not None


def test_c1_a_new_era_begins_with_number_one() -> None:
    view = running(A, B).view()
    assert objection(commit("2.1", [A, B], mode=Mode.NOW), view) is None
    assert objection(commit("2.2", [A, B], mode=Mode.NOW), view) is not None


# --- C2: ready ---------------------------------------------------------------------------------


def test_c2_waits_for_every_member_survivors_included() -> None:
    job = running(A, B).planned(proposal(2), ready=[B])
    waits = objection(commit(2, [A, B], mode=Mode.BOUNDARY), job.view())
    assert waits == "a/cpu:0 has not said ready for gen 2"


# --- C3: overlap -------------------------------------------------------------------------------


def test_c3_two_disjoint_groups_are_never_committed_without_proof() -> None:
    job = running(A, B).node("c", "standby")
    waits = objection(commit(2, [C]), job.view())
    assert (
        waits
        == "gen 1 could still run: waits for a/cpu:0 and b/cpu:0 or proof that one of them ended"
    )


def test_c3_a_lease_that_ran_out_is_no_proof() -> None:
    job = running(A, B).node("c", "standby").drop(KEYS.node("a")).drop(KEYS.node("b"))
    assert objection(commit(2, [C]), job.view()) is not None


def test_c3_one_known_end_is_enough_for_overlap_but_not_for_a_snapshot() -> None:
    job = running(A, B).node("c", "standby").gone(A)
    assert objection(commit(2, [C]), job.view()) == "b/cpu:0 may hold newer state than any snapshot"
    assert objection(commit(2, [C]), job.gone(B).view()) is None


def test_c3_looks_at_every_generation_that_could_still_run() -> None:
    # g2 = {a}, g3 = {a, b}, g4 = {b} each overlap their neighbour; b alone and a alone would train.
    job = running(A, B)
    job.committed(commit(2, [A], mode=Mode.NOW), entered=False)
    job.committed(commit(3, [A, B], mode=Mode.NOW), entered=False)
    waits = objection(commit(4, [B], mode=Mode.NOW), job.view())
    assert waits == "gen 2 could still run: waits for a/cpu:0 or proof that it ended"


def test_c3_generations_before_one_that_all_have_entered_cannot_run() -> None:
    job = running(A, B)
    job.committed(commit(2, [A], mode=Mode.NOW), entered=False)
    job.committed(commit(3, [A, B], mode=Mode.NOW), entered=True)
    assert objection(commit(4, [B], mode=Mode.NOW), job.view()) is None


def test_c3_whoever_entered_a_generation_met_members_that_have_left_the_one_before() -> None:
    job = running(A).node("b", "in_use")
    join = commit(2, [A, B], mode=Mode.BOUNDARY)
    job.committed(join, entered=False).drop(KEYS.node("a"))
    alone = commit(3, [B], mode=Mode.NOW)
    assert objection(alone, job.view()) == (
        "gen 1 could still run: waits for a/cpu:0 or proof that it ended"
    )
    assert objection(alone, job.entered(join, B).view()) is None


def test_c3_an_entry_says_nothing_of_a_generation_that_shares_no_member() -> None:
    job = running(A).node("b", "in_use").node("c", "in_use")
    other = commit(2, [B, C], mode=Mode.NOW)
    job.committed(other, entered=[B])
    assert objection(commit(3, [B], mode=Mode.NOW), job.view()) is not None


def test_c3_a_pause_runs_nobody_and_needs_no_overlap() -> None:
    job = running(A, B)
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    view = job.planned(plan_of(pause)).view()
    assert objection(pause, view) is None


def test_c3_a_pause_does_not_close_what_runs_before_it() -> None:
    job = running(A, B).node("c", "standby")
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    view = job.committed(pause).view()
    assert [one.generation for one in view.open] == [number(1), number(2)]
    assert objection(commit(3, [C]), view) is not None


def test_the_takeover_needs_every_node_silent_for_the_whole_time() -> None:
    job = running(A, B).node("c", "standby").drop(KEYS.node("a")).drop(KEYS.node("b"))
    silent = frozenset(Incarnation(w.node, w.incarnation) for w in (A, B))
    view = job.view()
    assert objection(commit(2, [C]), view, silent=silent) is None
    assert objection(commit(2, [C]), view, silent=frozenset(list(silent)[:1])) is not None
    now = commit(2, [C], mode=Mode.NOW)
    assert objection(now, view, silent=silent) is not None  # the exception is for restore only


def test_a_takeover_lasts_for_whoever_goes_on_with_the_restore() -> None:
    job = running(A).node("b", "in_use").node("c", "in_use").drop(KEYS.node("a"))
    restore = commit(2, [B, C])
    view = job.committed(restore, entered=[B]).drop(KEYS.node("c")).gone(C).view()
    silent = frozenset([Incarnation(A.node, A.incarnation)])
    now = commit(3, [B], mode=Mode.NOW)
    assert objection(now, view, silent=silent) is None
    waits = objection(now, view)  # heard again: it is fenced, and that is proof
    assert waits == "gen 1 could still run: waits for a/cpu:0 or proof that it ended"


# --- C4: state ---------------------------------------------------------------------------------


def test_c4_mode_now_needs_a_holder_of_state() -> None:
    job = running(A, B)
    job.committed(commit(2, [A, B, C], mode=Mode.BOUNDARY), entered=False).node("c", "in_use")
    assert objection(commit(3, [C], mode=Mode.NOW), job.gone(A).gone(B).view()) == (
        "none of its members holds the training state"
    )


def test_c4_whoever_registers_with_the_state_is_no_ground_for_a_restore() -> None:
    job = running(A, B).gone(A).drop(KEYS.entry(number(1), B)).slot(B, has_state=True)
    restore = commit(2, [C], mode=Mode.RESTORE)
    assert objection(restore, job.node("c").view()) == (
        "b/cpu:0 may hold newer state than any snapshot"
    )


def test_c4_a_restart_of_the_host_proves_that_its_workers_ended() -> None:
    job = running(A)
    before = incarnation_of(host="a", boot_id="one", chance="1")
    after = incarnation_of(host="a", boot_id="two", chance="2")
    lost = WorkerId("a", before, "cpu:0", 1)
    job.committed(commit(2, [lost], mode=Mode.NOW), entered=True)
    record = msgspec.structs.replace(job.view().nodes["a"].record, incarnation=after)
    view = job.put(KEYS.node("a"), record).view()
    assert outlives(after, before)
    assert view.ended(lost)
    again = incarnation_of(host="a", boot_id="one", chance="3")
    assert not outlives(again, before)  # the agent began anew, its old workers may live
    other = incarnation_of(host="b", boot_id="two", chance="2")
    assert not outlives(other, before)  # another host under the same name proves nothing


# --- views -------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['{"version":1,"era":', "", "[]", '{"version":99,"how":"x"}'])
def test_a_torn_or_newer_record_is_named_and_left_out(text: str) -> None:
    view = Job().put(KEYS.gone_worker(A), text).view()
    assert KEYS.gone_worker(A) in view.unreadable
    assert A not in view.gone
    assert KEYS.gone_worker(A) in view.unreadable[KEYS.gone_worker(A)]


@given(st.text(max_size=40), st.binary(max_size=40))
def test_no_key_and_no_value_can_break_a_view(name: str, value: bytes) -> None:
    key = KEYS.prefix + name
    text = value.decode(errors="replace")
    JobView.of(Job().put(key, text).store_view(), KEYS)


def test_a_view_parses_only_what_changed() -> None:
    job = running(A, B)
    first = job.view()
    job.gone(B)
    second = JobView.of(job.store_view(), KEYS, before=first)
    assert second.commits[number(1)] is first.commits[number(1)]
    assert second == job.view()


def test_whoever_left_in_order_is_known_to_have_ended() -> None:
    job = running(A, B).put(KEYS.gone_agent("b", B.incarnation), Ending(how="left"))
    view = job.view()
    assert view.ended(B)
    assert not view.is_present(B)


def test_tidying_keeps_what_an_open_generation_names_and_what_still_explains() -> None:
    job = running(A, B)
    job.gone(worker("c")).gone(worker("d"))
    job.committed(commit(2, [A, B], mode=Mode.BOUNDARY), entered=True)
    stale = set(stale_keys(job.view(), KEYS, keep=[D]))
    assert KEYS.commit(number(1)) in stale
    assert KEYS.entry(number(1), A) in stale
    assert KEYS.gone_worker(C) in stale
    assert KEYS.gone_worker(D) not in stale
    assert KEYS.commit(number(2)) not in stale
