"""A job whose memory runs out, from a worker's last word to the plan that keeps what it taught."""

import msgspec
import pytest

from easyscale.agent import actions, events
from easyscale.agent.cause import failure_of
from easyscale.agent.leader import decide
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.agent.state import OwnWorker, Phase
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.messages import Failure, Initialised, StepReport
from easyscale.model import (
    JobState,
    LogicalRank,
    Mode,
    NodeRecord,
    SlotRecord,
    WorkerFailure,
    WorkerId,
    decode,
)
from easyscale.rendezvous.agreement import CommitAtOnce, End, Propose, Tidy
from easyscale.reports import EventKind
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker
from tests.unit.agent.test_machine import W0, W1, Agent, of, report, said

A, B = worker("a"), worker("b")
SHARED = StoreSettings(endpoints=("etcd:2379",))
TEXT = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"


def ran_out(rank: int = 0, step: int = 7) -> WorkerFailure:
    return WorkerFailure(
        type="RuntimeError",
        headline=f"RuntimeError: {TEXT}",
        place="train.py:4",
        rank=LogicalRank(rank),
        step=step,
        generation=number(1),
        pid=1,
        log="",
    )


def ask(
    job: Job,
    *,
    now: float = 100.0,
    memory: Memory | None = None,
    settings: LaunchSettings | None = None,
) -> Verdict:
    at = Standpoint(
        view=job.view(),
        now=now,
        settings=settings or launch_settings(logical_workers=16),
        keys=KEYS,
        spec=job_spec(logical_workers=16),
        since_revision=1,
    )
    return decide(at, memory or Memory())


def started(**ranks: range) -> Job:
    """Nodes of one slot each, with these ranks of 16."""
    job = Job(job_spec(logical_workers=16)).leads()
    for name in ranks:
        job.node(name, "in_use")
    return job.committed(commit(1, {worker(name): held for name, held in ranks.items()}))


def alone_on_one_slot() -> Job:
    job = started(a=range(16))
    return job.gone(A, ranks=tuple(range(16)), failure=ran_out()).node("a", "standby", spawn=2)


# --- what a job does about it --------------------------------------------------------------------

SHORT = "16 logical workers do not fit: a/cpu:0 takes 8; add a slot or make the batch smaller"


def test_a_job_that_nobody_can_come_to_ends_with_what_ran_out_and_what_fits() -> None:
    verdict = ask(alone_on_one_slot())
    assert isinstance(verdict.decision, End)
    outcome = verdict.decision.outcome
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, 1)
    assert outcome.reason == f"RuntimeError: {TEXT}: {SHORT}"
    assert outcome.cause is not None
    assert (outcome.cause.worker, outcome.cause.why_ended) == (A, SHORT)
    assert (outcome.cause.blames, outcome.cause.failure) == ("memory", ran_out())


def test_for_want_of_memory_no_job_ends_while_a_silent_node_may_train_on() -> None:
    job = started(a=range(8), b=range(8, 16)).node("a", "standby", spawn=2).drop(KEYS.node("b"))
    job.gone(A, ranks=tuple(range(16)), failure=ran_out())
    job.committed(commit(2, {B: range(16)}))
    first = ask(job, now=100.0)
    assert first.decision is None
    assert first.reason == "gen 2 could still run: waits for b/cpu:0 or proof that it ended"
    assert isinstance(ask(job, now=160.0, memory=first.memory).decision, End)


def test_a_slot_of_the_same_node_that_still_starts_is_waited_for_a_moment() -> None:
    job = alone_on_one_slot().node("b", "starting")
    first = ask(job, now=100.0)
    later = ask(job, now=102.0, memory=first.memory)
    assert later.decision is None
    assert later.reason == SHORT
    timeouts = launch_settings().timeouts
    last = ask(job, now=100.0 + timeouts.prepare_timeout_s, memory=later.memory)
    assert isinstance(last.decision, End)


def test_a_job_that_others_can_come_to_waits_for_their_slots_and_says_so() -> None:
    settings = launch_settings(logical_workers=16, store=SHARED)
    job = alone_on_one_slot()
    verdict = ask(job, settings=settings)
    assert verdict.decision is None
    assert verdict.reason == SHORT
    assert verdict.waiting is not None
    limit_s = settings.timeouts.meeting_timeout_s
    assert (verdict.waiting.since_s, verdict.waiting.limit_s) == (100.0, limit_s)
    assert verdict.wake_s == 100.0 + limit_s
    late = ask(job, now=100.0 + limit_s, memory=verdict.memory, settings=settings)
    assert isinstance(late.decision, End)


def test_a_slot_that_comes_takes_what_does_not_fit() -> None:
    settings = launch_settings(logical_workers=16, store=SHARED)
    waiting = ask(alone_on_one_slot(), settings=settings)
    job = alone_on_one_slot().node("b", "standby")
    verdict = ask(job, now=101.0, memory=waiting.memory, settings=settings)
    assert isinstance(verdict.decision, CommitAtOnce)
    held = {m.worker.node: len(m.ranks) for m in verdict.decision.commit.members}
    assert held == {"a": 8, "b": 8}


def test_who_survives_takes_what_is_left_and_it_is_said_where_that_is_beyond_its_memory() -> None:
    """Nobody else has the state; should it run out as well, the snapshot is on all slots."""
    job = started(a=range(8), b=range(8, 16))
    job.gone(worker("a", 0), ranks=tuple(range(16)), failure=ran_out())
    job.gone(B, ranks=tuple(range(8, 16)), failure=None)
    verdict = ask(job)
    assert isinstance(verdict.decision, CommitAtOnce)
    made = verdict.decision.commit
    assert made.mode is Mode.NOW
    assert [len(m.ranks) for m in made.members] == [16]
    assert made.reason.endswith("; a/cpu:0 has 16 and memory for 8, as it seems")


def test_no_drain_leaves_slots_that_are_known_not_to_hold_the_rest() -> None:
    job = started(a=range(8), b=range(8, 16))
    job.gone(worker("a", 0), ranks=tuple(range(16)), failure=ran_out())
    job.node("b", "draining")
    first = ask(job, now=100.0)
    verdict = ask(job, now=110.0, memory=first.memory)
    assert not isinstance(verdict.decision, Propose)
    assert verdict.reason == (
        "node b: a/cpu:0 would be given 16 and takes 8 since it ran out of memory;"
        " add a slot or make the batch smaller"
    )


def test_a_drain_without_that_goes_on() -> None:
    job = started(a=range(8), b=range(8, 16)).node("b", "draining")
    first = ask(job, now=100.0)
    assert isinstance(ask(job, now=110.0, memory=first.memory).decision, Propose)


def test_a_drain_to_where_memory_only_seems_short_goes_on_and_says_so() -> None:
    job = started(a=range(8), b=range(8, 16)).node("b", "draining")
    key = KEYS.node("a")
    record = decode(job.entries[key].value, NodeRecord, source=key)
    slots = tuple(msgspec.structs.replace(s, free_bytes=0, partial_bytes=100) for s in record.slots)
    job.put(key, msgspec.structs.replace(record, slots=slots), leased=True)
    first = ask(job, now=100.0)
    verdict = ask(job, now=110.0, memory=first.memory)
    assert isinstance(verdict.decision, Propose)
    assert verdict.decision.plan.reason == ("node b; a/cpu:0 has 16 and memory for 15, as it seems")


def test_what_was_learned_outlives_the_failures_that_are_forgiven() -> None:
    """Tidying deletes the records of workers that no generation names any more."""
    job = started(a=range(8), b=range(8, 16)).progress(10_000)
    teacher, other = worker("a", -1), worker("a", 0)
    for old, failure in ((teacher, ran_out(step=0)), (other, None)):
        job.gone(old, ranks=tuple(range(16)), failure=failure)
    verdict = ask(job)
    assert isinstance(verdict.decision, Tidy)
    assert KEYS.gone_worker(other) in verdict.decision.keys
    assert KEYS.gone_worker(teacher) not in verdict.decision.keys


# --- how it is told ------------------------------------------------------------------------------


def out_of_memory(rank: int) -> Failure:
    return Failure(
        type="RuntimeError", text=TEXT, rank=LogicalRank(rank), step=3, generation=number(1),
        file="/w/train.py", line=4, function="<module>", caller="", excerpt=(), hidden_frames=0,
        traceback="", refused=False,
    )  # fmt: skip


def test_a_worker_that_ran_out_is_told_with_its_slot_and_what_fits_there() -> None:
    agent = Agent().running()
    agent.take(said(W0, out_of_memory(2)))
    agent.exits(W0, code=1)
    told = "exited 1: out of memory with 2 logical ranks; a/cpu:0 takes at most 1 from now on"
    assert agent.ending(W0).how == told
    assert [e.reason for e in agent.announced if e.event is EventKind.LOST] == [told]


def test_another_failure_is_told_without_it() -> None:
    agent = Agent().running()
    agent.exits(W0, code=3)
    assert agent.ending(W0).how == "exited 3"


def test_a_worker_that_the_kernel_killed_for_want_of_memory_has_run_out() -> None:
    agent = Agent().running()
    agent.take(
        events.WorkerExited(
            worker=W0, pid=1, exit_code=None, signal=9, last_words="",
            killed_for="out of memory, says the kernel's log",
        )
    )  # fmt: skip
    ending = agent.ending(W0)
    assert ending.how == (
        "killed by SIGKILL: out of memory with 2 logical ranks; a/cpu:0 takes at most 1 from now on"
    )
    assert ending.failure is not None
    assert ending.failure.headline == "killed by SIGKILL: out of memory, says the kernel's log"


def test_a_worker_that_somebody_killed_has_not() -> None:
    agent = Agent().running()
    agent.exits(W0, signal=9)
    assert agent.ending(W0).how == "killed by SIGKILL"


def test_the_kernels_reason_stands_before_the_last_words() -> None:
    who = OwnWorker(W0, Phase.MEMBER, 0.0, initialised=True)
    exited = events.WorkerExited(
        worker=W0, pid=1, exit_code=None, signal=9, last_words="epoch 3", killed_for="out of memory"
    )
    failure = failure_of(who, exited, settings=launch_settings())
    assert failure.headline == 'killed by SIGKILL: out of memory (last on stderr: "epoch 3")'


# --- what is registered of it --------------------------------------------------------------------

GB = 1_000_000_000


def measured(
    free: int | None, *, partial: int | None = GB, taken: int | None = 3 * GB, rank_s: float = 0.02
) -> StepReport:
    return msgspec.structs.replace(
        report(3, micro_step_s=rank_s),
        free_bytes=free,
        partial_bytes=partial,
        taken_bytes=taken,
    )


def tell(agent: Agent, who: WorkerId, step_report: StepReport, *, after_s: float = 6.0) -> None:
    agent.now += after_s
    agent.take(events.Ticked(beats={}, monotonic_s=agent.now, reports={who: step_report}))


def registered(agent: Agent, index: int = 0) -> tuple[int | None, int | None, int | None]:
    slot: SlotRecord = of(agent.done, actions.Enrol)[-1].record.slots[index]
    return slot.free_bytes, slot.partial_bytes, slot.taken_bytes


def test_what_a_worker_measures_of_its_memory_is_registered() -> None:
    agent = Agent().running()
    tell(agent, W0, measured(64 * GB))
    assert registered(agent) == (64 * GB, GB, 3 * GB)


@pytest.mark.parametrize("free", [0, 40 * GB, 100 * GB, None])
def test_memory_that_changed_much_is_news_at_the_same_speed(free: int | None) -> None:
    agent = Agent().running()
    tell(agent, W0, measured(64 * GB))
    tell(agent, W0, measured(free))
    assert registered(agent) == (free, GB, 3 * GB)


def test_memory_that_was_gone_and_is_free_again_is_news() -> None:
    agent = Agent().running()
    tell(agent, W0, measured(0))
    tell(agent, W0, measured(GB))
    assert registered(agent)[0] == GB


def test_a_small_change_of_it_is_none() -> None:
    agent = Agent().running()
    tell(agent, W0, measured(64 * GB))
    before = len(of(agent.done, actions.Enrol))
    tell(agent, W0, measured(60 * GB, taken=4 * GB - 1))
    assert len(of(agent.done, actions.Enrol)) == before


def test_a_change_of_it_is_passed_on_no_more_often_than_a_change_of_speed() -> None:
    agent = Agent().running()
    tell(agent, W0, measured(64 * GB))
    tell(agent, W0, measured(0), after_s=0.1)
    assert registered(agent)[0] == 64 * GB
    tell(agent, W0, measured(0))
    assert registered(agent)[0] == 0


def test_a_member_that_computes_nothing_says_what_is_free_as_well() -> None:
    agent = Agent().running()
    idle = msgspec.structs.replace(measured(5 * GB), micro_step_s=None)
    tell(agent, W1, idle)
    assert registered(agent, 1) == (5 * GB, GB, 3 * GB)


def test_a_newcomer_says_what_it_found_free() -> None:
    agent = Agent().opened()
    hello = Initialised(worker=W0, pid=7, torch_version="2", kind="cpu", free_bytes=9 * GB)
    agent.take(events.WorkerForked(worker=W0, pid=7), said(W0, hello))
    assert registered(agent) == (9 * GB, None, None)


def test_another_process_on_the_slot_has_another_memory() -> None:
    agent = Agent().running()
    tell(agent, W0, measured(64 * GB))
    agent.exits(W0, signal=9)
    agent.tick()
    again = of(agent.done, actions.Fork)[-1].worker
    assert again.slot == W0.slot
    hello = Initialised(worker=again, pid=7, torch_version="2", kind="cpu", free_bytes=9 * GB)
    agent.take(events.WorkerForked(worker=again, pid=7), said(again, hello))
    assert registered(agent) == (9 * GB, None, None)
