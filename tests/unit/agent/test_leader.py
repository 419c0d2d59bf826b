"""The leader's rules, one situation each: what it decides, or what it waits for and says."""

import msgspec
import pytest

from easyscale.agent import benching
from easyscale.agent.leader import decide
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.model import Ending, JobState, Mode, Outcome, Readiness, WorkerFailure, WorkerId
from easyscale.rendezvous.agreement import (
    CommitAtOnce,
    CommitPlan,
    End,
    Fence,
    GiveUp,
    Propose,
    Tidy,
    transaction,
)
from easyscale.rendezvous.keys import Incarnation
from easyscale.rendezvous.store import Put
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker

A, B, C, D = (worker(name) for name in "abcd")
B1, B2 = worker("b/1"), worker("b/2")


def ask(
    job: Job,
    *,
    now: float = 100.0,
    memory: Memory | None = None,
    settings: LaunchSettings | None = None,
    since_revision: int = 1,
    position: int = -1,
    store_back_s: float = -1e9,
) -> Verdict:
    at = Standpoint(
        view=job.view(),
        now=now,
        settings=settings or launch_settings(),
        keys=KEYS,
        spec=job_spec(),
        since_revision=since_revision,
        position=position,
        store_back_s=store_back_s,
    )
    return decide(at, memory or Memory())


def settled(job: Job, **more: object) -> Verdict:
    """Ask once, then again when everything has settled."""
    first = ask(job, now=100.0, **more)  # type: ignore[arg-type]
    return ask(job, now=101.0, memory=first.memory, **more)  # type: ignore[arg-type]


def running(*workers: WorkerId) -> Job:
    job = Job().leads()
    for name in sorted({w.node for w in workers}):
        job.node(name, "in_use")
    return job.committed(commit(1, workers))


def members(verdict: Verdict) -> tuple[WorkerId, ...]:
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce | CommitPlan), verdict.reason
    return decision.commit.workers


# --- beginning ---------------------------------------------------------------------------------


def test_one_complete_node_starts_the_job_at_once() -> None:
    verdict = ask(Job().leads().node("a", "standby", "standby"))
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.mode is Mode.RESTORE
    assert decision.commit.generation == number(1)
    assert [m.ranks for m in decision.commit.members] == [(0, 1), (2, 3)]
    assert decision.commit.main == worker("a")
    assert all(member.address for member in decision.commit.members)


def test_a_start_waits_for_workers_that_are_still_on_their_way() -> None:
    verdict = ask(Job().leads().node("a", "standby", "starting"))
    assert verdict.decision is None
    assert verdict.reason == "waits for the workers to reach register"


def test_a_start_waits_for_the_nodes_it_needs_and_says_whom_it_has() -> None:
    settings = launch_settings(min_nodes=2)
    verdict = ask(Job().leads().node("a"), settings=settings)
    assert verdict.reason == "waiting for 1 of 2 nodes · have a"


def test_nodes_that_do_not_come_in_time_end_the_job_with_4() -> None:
    settings = launch_settings(min_nodes=2)
    job = Job().leads().node("a")
    first = ask(job, now=0.0, settings=settings)
    late = ask(job, now=600.0, memory=first.memory, settings=settings)
    assert isinstance(late.decision, End)
    assert late.decision.outcome.exit_code == 4


def test_a_start_gives_a_second_node_a_moment_and_no_more() -> None:
    job = Job().leads().node("a").node("b", "starting")
    first = ask(job, now=10.0)
    assert first.reason == "settling: b may be ready too"
    assert members(ask(job, now=10.5, memory=first.memory)) == (A,)


def test_nodes_above_the_most_stay_standby() -> None:
    settings = launch_settings(max_nodes=1)
    assert members(ask(Job().leads().node("b").node("a"), settings=settings)) == (B,)


def test_the_first_generation_fixes_the_kind_most_slots_share() -> None:
    job = Job(job_spec(kind="")).leads()
    job.node("a", kind="avx2").node("b", "standby", "standby", kind="avx512")
    decision = ask(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert {w.node for w in decision.commit.workers} == {"b"}
    assert decision.spec is not None
    assert decision.spec.kind == "avx512"


def test_processors_share_the_work_when_the_job_allows_it_and_other_kinds_do_not() -> None:
    job = Job(job_spec(kind="", mixes=True)).leads()
    job.node("a", kind="cpu avx2 baseline torch-2.13.0 threads-1 (cpu avx2)")
    job.node("b", kind="cpu avx2 baseline torch-2.13.0 threads-1 (cpu avx512)")
    job.node("c", kind="cpu avx2 baseline torch-2.12.0 threads-1 (cpu avx2)")
    decision = ask(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert set(decision.commit.workers) == {A, B}
    assert decision.spec is not None
    assert decision.spec.kind == "cpu avx2 baseline torch-2.13.0 threads-1"


def test_a_known_snapshot_is_where_a_new_store_begins_in_an_era_above_it() -> None:
    decision = ask(Job().leads().node("a").snapshot(40, "3.2").snapshot(20, "3.1")).decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.snapshot is not None
    assert decision.commit.snapshot.step == 40
    assert decision.commit.generation == number("4.1")


def test_a_snapshot_that_could_not_be_read_is_passed_over() -> None:
    job = Job().leads().node("a").snapshot(40, rejected="its bytes differ").snapshot(20)
    decision = ask(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.snapshot is not None
    assert decision.commit.snapshot.step == 20


def test_a_job_whose_snapshots_cannot_be_read_does_not_begin_anew() -> None:
    job = Job().leads().node("a").snapshot(40, rejected="its bytes differ")
    job.snapshot(20, rejected="too old").snapshot(10, superseded=True)
    decision = ask(job).decision
    assert isinstance(decision, End)
    assert decision.outcome.exit_code == 1
    assert "step-00000040" in decision.outcome.reason
    assert decision.outcome.reason.endswith(
        "nor any of the 1 before it: its bytes differ; --job-id NAME begins a new job from step 0"
    )


# --- a store that came back empty --------------------------------------------------------------


def test_an_empty_store_waits_until_every_member_has_offered() -> None:
    known = commit(7, [A, B])
    job = Job().leads().node("a", "in_use", offers=known, formed=number(7)).node("c")
    verdict = ask(job)
    assert verdict.decision is None
    assert verdict.reason.startswith("the store came back without gen 7: waits for b/cpu:0")
    job.node("b", "in_use", offers=known, formed=number(7))
    job.entered(known, A).entered(known, B)
    decision = ask(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.generation == number("2.1")
    assert decision.commit.mode is Mode.NOW
    assert decision.commit.workers == (A, B)
    assert [m.ranks for m in decision.commit.members] == [(0, 2), (1, 3)]  # nothing moved


def test_a_store_that_lost_acknowledged_writes_counts_as_empty() -> None:
    known = commit(7, [A])
    job = running(A).node("a", "in_use", offers=known, formed=number(7))
    decision = ask(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.generation == number("2.1")


def test_of_an_offered_generation_an_operators_word_is_proof_too() -> None:
    settings = launch_settings(takeover_after_s=None)
    known = commit(7, [A, B])
    job = Job().leads().node("a", "in_use", offers=known, formed=number(7)).entered(known, A)
    job.wish("fence", "b")
    fences = ask(job, settings=settings).decision
    assert fences == Fence((Incarnation("b", B.incarnation),), "ann", ("fence-b",))
    written = transaction(fences, job.view(), keys=KEYS, token=1).operations[0]
    assert isinstance(written, Put)
    job.put(written.key, written.value).drop(KEYS.wish("fence-b"))
    assert members(ask(job, settings=settings)) == (A,)


def test_in_a_store_that_strangers_filled_first_who_never_offers_is_taken_over_in_time() -> None:
    known = commit(7, [A, B])
    job = Job().leads().committed(commit(1, [C])).node("c", "in_use")
    job.node("a", "in_use", offers=known, formed=number(7)).entered(known, A)
    first = ask(job, now=100.0)
    assert first.decision is None
    assert first.reason.startswith("the store came back without gen 7: waits for b/cpu:0")
    assert first.wake_s == pytest.approx(160.0)
    # Two groups could still run: that one of them ended is for a person to say.
    later = ask(job, now=160.0, memory=first.memory)
    assert later.reason == "gen 1 could still run: waits for c/cpu:0 or proof that it ended"
    job.put(KEYS.gone_agent("c", C.incarnation), Ending(how="fenced by ann")).drop(KEYS.node("c"))
    assert members(ask(job, now=161.0, memory=later.memory)) == (A,)


# --- losses ------------------------------------------------------------------------------------


def test_a_known_exit_is_answered_at_once_and_only_its_ranks_move() -> None:
    job = running(A, B).gone(B)
    verdict = ask(job)
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.mode is Mode.NOW
    assert decision.commit.members[0].ranks == (0, 1, 2, 3)
    assert decision.commit.reason == "ranks 1,3 ran again on a/cpu:0"
    assert [each.generation for each in decision.commit.open] == [number(1)]
    assert decision.commit.open[0].workers_in(decision.commit) == {A, B}


def test_no_newcomer_takes_part_in_a_recovery() -> None:
    assert members(ask(running(A, B).gone(B).node("c"))) == (A,)


def test_a_broken_report_waits_a_moment_for_the_exit_that_explains_it() -> None:
    job = running(A, B).broken(commit(1, [A, B]), A, B)
    first = ask(job, now=50.0)
    assert first.decision is None
    assert first.wake_s == pytest.approx(50.03)
    explained = ask(job.gone(B), now=50.01, memory=first.memory)
    assert members(explained) == (A,)


def test_a_break_without_explanation_sends_everybody_into_a_new_generation() -> None:
    job = running(A, B).broken(commit(1, [A, B]), A, B)
    first = ask(job, now=50.0)
    assert members(ask(job, now=50.04, memory=first.memory)) == (A, B)


def test_a_break_in_an_older_generation_counts_until_the_planned_one_is_entered() -> None:
    job = running(A, B)
    job.committed(commit(2, [A, B, C], mode=Mode.BOUNDARY), entered=False).node("c", "in_use")
    first = ask(job.broken(commit(1, [A, B]), A, B), now=50.0)
    assert members(ask(job, now=51.0, memory=first.memory)) == (A, B)


def test_a_report_about_a_generation_that_was_answered_is_stale() -> None:
    job = running(A, B)
    old = commit(1, [A, B])
    job.committed(commit(2, [A, B], mode=Mode.NOW), entered=True).broken(old, A, B)
    assert isinstance(settled(job).decision, Tidy)


def test_the_same_set_that_failed_to_meet_is_cut_down_to_those_that_can() -> None:
    again = commit(2, [A, B, C], mode=Mode.NOW, main=B)
    job = running(A, B, C).committed(again, entered=False)
    for each in (A, B, C):
        job.entered(commit(1, [A, B, C]), each)
    first = ask(job, now=50.0)
    job.broken(again, A, B).broken(again, B, A)
    second = ask(job, now=50.0, memory=first.memory)
    third = ask(job, now=60.0, memory=second.memory)
    assert set(members(third)) == {B, C}  # main is kept where the sizes are equal


def test_who_speaks_goes_on_and_not_main_that_says_nothing() -> None:
    again = commit(2, [A, B], mode=Mode.NOW, main=B)
    job = running(A, B).committed(again, entered=False)
    for each in (A, B):
        job.entered(commit(1, [A, B]), each)
    first = ask(job, now=50.0)
    job.broken(again, A, B)
    waits = ask(job, now=50.1, memory=ask(job, now=50.0, memory=first.memory).memory)
    assert waits.decision is None
    assert waits.reason.startswith("b/cpu:0: suspected, and no word yet")
    assert members(ask(job, now=50.3, memory=waits.memory)) == (A,)
    job.broken(again, B, A)
    assert members(ask(job, now=50.1, memory=waits.memory)) == (B,), "it lives: main is kept"


def test_a_larger_part_that_says_nothing_is_waited_for_and_not_believed() -> None:
    three = [worker(place) for place in ("b", "b/1", "b/2")]
    again = commit(2, [A, *three], mode=Mode.NOW, main=three[0])
    job = running(A).node("b", "in_use", "in_use", "in_use")
    job.committed(commit(1, [A, *three]), entered=True).committed(again, entered=False)
    first = ask(job, now=50.0)
    job.broken(again, A, *three)
    waits = ask(job, now=50.0, memory=first.memory)
    patient = ask(job, now=64.9, memory=waits.memory)
    assert patient.reason.startswith("b/cpu:0, b/cpu:1 and b/cpu:2: suspected")
    assert members(ask(job, now=65.0, memory=patient.memory)) == (A,), "not for ever"
    assert members(ask(job.drop(KEYS.node("b")), now=55.0, memory=patient.memory)) == (A,)


def test_the_same_set_is_not_planned_faster_than_the_backoff() -> None:
    again = commit(2, [A, B], mode=Mode.NOW)
    job = running(A, B).committed(again, entered=True)
    first = ask(job, now=50.0)
    job.broken(again, A)
    waits = ask(job, now=50.1, memory=ask(job, now=50.05, memory=first.memory).memory)
    assert waits.decision is None
    assert waits.wake_s == pytest.approx(50.5)
    assert members(ask(job, now=50.6, memory=waits.memory)) == (A, B)


def test_a_set_that_failed_twice_is_asked_who_cannot_reach_whom_before_the_next_try() -> None:
    job = running(A, B, C)
    tries = [commit(number, [A, B, C], mode=Mode.NOW) for number in (2, 3)]
    memory, now = Memory(), 50.0
    for again in tries:
        job.committed(again, entered=False)
        memory = ask(job, now=now, memory=memory).memory
        now += 1.0
    job.broken(tries[1], C)  # it reaches both
    first = ask(job, now=51.1, memory=ask(job, now=51.05, memory=memory).memory)
    assert first.decision is None
    assert first.wake_s == pytest.approx(61.0)
    assert members(ask(job, now=61.1, memory=first.memory)) == (A, B, C), "nobody knows more"
    job.broken(tries[1], A, B).broken(tries[1], B, A)
    assert members(ask(job, now=55.0, memory=first.memory)) == (A, C)


def test_a_member_without_a_lease_is_left_alone_while_the_work_goes_on() -> None:
    job = running(A, B, C).drop(KEYS.node("c"))
    verdict = ask(job, now=99.0)
    memory, now = verdict.memory, 100.0
    for position in range(20):
        verdict = ask(job, now=now, memory=memory, position=position)
        assert verdict.decision is None
        memory, now = verdict.memory, now + 1.0
    assert verdict.reason == "c/cpu:0 cannot say ready: its agent has no lease"


def test_a_member_without_a_lease_is_left_out_when_the_work_stands_still() -> None:
    job = running(A, B, C).drop(KEYS.node("c"))
    first = ask(job, now=100.0, position=5)
    assert first.decision is None
    verdict = ask(job, now=103.0, memory=first.memory, position=5)
    assert members(verdict) == (A, B)


def test_a_member_without_a_lease_is_evicted_in_the_end() -> None:
    job = running(A, B, C).drop(KEYS.node("c"))
    verdict = ask(job, now=99.0)
    memory = verdict.memory
    for second in range(31):
        verdict = ask(job, now=100.0 + second, memory=memory, position=second)
        memory = verdict.memory
    assert members(verdict) == (A, B)


def test_most_registrations_vanishing_together_is_the_stores_hiccup() -> None:
    everyone = [worker(f"n{i}") for i in range(4)]
    job = running(*everyone)
    memory = ask(job, now=99.0, position=5).memory
    for each in everyone[1:]:
        job.drop(KEYS.node(each.node))
    first = ask(job, now=100.0, memory=memory, position=5)
    assert first.decision is None
    waits = ask(job, now=106.0, memory=first.memory, position=5)
    assert waits.decision is None
    assert members(ask(job, now=108.0, memory=waits.memory, position=5)) == (everyone[0],)


def test_who_has_no_lease_when_the_store_was_away_from_us_too_may_make_a_new_one() -> None:
    job = running(A, B, C).drop(KEYS.node("c"))
    memory = ask(job, now=100.0, position=5, store_back_s=99.0).memory
    waits = ask(job, now=105.9, memory=memory, position=5, store_back_s=99.0)
    assert waits.decision is None
    gone = ask(job, now=106.0, memory=waits.memory, position=5, store_back_s=99.0)
    assert members(gone) == (A, B)


def test_an_exit_report_stands_behind_a_mass_expiry() -> None:
    everyone = [worker(f"n{i}") for i in range(4)]
    job = running(*everyone)
    memory = ask(job, now=99.0).memory
    for each in everyone[2:]:
        job.drop(KEYS.node(each.node))
    job.gone(everyone[1])
    assert members(ask(job, now=100.0, memory=memory)) == (everyone[0],)


def test_who_finished_is_not_lost_unless_somebody_waits_for_it() -> None:
    job = running(A, B).gone(A, finished=True, signal=None, exit_code=0, digest="d")
    assert ask(job).reason == "finished: waits for b/cpu:0 to end"
    first = ask(job.broken(commit(1, [A, B]), B, A), now=50.0)
    assert members(first) == (B,)


def test_when_all_are_gone_the_newest_snapshot_is_restored_without_waiting_for_min_nodes() -> None:
    job = running(A, B).gone(A).gone(B).snapshot(30).node("a", "standby", spawn=2)
    verdict = settled(job, settings=launch_settings(min_nodes=2))
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.mode is Mode.RESTORE
    assert decision.commit.workers == (worker("a", 2),)
    assert decision.commit.reason == "all were gone"
    assert decision.commit.snapshot is not None
    assert decision.commit.snapshot.step == 30


@pytest.mark.parametrize("has_state", [True, False])
def test_who_has_registered_again_holds_the_state_before_its_entry_is_written_again(
    has_state: bool,
) -> None:
    """After an outage the leader saw the registration first, and restored: steps were lost."""
    job = running(A, B).gone(A).snapshot(3).node("a", "standby", spawn=2)
    job.drop(KEYS.entry(number(1), B)).slot(B, has_state=has_state)
    decision = settled(job).decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.mode is (Mode.NOW if has_state else Mode.RESTORE)
    assert (decision.commit.workers == (B,)) == has_state


def test_a_member_that_never_formed_anything_may_start_from_the_snapshot() -> None:
    job = running(A).node("b", "in_use")
    job.committed(commit(2, [A, B], mode=Mode.BOUNDARY), entered=False)
    assert members(ask(job.gone(A).drop(KEYS.node("a")))) == (B,)


def test_a_silent_group_is_waited_for_until_the_takeover() -> None:
    job = running(A, B).drop(KEYS.node("a")).drop(KEYS.node("b")).node("c")
    first = ask(job, now=100.0)
    waits = ask(job, now=159.0, memory=first.memory)
    assert waits.decision is None
    assert waits.wake_s == pytest.approx(160.0)
    assert members(ask(job, now=160.0, memory=waits.memory)) == (C,)


def test_without_a_takeover_only_proof_counts() -> None:
    settings = launch_settings(takeover_after_s=None)
    job = running(A).drop(KEYS.node("a")).node("c")
    first = ask(job, now=100.0, settings=settings)
    assert ask(job, now=9999.0, memory=first.memory, settings=settings).decision is None
    job.wish("fence", "a")
    fenced = ask(job, now=9999.0, memory=first.memory, settings=settings)
    assert fenced.decision == Fence((Incarnation("a", A.incarnation),), "ann", ("fence-a",))


# --- planned changes ---------------------------------------------------------------------------


def test_a_node_that_was_cut_off_waits_until_both_sides_reach_each_other() -> None:
    by_itself = settled(running(A).node("b", cut=("a",)))
    assert by_itself.decision is None
    assert by_itself.reason == "node b joins once it and a reach each other"
    by_a_member = settled(running(A).node("a", "in_use", cut=("b",)).node("b"))
    assert by_a_member.reason == "node b joins once it and a reach each other"
    assert isinstance(settled(running(A).node("b", cut=("c",))).decision, Propose)


def test_a_join_is_planned_once_it_has_settled() -> None:
    job = running(A).node("b")
    first = ask(job, now=100.0)
    assert first.decision is None
    assert first.reason == "settling: new worker takes ranks 2-3"
    verdict = ask(job, now=100.5, memory=first.memory)
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.workers == (A, B)
    assert verdict.decision.plan.main == A


def test_slots_that_come_one_after_the_other_become_one_plan() -> None:
    job = running(A).node("b", "standby", "starting")
    first = ask(job, now=100.0)
    job.node("b", "standby", "standby")
    second = ask(job, now=100.4, memory=first.memory)
    assert second.decision is None
    assert isinstance(ask(job, now=100.9, memory=second.memory).decision, Propose)


def test_a_slot_that_would_not_shorten_the_step_stays_standby() -> None:
    job = Job().leads()
    everyone = [worker(name) for name in "abc"]
    for name in "abc":
        job.node(name, "in_use")
    job.committed(commit(1, dict(zip(everyone, ([0, 1], [2], [3]), strict=True))))
    job.put(KEYS.job, job_spec(logical_workers=4))
    # four ranks on three slots take two micro-steps; only a fourth slot would help
    verdict = settled(job.node("d"))
    assert isinstance(verdict.decision, Propose)
    job = running(A, B).node("c")
    assert settled(job).reason == "1 slot stays standby: the step would not be shorter"


def test_a_slot_of_another_kind_stays_standby_and_says_why() -> None:
    job = running(A).node("b", kind="avx2")
    verdict = settled(job)
    assert verdict.decision is None
    assert verdict.reason == "b/cpu:0 stays standby: of kind avx2, the job is of kind cpu"


def test_no_second_change_while_one_is_being_entered() -> None:
    job = running(A)
    job.committed(commit(2, [A, B], mode=Mode.BOUNDARY), entered=[A]).node("b", "in_use")
    verdict = settled(job.node("c").node("d"))
    assert verdict.decision is None
    assert verdict.reason == "gen 2 is still being entered"


def test_a_drained_node_gives_its_ranks_away_and_the_reason_says_who_asked() -> None:
    job = running(A, B, C).node("c", "draining").wish("drain", "c", by="SIGTERM, 30 s grace")
    verdict = settled(job)
    decision = verdict.decision
    assert isinstance(decision, Propose)
    assert decision.plan.workers == (A, B)
    assert decision.plan.reason == "node c (SIGTERM, 30 s grace)"


def test_a_wish_that_the_agent_has_yet_to_see_drains_as_well() -> None:
    verdict = settled(running(A, B).wish("drain", "b", "cpu:0"))
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.workers == (A,)


def test_when_the_last_node_drains_the_job_pauses() -> None:
    verdict = settled(running(A).node("a", "draining").wish("drain", "a", by="SIGINT"))
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.assignments == ()


def test_stop_pauses_the_job_and_is_answered_by_its_outcome() -> None:
    job = running(A).wish("stop", by="ann")
    verdict = settled(job)
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.assignments == ()
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    job.committed(pause)
    assert ask(job).reason == "pausing: waits for a/cpu:0"
    ended = ask(job.gone(A, drained=True, step=12, signal=None, exit_code=0))
    assert isinstance(ended.decision, End)
    assert ended.decision.outcome.state is JobState.STOPPED
    assert ended.decision.outcome.step == 12
    assert ended.decision.wishes == ("stop-",)


def test_a_pause_that_comes_in_the_scripts_tail_finds_the_job_finished() -> None:
    job = running(A, B).wish("stop", by="ann")
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    job.committed(pause).gone(B, finished=True, signal=None, exit_code=0, step=9)
    assert ask(job).decision is None
    ended = ask(job.gone(A, finished=True, digest="aa", signal=None, exit_code=0, step=9))
    assert isinstance(ended.decision, End)
    assert ended.decision.outcome.state is JobState.FINISHED
    assert ended.decision.outcome.digest == "aa"
    assert ended.decision.wishes == ("stop-",)


def test_a_main_that_is_killed_in_its_tail_leaves_a_pausing_job_unfinished() -> None:
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    job = running(A, B).committed(pause)
    ended = ask(job.gone(A, drained=True).gone(B, finished=True, signal=None, exit_code=0))
    assert isinstance(ended.decision, End)
    assert ended.decision.outcome.state is JobState.STOPPED


def test_a_loss_during_a_pause_is_answered_and_the_pause_planned_again() -> None:
    job = running(A, B).wish("stop", by="ann")
    pause = msgspec.structs.replace(commit(2, [A], mode=Mode.BOUNDARY), members=(), main=None)
    job.committed(pause)
    verdict = ask(job.gone(B))
    assert members(verdict) == (A,)
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.commit.generation == number(3)
    job.committed(decision.commit)
    again = settled(job)
    assert isinstance(again.decision, Propose)
    assert again.decision.plan.assignments == ()


def test_measured_slots_are_rebalanced_when_it_pays() -> None:
    job = Job(job_spec(logical_workers=6, mixes=True)).leads()
    job.node("a", ("in_use", 0.010), kind="cpu (H)").node("b", ("in_use", 0.020), kind="cpu (A)")
    job.committed(commit(1, {A: [0, 1, 2], B: [3, 4, 5]}))
    verdict = settled(job)
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.reason == "A 50/s, H 100/s: a 3 → 4, b 3 → 2 a slot"
    assert verdict.decision.plan.step_s == (0.06, 0.04)
    assert verdict.decision.plan.workers == (A, B)


def test_a_gain_that_does_not_pay_changes_nothing() -> None:
    job = Job(job_spec(logical_workers=60, mixes=True)).leads()
    job.node("a", ("in_use", 0.0100)).node("b", ("in_use", 0.0102))
    job.committed(commit(1, {A: range(30), B: range(30, 60)}))
    assert settled(job).decision is None


def rebalanced(steps_per_s: float) -> tuple[Job, Memory]:
    """A rebalance was committed at 10 steps/s and has run for long enough to be judged."""
    job = Job(job_spec(logical_workers=6, mixes=True)).leads()
    job.node("a", ("in_use", 0.010)).node("b", ("in_use", 0.020))
    job.committed(commit(1, {A: [0, 1, 2], B: [3, 4, 5]})).progress(100, steps_per_s=10.0)
    verdict = settled(job)
    assert isinstance(verdict.decision, Propose)
    plan = verdict.decision.plan
    job.planned(plan, ready=[A, B])
    made = ask(job, now=102.0, memory=verdict.memory)
    assert isinstance(made.decision, CommitPlan)
    job.committed(made.decision.commit).progress(121, steps_per_s=steps_per_s)
    return job, made.memory


def test_a_rebalance_that_measures_worse_is_taken_back_and_not_tried_again() -> None:
    job, memory = rebalanced(steps_per_s=8.0)
    first = ask(job, now=110.0, memory=memory)
    back = ask(job, now=111.0, memory=first.memory)
    assert isinstance(back.decision, Propose)
    assert [each.ranks for each in back.decision.plan.assignments] == [(0, 1, 2), (3, 4, 5)]
    assert back.decision.plan.reason == ("back to 3+3: step 100 → 125 ms, slower than before")
    job.planned(back.decision.plan, ready=[A, B])
    made = ask(job, now=112.0, memory=back.memory)
    assert isinstance(made.decision, CommitPlan)
    job.committed(made.decision.commit)
    later = ask(job, now=113.0, memory=made.memory)
    again = ask(job, now=120.0, memory=later.memory)
    assert again.decision is None or isinstance(again.decision, Tidy)
    assert again.reason in {"4+2 was measured slower than it promised", ""}


def test_a_rebalance_that_holds_what_it_promised_stays() -> None:
    job, memory = rebalanced(steps_per_s=12.0)
    first = ask(job, now=110.0, memory=memory)
    later = ask(job, now=111.0, memory=first.memory)
    assert not isinstance(later.decision, Propose)
    assert later.memory.trial is None


# --- the open plan -----------------------------------------------------------------------------


def proposed(verdict: Verdict) -> tuple[WorkerId, ...]:
    assert isinstance(verdict.decision, Propose), verdict.reason
    return verdict.decision.plan.workers


def planned(job: Job) -> Job:
    verdict = settled(job)
    assert isinstance(verdict.decision, Propose)
    return job.planned(verdict.decision.plan)


def test_a_plan_is_committed_when_every_member_holds_it() -> None:
    job = planned(running(A).node("b"))
    assert ask(job).reason == "a/cpu:0 and b/cpu:0 have not said ready for gen 2"
    job.planned(job.view().plans[number(2)], ready=[A, B])
    assert members(ask(job)) == (A, B)


def test_a_plan_is_given_up_when_a_member_is_gone() -> None:
    job = planned(running(A).node("b"))
    verdict = ask(job.gone(B))
    assert verdict.decision == GiveUp(number(2))
    assert verdict.reason == "gen 2 given up: b/cpu:0 ended before it was committed"


def test_a_restarted_process_on_the_same_slot_is_no_member_of_the_plan() -> None:
    job = planned(running(A).node("b")).gone(B).node("b", "standby", spawn=2)
    assert ask(job).decision == GiveUp(number(2))


def test_a_plan_nobody_answers_is_given_up_in_the_end() -> None:
    job = planned(running(A).node("b"))
    first = ask(job, now=200.0)
    late = ask(job, now=205.0, memory=first.memory)
    assert late.decision == GiveUp(number(2))


def test_newcomers_that_do_not_answer_are_left_out_and_asked_again_after_ever_longer() -> None:
    job = running(A).node("b", "standby", "standby", "standby")
    job = planned(job)
    made = job.view().plans[number(2)]
    assert made.workers == (A, B, B1, B2)
    job.planned(made, ready=[A, B, B2])
    first = ask(job, now=200.0)
    assert first.decision is None
    assert first.wake_s == 205.0
    late = ask(job, now=205.0, memory=first.memory)
    assert late.decision == GiveUp(number(2))
    job.drop(KEYS.plan(number(2)))
    for each in (A, B, B2):
        job.drop(KEYS.ready(number(2), each))
    soon = ask(job, now=205.1, memory=late.memory)
    assert proposed(ask(job, now=205.6, memory=soon.memory)) == (A, B)
    then = ask(job, now=210.0, memory=late.memory)
    assert proposed(ask(job, now=210.5, memory=then.memory)) == (A, B, B1, B2)

    bench = late.memory.benched[B1]
    assert (bench.times, bench.until_s) == (1, 210.0)
    twice = benching.bench(late.memory, [B1], 211.0, launch_settings().timeouts)
    assert (twice.benched[B1].times, twice.benched[B1].until_s) == (2, 221.0)


def test_a_late_word_of_a_newcomer_is_enough_to_ask_it_again() -> None:
    memory = benching.bench(Memory(), [B, B1], 200.0, launch_settings().timeouts)
    job = running(A).node("b", "standby", "standby")
    job.put(KEYS.ready(number(7), B), Readiness(address="b"))
    assert ask(job, now=200.1, memory=memory).memory.benched.keys() == {B1}
    assert ask(job.gone(B1), now=200.1, memory=memory).memory.benched == {}


def test_a_member_at_work_that_does_not_answer_is_waited_for() -> None:
    job = planned(running(A).node("b"))
    job.planned(job.view().plans[number(2)], ready=[B])
    first = ask(job, now=200.0)
    assert ask(job, now=259.0, memory=first.memory).decision is None
    assert ask(job, now=260.0, memory=first.memory).decision == GiveUp(number(2))


def test_a_plan_waits_for_newcomers_for_a_part_of_a_short_grace() -> None:
    job = planned(running(A).node("b"))
    settings = launch_settings(grace_s=6.0)
    first = ask(job, now=200.0, settings=settings)
    assert first.wake_s == 201.0


@pytest.mark.parametrize("kind", ("drain", "stop"))
def test_a_plan_that_waits_is_given_up_at_once_for_what_is_asked_of_its_members(kind: str) -> None:
    job = planned(running(A).node("b"))
    job.planned(job.view().plans[number(2)], ready=[A])
    first = ask(job, now=200.0)
    verdict = ask(job.wish(kind, "a"), now=200.1, memory=first.memory)
    assert verdict.decision == GiveUp(number(2))
    assert verdict.reason.endswith(", and b/cpu:0 has not said ready for gen 2")
    assert not verdict.memory.benched, "it had no time to answer"


def test_the_plan_that_a_drain_asked_for_is_not_given_up_for_it() -> None:
    job = running(A).node("b").wish("drain", "a")
    job = planned(job)
    job.planned(job.view().plans[number(2)], ready=[A])
    first = ask(job, now=200.0)
    assert ask(job, now=200.1, memory=first.memory).decision is None


def test_where_the_last_drain_who_did_not_answer_once_has_a_second_chance() -> None:
    memory = benching.bench(Memory(), [B], 200.0, launch_settings().timeouts)
    job = running(A).node("b").wish("drain", "a")
    first = ask(job, now=200.0, memory=memory)
    second = ask(job, now=201.0, memory=first.memory)
    assert second.decision is None
    assert "b/cpu:0 may be ready soon to take over" in second.reason
    third = ask(job, now=205.0, memory=second.memory)
    fourth = ask(job, now=205.5, memory=third.memory)
    assert proposed(fourth) == (A, B)


def test_a_new_leader_takes_over_an_open_plan() -> None:
    job = planned(running(A).node("b"))
    job.planned(job.view().plans[number(2)], ready=[A, B])
    assert members(ask(job, memory=Memory())) == (A, B)


# --- endings -----------------------------------------------------------------------------------


def test_when_all_have_finished_the_outcome_has_mains_digest() -> None:
    job = running(A, B)
    for each, digest in ((A, "aa"), (B, "bb")):
        job.gone(each, finished=True, signal=None, exit_code=0, digest=digest, step=9)
    verdict = ask(job)
    assert isinstance(verdict.decision, End)
    assert verdict.decision.outcome.digest == "aa"
    assert verdict.decision.outcome.step == 9
    assert verdict.decision.outcome.exit_code == 0


def test_however_the_others_end_after_main_the_job_has_finished() -> None:
    job = running(A, B).gone(A, finished=True, signal=None, exit_code=0, digest="aa", step=9)
    killed = WorkerFailure(
        type="SIGKILL", headline="killed by SIGKILL", place="", rank=None, step=9,
        generation=None, pid=None, log="", job_step=9,
    )  # fmt: skip
    verdict = ask(job.gone(B, failure=killed), settings=launch_settings(max_restarts=0))
    assert isinstance(verdict.decision, End)
    assert verdict.decision.outcome.state is JobState.FINISHED
    assert verdict.decision.outcome.digest == "aa"


def drained_at_the_end() -> Job:
    """A drain of main was committed at the last boundary, and nobody entered what it led to."""
    return running(A, B).committed(commit(2, [B], mode=Mode.BOUNDARY), entered=False)


def came_to_end(job: Job, who: WorkerId, *, is_main: bool) -> Job:
    how = {"how": "exited 0", "signal": None, "exit_code": 0, "step": 9}
    return job.gone(who, **how, finished=True, is_main=is_main, digest="aa" if is_main else "bb")


def test_the_outcome_has_the_digest_of_who_was_main_to_the_end() -> None:
    job = came_to_end(came_to_end(drained_at_the_end(), B, is_main=False), A, is_main=True)
    verdict = ask(job)
    assert isinstance(verdict.decision, End)
    assert (verdict.decision.outcome.digest, verdict.decision.outcome.step) == ("aa", 9)


def test_who_was_main_to_the_end_is_waited_for_whatever_was_planned() -> None:
    verdict = ask(came_to_end(drained_at_the_end(), B, is_main=False))
    assert verdict.decision is None
    assert verdict.reason == "finished: waits for a/cpu:0 to end"
    rest = ask(came_to_end(drained_at_the_end(), A, is_main=True))
    assert rest.decision is None
    assert rest.reason == "finished: waits for b/cpu:0 to end"


def test_whoever_a_plan_at_the_end_leaves_out_is_waited_for_too() -> None:
    job = running(A, B, C).committed(commit(2, [B], mode=Mode.BOUNDARY), entered=False)
    came_to_end(came_to_end(job, B, is_main=False), A, is_main=True)
    assert ask(job).reason == "finished: waits for c/cpu:0 to end"


def test_a_newcomer_that_a_plan_at_the_end_names_keeps_no_job_from_its_end() -> None:
    job = running(A, B).node("c", "in_use")
    job.committed(commit(2, [B, C], mode=Mode.BOUNDARY), entered=False)
    came_to_end(came_to_end(job, B, is_main=False), A, is_main=True)
    job.broken(commit(2, [B, C]), C, B)
    assert isinstance(ask(job).decision, End)


def test_a_main_that_dies_in_its_tail_after_a_plan_at_the_end_does_it_again() -> None:
    job = came_to_end(drained_at_the_end(), B, is_main=False).snapshot(9).gone(A)
    assert ask(job).decision is None
    job.node("a", "standby", spawn=2)
    assert members(settled(job)) == (worker("a", 2),)


def test_who_broke_in_the_last_operation_completes_it_though_main_has_finished() -> None:
    job = came_to_end(drained_at_the_end(), A, is_main=True)
    waits = ask(job.broken(commit(1, [A, B]), B, A), now=50.0)
    assert members(ask(job, now=50.1, memory=waits.memory)) == (B,)


def test_the_survivor_of_a_loss_after_the_end_ends_the_job_beside_the_lost_main() -> None:
    job = running(A, B).gone(A)
    job.committed(commit(2, [B], mode=Mode.NOW), entered=False)
    verdict = ask(came_to_end(job, B, is_main=False))
    assert isinstance(verdict.decision, End)
    assert verdict.decision.outcome.digest == "bb"


def test_a_main_that_an_older_generation_had_before_a_restore_ends_nothing() -> None:
    job = running(A, B).committed(commit(2, [C], mode=Mode.RESTORE)).node("c", "in_use")
    verdict = ask(came_to_end(job, A, is_main=True))
    assert not isinstance(verdict.decision, End)
    assert "finished" not in verdict.reason


def test_a_main_that_dies_in_the_scripts_tail_does_it_again() -> None:
    job = running(A, B).snapshot(9)
    job.gone(B, finished=True, signal=None, exit_code=0).gone(A)
    job.node("a", "standby", spawn=2)
    assert members(settled(job)) == (worker("a", 2),)


def test_nothing_is_decided_after_the_outcome() -> None:
    job = running(A, B).outcome(Outcome(state=JobState.FINISHED, exit_code=0, reason="x"))
    assert ask(job.gone(B)).decision is None


def test_an_earlier_outcome_is_where_a_new_start_goes_on_with_a_fresh_budget() -> None:
    job = running(A).gone(A).snapshot(50)
    job.outcome(Outcome(state=JobState.FAILED, exit_code=5, reason="x"))
    job.node("a", "standby", life="2")
    verdict = ask(job, since_revision=job.revision)
    decision = verdict.decision
    assert isinstance(decision, CommitAtOnce)
    assert decision.clears_outcome
    assert decision.commit.snapshot is not None
    assert decision.commit.snapshot.step == 50


def test_truth_that_cannot_be_read_stops_all_decisions() -> None:
    job = running(A, B).gone(B).put(KEYS.commit(number(2)), '{"version": 99}')
    verdict = ask(job)
    assert verdict.decision is None
    assert KEYS.commit(number(2)) in verdict.reason


def test_the_order_of_the_keys_decides_nothing() -> None:
    job = running(A, B, C).gone(B).node("d")
    mirrored = Job()
    mirrored.revision = job.revision
    mirrored.entries = dict(reversed(job.entries.items()))
    assert ask(job) == ask(mirrored)
