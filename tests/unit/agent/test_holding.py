"""A restore reads a snapshot that a member holds, and waits for one that lies elsewhere."""

from pathlib import Path

import pytest

from easyscale.agent.folders import IDENTITY, folder_identity
from easyscale.agent.leader import decide
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.agent.verdicts import Standpoint, Verdict
from easyscale.errors import ExitCode
from easyscale.model import Commit, JobState, Outcome, SnapshotRecord
from easyscale.rendezvous.agreement import CommitAtOnce, End
from tests.support.views import KEYS, Job, commit, job_spec, launch_settings, number, worker

A = worker("a")
SHARED = StoreSettings(endpoints=("etcd:2379",))
APART = (
    "the snapshot of step 30 lies on a alone: start a again"
    " (any node reads it from a --snapshot-dir that all share)"
)


def ask(
    job: Job,
    *,
    now: float,
    memory: Memory | None = None,
    settings: LaunchSettings | None = None,
    since_revision: int = 1,
) -> Verdict:
    at = Standpoint(
        view=job.view(),
        now=now,
        settings=settings or launch_settings(store=SHARED),
        keys=KEYS,
        spec=job_spec(),
        since_revision=since_revision,
    )
    return decide(at, memory or Memory())


def after(job: Job, seconds: float, *, settings: LaunchSettings | None = None) -> Verdict:
    """What is decided so long after the leader first looked."""
    first = ask(job, now=100.0, settings=settings)
    soon = ask(job, now=101.0, memory=first.memory, settings=settings)
    return ask(job, now=100.0 + seconds, memory=soon.memory, settings=settings)


def killed() -> Job:
    """Node a trained, with a snapshot at step 30, and is gone."""
    job = Job().leads().committed(commit(1, [A])).gone(A)
    return job.snapshot(30, folder="A").snapshot(20, folder="A")


def restored(verdict: Verdict) -> Commit:
    assert isinstance(verdict.decision, CommitAtOnce), verdict.reason
    return verdict.decision.commit


def test_a_snapshot_on_the_disk_of_a_node_that_is_away_is_waited_for() -> None:
    verdict = after(killed().node("b", folder="B"), 500.0)
    assert (verdict.decision, verdict.reason) == (None, APART)
    assert verdict.waiting is not None
    assert verdict.waiting.limit_s == 600.0


def test_when_it_comes_its_snapshot_is_restored_and_it_is_named_as_the_holder() -> None:
    job = killed().node("b", folder="B").node("a", "standby", spawn=2, folder="A")
    made = restored(after(job, 1.0))
    assert {worker.node for worker in made.workers} == {"a", "b"}
    assert made.snapshot is not None
    assert (made.snapshot.step, made.snapshot.holders) == (30, ("a",))


def test_a_holder_that_is_still_starting_is_waited_for() -> None:
    job = killed().node("b", folder="B").node("a", "starting", spawn=2, folder="A")
    verdict = after(job, 100.0)
    assert verdict.decision is None
    assert verdict.reason == "waits for the workers of a, who can read the snapshot of step 30"


def test_a_folder_that_both_see_is_read_by_either() -> None:
    made = restored(after(killed().node("b", folder="A"), 1.0))
    assert made.snapshot is not None
    assert made.snapshot.holders == ("b",)


def test_a_node_of_the_same_name_with_another_folder_has_it_not() -> None:
    verdict = after(killed().node("a", "standby", spawn=2, folder="elsewhere"), 1.0)
    assert verdict.decision is None


def test_a_holder_that_does_not_come_ends_the_job_with_4_and_rejects_nothing() -> None:
    verdict = after(killed().node("b", folder="B"), 600.0)
    assert isinstance(verdict.decision, End)
    outcome = verdict.decision.outcome
    assert (outcome.state, outcome.exit_code) == (JobState.FAILED, ExitCode.TOO_FEW_NODES)
    assert outcome.reason.startswith("the snapshot of step 30 lies on a alone, which did not come;")


def test_an_older_one_is_taken_only_then_and_what_is_lost_is_said() -> None:
    job = killed().snapshot(25, folder="B", nodes=("b",)).node("b", folder="B")
    assert after(job, 599.0).decision is None
    made = restored(after(job, 600.0))
    assert made.snapshot is not None
    assert made.snapshot.step == 25
    assert made.reason == (
        "all were gone; the snapshot of step 30 lies on a alone, which did not come:"
        " 5 steps more are lost"
    )


def test_without_a_takeover_no_step_is_given_up() -> None:
    job = killed().snapshot(25, folder="B", nodes=("b",)).node("b", folder="B")
    verdict = after(job, 9999.0, settings=launch_settings(store=SHARED, takeover_after_s=None))
    assert verdict.decision is None
    assert verdict.waiting is not None
    assert verdict.waiting.limit_s is None


def away(job: Job, made: Commit) -> Job:
    """The lease of node a is lost, and its keys with it; its worker may train on."""
    return job.drop(KEYS.node("a")).drop(KEYS.entry(made.generation, A))


def test_a_wait_for_nodes_that_came_back_counts_for_nothing_when_they_are_away_again() -> None:
    made = commit(1, [A])
    job = Job().leads().committed(made).node("a", "in_use", folder="A", formed=number(1))
    job.snapshot(30, folder="A").snapshot(25, folder="C", nodes=("c",)).node("c", folder="C")
    memory = ask(job, now=100.0).memory
    memory = ask(away(job, made), now=101.0, memory=memory).memory
    verdict = ask(job, now=120.0, memory=memory)
    assert verdict.reason == APART
    job.node("a", "in_use", folder="A", formed=number(1)).entered(made, A)
    memory = ask(job, now=121.0, memory=verdict.memory).memory
    assert (memory.gathering_s, memory.complete_s) == (None, None)
    first = ask(away(job, made), now=3600.0, memory=memory)
    for now in (3601.0, 3660.0, 4199.0):
        verdict = ask(job, now=now, memory=first.memory)
        assert (verdict.decision, verdict.reason) == (None, APART)
    late = restored(ask(job, now=4200.0, memory=first.memory))
    assert late.snapshot is not None
    assert late.snapshot.step == 25


@pytest.mark.parametrize("reason", ["", "its bytes differ"])
def test_no_job_ends_for_its_snapshots_while_a_silent_node_may_hold_newer_state(
    reason: str,
) -> None:
    job = Job().leads().committed(commit(1, [A])).node("b", folder="B")
    job.snapshot(30, folder="A", rejected=reason)
    alone = launch_settings()
    first = ask(job, now=100.0, settings=alone)
    verdict = ask(job, now=159.0, memory=first.memory, settings=alone)
    assert verdict.decision is None
    assert verdict.reason == "gen 1 could still run: waits for a/cpu:0 or proof that it ended"
    assert verdict.wake_s == pytest.approx(160.0)
    assert isinstance(ask(job, now=160.0, memory=verdict.memory, settings=alone).decision, End)


def test_where_nobody_else_can_come_nothing_is_waited_for() -> None:
    verdict = after(killed().node("b", folder="B"), 1.0, settings=launch_settings())
    assert isinstance(verdict.decision, End)
    assert verdict.decision.outcome.exit_code == ExitCode.TOO_FEW_NODES


@pytest.mark.parametrize("holder_is_here", [False, True])
def test_who_comes_after_the_end_without_the_last_snapshot_ends_with_0(
    holder_is_here: bool,
) -> None:
    done = Outcome(state=JobState.FINISHED, exit_code=0, reason="script ended", step=30, digest="d")
    job = killed().outcome(done).node("b", folder="B")
    if holder_is_here:
        job.node("a", "starting", spawn=2, folder="A")
    first = ask(job, now=100.0, since_revision=99)
    verdict = ask(job, now=101.0, memory=first.memory, since_revision=99)
    assert verdict.decision == (None if holder_is_here else End(done))


def test_in_an_empty_store_the_leader_hears_of_snapshots_that_others_bring() -> None:
    found = SnapshotRecord(
        name="step-00000030", step=30, epoch=0, digest="d", bytes=1, generation=number(3),
        nodes=("b",), folder="B",
    )  # fmt: skip
    job = Job().leads().node("a", folder="A").node("b", folder="B", found=(found,))
    made = restored(after(job, 30.0))
    assert made.snapshot is not None
    assert (made.snapshot.step, made.snapshot.holders) == (30, ("b",))


def test_holders_begin_where_ranks_would_go_to_others_alone() -> None:
    """More slots than ranks: those of the first node would take them all."""
    job = killed().node("b", "standby", "standby", "standby", "standby", folder="B")
    job.node("c", "standby", folder="A")
    made = restored(after(job, 1.0))
    assert made.snapshot is not None
    assert made.snapshot.holders == ("c",)
    assert "c" in {worker.node for worker in made.workers}


def test_a_folder_has_one_identity_for_all_who_see_it(tmp_path: Path) -> None:
    first = folder_identity(tmp_path / "runs" / "job")
    assert len(first) == 16
    assert folder_identity(tmp_path / "runs" / "job") == first
    assert folder_identity(tmp_path / "other") != first
    assert [path.name for path in (tmp_path / "other").iterdir()] == [IDENTITY]


@pytest.mark.parametrize("text", ["", "not one", "x" * 16, "0" * 17])
def test_what_is_no_identity_is_taken_for_none(tmp_path: Path, text: str) -> None:
    (tmp_path / IDENTITY).write_text(text)
    assert folder_identity(tmp_path) == ""


def test_a_folder_that_cannot_be_written_to_has_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert folder_identity(tmp_path / "file" / "runs") == ""
