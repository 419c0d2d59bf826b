"""A job's state is composed from what the store holds, and from what an agent alone knows."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.doors.chronicle import MetricStory, Told
from easyscale.agent.doors.status import Own, status_of
from easyscale.agent.events import Slot
from easyscale.agent.hardware.meter import Reading
from easyscale.agent.settings import Identity
from easyscale.agent.state import Now, OwnWorker, Phase, State, Totals
from easyscale.balance import SlowSlot, SpeedRecord
from easyscale.job_status import Glance, JobStatus, SlotFacts
from easyscale.messages import StepReport
from easyscale.model import (
    JobState,
    Mode,
    Outcome,
    Position,
    SlotState,
    SnapshotReference,
    WorkerFailure,
    encode,
)
from easyscale.reports import EventKind, JobEvent
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker

WALL_S = 1_780_000_000.0
A, B = worker("a"), worker("b")


def seen(job: Job, own: Own | None = None) -> JobStatus:
    return status_of("job", job.view(), wall_s=WALL_S, own=own)


def slot(status: JobStatus, place: str) -> SlotFacts:
    return next(each for each in status.slots if each.place == place)


def running() -> Job:
    """Two nodes of a slot each, two ranks a slot, all entered."""
    job = Job().node("a", ("in_use", 0.05)).node("b", ("in_use", 0.05))
    return job.committed(commit(1, {A: (0, 1), B: (2, 3)})).progress(120)


def report(step: int, **changes: object) -> StepReport:
    values: dict[str, object] = {
        "position": Position(step), "step": step, "steps": 200, "epoch": 1, "epochs": 2,
        "metrics": {"accuracy": 0.5, "loss": 0.25}, "step_s": 0.2, "micro_step_s": 0.06,
        "exchange_wait_s": 0.01, "data_wait_s": 0.001, "samples_per_step": 32,
    }  # fmt: skip
    return StepReport(**{**values, **changes})  # type: ignore[arg-type]


def agent(job: Job, **changes: object) -> Own:
    """The agent of node a, whose worker has just reported step 130."""
    own_worker = OwnWorker(A, Phase.MEMBER, 0.0, pid=77, ranks=(), report=report(130))
    state = State(
        settings=launch_settings(max_restarts=2, snapshot_every_steps=50),
        identity=Identity(node="a", incarnation="a-boot-1", boot_id="b", host="a", address=""),
        keys=KEYS,
        began_s=100.0,
        slots=(Slot(name="cpu:0"),),
        workers={"cpu:0": own_worker},
        record=job.view().nodes["a"].record,
        view=job.view(),
        commit=job.view().newest,
    )
    return Own(
        state=msgspec.structs.replace(state, **changes),
        now=Now(160.0, WALL_S),
        told=Told(),
        user="ann",
    )


# --- from the store alone ----------------------------------------------------------------------


def test_the_store_alone_tells_ranks_speed_and_how_far_the_job_is() -> None:
    status = seen(running())
    assert status.job.state is JobState.RUNNING
    assert (status.job.step, status.job.steps_per_s, status.job.generation) == (120, 10.0, 1)
    assert slot(status, "a/cpu:0").ranks == (0, 1)
    assert slot(status, "b/cpu:0").process_rank == 1
    assert slot(status, "a/cpu:0").busy_s == pytest.approx(0.1)
    assert status.counts.in_use == 2
    assert status.counts.nodes == 2
    assert (status.job.started, status.job.user, status.budget.limit) == (None, None, None)


def test_a_job_without_a_commit_starts_and_one_without_nodes_waits() -> None:
    assert seen(Job()).job.state is JobState.WAITING
    assert seen(Job().node("a", "starting")).job.state is JobState.STARTING


def test_a_commit_that_restores_and_is_not_entered_is_a_restore() -> None:
    made = commit(1, [A])
    job = Job().node("a").committed(made, entered=False)
    assert seen(job).job.state is JobState.STARTING
    reference = SnapshotReference("step-00000040", 40, "d")
    from_snapshot = msgspec.structs.replace(made, snapshot=reference)
    status = seen(Job().node("a").committed(from_snapshot, entered=False))
    assert status.job.state is JobState.RESTORING
    assert status.job.step == 40


def test_members_that_are_all_gone_while_others_came_mean_a_restore() -> None:
    job = running().gone(A).gone(B).node("c")
    assert seen(job).job.state is JobState.RESTORING


def test_a_member_without_a_registration_is_a_slot_that_is_gone() -> None:
    status = seen(running().drop(KEYS.node("b")))
    missing = slot(status, "b/cpu:0")
    assert (missing.state, missing.note) == ("gone", "its agent is silent")
    ended = slot(seen(running().drop(KEYS.node("b")).gone(B)), "b/cpu:0")
    assert ended.note == "killed by SIGKILL"


def test_a_pause_is_draining_with_its_reason() -> None:
    pause = commit(2, {}, mode=Mode.BOUNDARY)
    status = seen(running().committed(pause, entered=False))
    assert status.job.state is JobState.DRAINING
    assert status.job.note == "as told"
    assert status.job.generation == 1, "the generation that still runs"


def test_an_outcome_is_final_until_somebody_comes_to_go_on() -> None:
    outcome = Outcome(
        state=JobState.FINISHED, exit_code=0, reason="script ended", digest="d1", step=200
    )
    job = running().outcome(outcome)
    status = seen(job)
    assert status.job.state is JobState.FINISHED
    assert (status.job.step, status.job.digest, status.job.exit_code) == (200, "d1", 0)
    assert status.slots == ()
    again = seen(job.node("c"))
    assert again.job.state is JobState.STARTING
    assert again.job.exit_code is None


@pytest.mark.parametrize(
    ("state", "shown"),
    [("draining", "draining"), ("starting", "starting"), ("standby", "standby")],
)
def test_a_slot_is_shown_as_its_agent_offers_it(state: str, shown: str) -> None:
    job = Job().node("a", "in_use", state).committed(commit(1, [A]))  # type: ignore[arg-type]
    assert slot(seen(job), "a/cpu:1").state == shown


def test_a_slot_is_gone_when_its_worker_has_ended() -> None:
    job = Job().node("a", "in_use", "gone").committed(commit(1, [A]))
    assert slot(seen(job), "a/cpu:1").state == "draining", "told to leave, and still there"
    assert slot(seen(job.gone(worker("a/1"), drained=True)), "a/cpu:1").state == "gone"


def test_a_member_without_ranks_stands_by() -> None:
    job = Job().node("a", "in_use", "in_use")
    job.committed(commit(1, {A: range(4), worker("a/1"): ()}))
    assert slot(seen(job), "a/cpu:1").state == "standby"


def test_a_slot_of_another_kind_says_why_it_stands_by() -> None:
    job = Job(job_spec(kind="cpu avx2")).node("a", "standby", kind="cpu avx512")
    note = slot(seen(job), "a/cpu:0").note
    assert note == "kind cpu avx512 would give other bits than the job's cpu avx2"


def test_a_slot_is_held_against_its_kind_and_the_busiest_sets_the_step() -> None:
    job = Job().node("a", ("in_use", 0.05), ("in_use", 0.05), ("in_use", 0.08))
    members = {worker(f"a/{i}"): (i,) for i in range(3)}
    status = seen(job.committed(commit(1, members)).progress(9, steps_per_s=10.0))
    slow = slot(status, "a/cpu:2")
    assert (slow.slow, slow.sets_step) == (False, True), "slow is what the leader calls slow"
    assert slow.against_kind == pytest.approx(1.6)
    assert slow.wait_s == pytest.approx(0.02)
    others = [slot(status, f"a/cpu:{i}") for i in (0, 1)]
    assert [(each.slow, each.sets_step) for each in others] == [(False, False)] * 2
    assert status.step_time.predicted_s == pytest.approx(0.08)


def test_one_slot_alone_keeps_nobody_waiting() -> None:
    job = Job().node("a", ("in_use", 0.05)).committed(commit(1, [A]))
    assert not slot(seen(job), "a/cpu:0").sets_step


def test_the_newest_snapshot_is_one_that_can_be_started_from() -> None:
    job = running().snapshot(50).snapshot(100).snapshot(150, rejected="damaged")
    job.snapshot(200, superseded=True)
    snapshot = seen(job).snapshot
    assert snapshot is not None
    assert (snapshot.step, snapshot.age_s, snapshot.next_step) == (100, None, None)


# --- what an agent adds ------------------------------------------------------------------------


def test_the_agent_knows_its_own_workers_better_than_the_store() -> None:
    job = running()
    own = replace(agent(job), readings={"cpu:0": Reading(utilization=0.9, memory_used_bytes=1000)})
    status = seen(job, own)
    mine, other = slot(status, "a/cpu:0"), slot(status, "b/cpu:0")
    assert (mine.pid, mine.micro_step_s, mine.utilisation_share) == (77, 0.06, 0.9)
    assert (other.pid, other.micro_step_s, other.utilisation_share) == (None, 0.05, None)
    assert (status.job.step, status.job.steps, status.job.user) == (130, 200, "ann")
    assert status.job.elapsed_s == 60.0
    assert status.job.left_s == pytest.approx(70 * 0.2)
    assert status.job.samples_per_s == pytest.approx(160)
    assert status.budget.limit == 2


def test_the_loss_comes_first_and_has_the_history_that_was_told() -> None:
    job = running()
    told = MetricStory(name="loss", first=2.3, last=0.25, history=((0, 2.3), (130, 0.25)))
    status = seen(job, replace(agent(job), told=Told(metric=told)))
    assert list(status.metrics) == ["loss", "accuracy"]
    assert status.metrics["loss"].history == ((0, 2.3), (130, 0.25))
    assert status.metrics["loss"].first == 2.3


def test_changes_are_those_that_the_agent_counts_and_the_newest_come_first() -> None:
    job = running()
    events = tuple(
        event(kind) for kind in (EventKind.MET, EventKind.STARTED, EventKind.JOINED, EventKind.LOST)
    )
    own = agent(job, totals=Totals(changes={"joined": 1, "lost": 2}, paused_s=0.5, steps_lost=3))
    changes = seen(job, replace(own, told=Told(events=events))).changes
    assert (changes.count, changes.paused_s, changes.steps_lost) == (3, 0.5, 3)
    assert [str(each.event) for each in changes.last] == ["lost", "joined", "started"]


def event(kind: EventKind) -> JobEvent:
    return JobEvent(
        at="2026-10-04T14:02:11.204Z", job="job", event=kind, step=1, era=1, generation=1, reason=""
    )


def test_the_next_snapshot_is_the_next_multiple_where_steps_are_counted() -> None:
    job = running().snapshot(100)
    own = replace(agent(job), snapshot_age_s=3.0)
    snapshot = seen(job, own).snapshot
    assert snapshot is not None
    assert (snapshot.next_step, snapshot.age_s, snapshot.keep) == (150, 3.0, 3)


def test_a_store_that_is_away_is_said_with_its_silence() -> None:
    job = running()
    store = seen(job, agent(job, away_s=150.0)).store
    assert store is not None
    assert (store.reachable, store.silent_s) == (False, 10.0)


def test_a_store_that_refuses_is_said_with_its_words() -> None:
    job = running()
    store = seen(job, agent(job, away_s=150.0, refuses="no room")).store
    assert store is not None
    assert (store.reachable, store.silent_s, store.refuses) == (False, 10.0, "no room")


def test_a_signal_that_stopped_the_job_is_its_exit_code_here() -> None:
    outcome = Outcome(state=JobState.STOPPED, exit_code=0, reason="node a (SIGINT)")
    job = running().outcome(outcome)
    assert seen(job, agent(job, signal=2)).job.exit_code == 130
    assert seen(job).job.exit_code == 0


def test_failures_without_progress_use_the_budget() -> None:
    def failed(step: int) -> WorkerFailure:
        return WorkerFailure(
            type="ValueError", headline="ValueError: 1", place="t.py:1", rank=None, step=step,
            generation=number(1), pid=1, log="",
        )  # fmt: skip

    assert seen(running()).budget.used == 0
    assert seen(running().gone(B, failure=failed(119))).budget.used == 1
    assert seen(running().gone(B, failure=failed(10))).budget.used == 0, "110 steps ago"


# --- its JSON form -----------------------------------------------------------------------------


@given(st.integers(0, 3), st.booleans())
def test_a_status_comes_back_from_json_as_it_was(spare: int, is_gone: bool) -> None:
    waiting: list[SlotState] = ["standby"] * (spare + 1)
    job = running().node("c", *waiting)
    if is_gone:
        job.gone(B)
    events = (msgspec.structs.replace(event(EventKind.LOST), facts={"ranks": (1, 2), "pid": 3}),)
    status = seen(job, replace(agent(job), told=Told(events=events)))
    glance = Glance(status=status)
    assert msgspec.json.decode(encode(glance), type=Glance) == glance
    counts = msgspec.structs.asdict(status.counts)
    assert sum(counts.values()) - counts["nodes"] == len(status.slots)


def test_a_slow_slot_that_holds_nothing_is_emptied_and_says_why() -> None:
    job = Job().node("a", ("in_use", 0.05)).node("b", ("in_use", 1.5))
    job.committed(commit(1, {A: (0, 1, 2, 3), B: ()}))
    assert slot(seen(job), "b/cpu:0").state == "standby"
    slow = SlowSlot(
        worker=B, since_step=40, micro_step_s=1.5, ratio=30.0, emptied=True, reason="30 x its kind"
    )
    record = SpeedRecord(generation=number(1), planned_at="", planned_at_step=0, slow=(slow,))
    status = seen(job.put(KEYS.speed, record))
    assert [each.slow for each in status.slots] == [False, True]
    assert slot(status, "b/cpu:0").state == "emptied"
    assert slot(status, "b/cpu:0").note == "30 x its kind"
    assert status.counts.emptied == 1
