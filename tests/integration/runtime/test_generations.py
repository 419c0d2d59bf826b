"""Real workers through every kind of change: each run ends with the digest of a process alone."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale import messages
from easyscale.model import Mode, SnapshotReference
from tests.support.crew import Crew, Hand, Zygote, alone

pytestmark = pytest.mark.timeout(120)

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "small.py"


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of `python small.py`."""
    return alone(SCRIPT, tmp_path_factory.mktemp("alone"))


@pytest.fixture
def crew(zygote: Zygote, tmp_path: Path) -> Iterator[Crew]:
    # Micro-steps of 2 ms: what a test does comes while training is under way.
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002") as crew:
        yield crew


def start(crew: Crew, count: int) -> list[Hand]:
    hands = [crew.start(f"n{number}") for number in range(count)]
    crew.registered(*hands)
    return hands


def test_scattered_ranks_give_the_digest_of_one_process(crew: Crew, reference: str) -> None:
    hands = start(crew, 3)
    crew.entered(crew.commit(Mode.RESTORE, {0: [1, 4], 1: [0, 2, 7], 2: [3, 5, 6]}))
    assert crew.finished(*hands) == {reference}


def test_survivors_of_a_kill_go_on_without_a_restart(crew: Crew, reference: str) -> None:
    a, b, c = start(crew, 3)
    crew.entered(crew.commit(Mode.RESTORE, {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]}))
    crew.at_step(4, a, b, c)
    crew.kill(b)
    crew.ended(b)
    crew.entered(crew.commit(Mode.NOW, {0: [0, 1, 2, 3], 2: [4, 5, 6, 7]}))
    assert crew.finished(a, c) == {reference}


def test_a_newcomer_takes_the_state_from_a_member(crew: Crew, reference: str) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, a, b)
    late = crew.start("late")
    crew.registered(late)
    crew.entered(crew.commit(Mode.BOUNDARY, {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]}))
    assert crew.finished(a, b, late) == {reference}


def test_a_newcomer_waits_for_a_state_that_takes_long_to_make(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    # Whoever waits asks the others every 2 s, and gives up when nothing has moved for 1 s.
    script = SCRIPT.with_name("large.py")
    with Crew(zygote, tmp_path, script, "4.5", "pause=0.002", forming_timeout_s=1.0) as crew:
        (a,) = start(crew, 1)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(8)}))
        crew.at_step(3, a)
        late = crew.start("late")
        crew.registered(late)
        crew.entered(crew.commit(Mode.BOUNDARY, {0: range(4), 1: range(4, 8)}))
        assert crew.finished(a, late) == {reference}
        assert not [hand for hand in (a, late) if hand.all(messages.Broken)]


def test_a_rebalance_keeps_the_group(crew: Crew, reference: str) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    for share in (1, 7, 5):
        crew.entered(crew.commit(Mode.BOUNDARY, {0: range(share), 1: range(share, 8)}))
    assert crew.finished(a, b) == {reference}
    came_to_end = [said for hand in (a, b) for said in hand.all(messages.Finished)]
    assert [said.is_main for said in came_to_end] == [True, False]


def test_a_drained_member_leaves_at_a_boundary_with_exit_code_0(crew: Crew, reference: str) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, a, b)
    commit = crew.commit(Mode.BOUNDARY, {1: range(8)})
    crew.ended(a)
    assert a.status == 0
    assert [said.generation for said in a.all(messages.Drained)] == [commit.generation]
    assert crew.finished(b) == {reference}


def test_a_paused_job_goes_on_from_its_snapshot_in_new_processes(
    crew: Crew, reference: str
) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(5, a, b)
    crew.commit(Mode.BOUNDARY, None)
    crew.ended(a, b)
    assert (a.status, b.status) == (0, 0)
    written = a.last(messages.SnapshotWritten)
    assert written is not None
    assert written.last
    again = [crew.start(f"again{number}") for number in range(3)]
    crew.registered(*again)
    reference_to = SnapshotReference(written.name, written.step, written.digest)
    shares = {2: [0, 5], 3: [1, 2, 3], 4: [4, 6, 7]}
    commit = crew.commit(Mode.RESTORE, shares, snapshot=reference_to)
    crew.entered(commit)
    entered = again[0].last(messages.Entered)
    assert entered is not None
    assert entered.step == written.step
    assert crew.finished(*again) == {reference}


def test_a_worker_that_is_excluded_writes_nothing_and_ends(crew: Crew, reference: str) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, a, b)
    commit = crew.commit(Mode.NOW, {1: range(8)})
    crew.ended(a)
    assert [said.generation for said in a.all(messages.FencedOff)] == [commit.generation]
    assert a.status == 0
    assert not a.all(messages.Finished)
    assert crew.finished(b) == {reference}


def test_a_frozen_member_is_left_behind_by_a_commit(crew: Crew, reference: str) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, a, b)
    os.kill(b.pid, signal.SIGSTOP)
    crew.until(lambda: a.beat.phase.name == "EXCHANGE", "a waits for the frozen one")
    crew.entered(crew.commit(Mode.NOW, {0: range(8)}))
    assert crew.finished(a) == {reference}
    os.kill(b.pid, signal.SIGCONT)
    crew.ended(b)
    assert not b.all(messages.Finished)


LOSSY = SCRIPT.with_name("lossy.py")


def lossy(zygote: Zygote, folder: Path, kind: str, position: int) -> Crew:
    return Crew(zygote, folder, LOSSY, "n1", kind, str(position), "pause=0.002")


# With 6 steps and an evaluation per epoch, position 6 is the first evaluation and 21 the end.
@pytest.mark.parametrize(("kind", "position"), [("step", 4), ("step", 5), ("evaluation", 6)])
def test_a_lost_result_is_served_by_a_member_that_has_it(
    zygote: Zygote, tmp_path: Path, reference: str, kind: str, position: int
) -> None:
    with lossy(zygote, tmp_path, kind, position) as crew:
        a, b, c = start(crew, 3)
        shares = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]}
        crew.entered(crew.commit(Mode.RESTORE, shares))
        crew.until(lambda: bool(b.all(messages.Broken)), "the loss is said")
        broken = b.all(messages.Broken)[0]
        assert broken.position == position
        crew.until(lambda: a.beat.position == c.beat.position == position + 1, "the others go on")
        crew.entered(crew.commit(Mode.NOW, {0: [0, 5], 1: [1, 2, 3], 2: [4, 6, 7]}))
        entered = b.last(messages.Entered)
        assert entered is not None
        assert entered.position == position + 1
        assert crew.finished(a, b, c) == {reference}


def test_a_result_that_is_served_after_it_was_clipped_is_seen_in_the_weights(
    zygote: Zygote, tmp_path: Path
) -> None:
    """The control of the test above: it would not see records that alias `p.grad` otherwise."""
    with Crew(zygote, tmp_path, LOSSY, "n1", "step", "4", "pause=0.002", "record=aliased") as crew:
        a, b, c = start(crew, 3)
        shares = {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]}
        crew.entered(crew.commit(Mode.RESTORE, shares))
        crew.until(lambda: bool(b.all(messages.Broken)), "the loss is said")
        crew.until(lambda: a.beat.position == c.beat.position == 5, "the others go on")
        crew.entered(crew.commit(Mode.NOW, {0: [0, 5], 1: [1, 2, 3], 2: [4, 6, 7]}))
        crew.ended(b)
        failure = b.last(messages.Failure)
        assert failure is not None
        assert " has come to differ between n0/cpu:0 and n1/cpu:0" in failure.text


def test_where_the_one_that_was_ahead_is_gone_the_step_is_done_again(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with lossy(zygote, tmp_path, "step", 4) as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.until(lambda: bool(b.all(messages.Broken)), "the loss is said")
        crew.kill(a)
        crew.ended(a)
        crew.entered(crew.commit(Mode.NOW, {1: range(8)}))
        entered = b.last(messages.Entered)
        assert entered is not None
        assert entered.position == 4
        assert crew.finished(b) == {reference}


def test_a_worker_that_lost_the_end_learns_of_it_from_one_that_lingers(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with lossy(zygote, tmp_path, "end", 21) as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        # No commit comes any more, as with etcd away.
        assert crew.finished(a, b) == {reference}
        assert b.all(messages.Broken)


def test_children_that_the_script_forks_end_as_children_of_any_python(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with Crew(zygote, tmp_path, SCRIPT, "fork=yes") as crew:
        hands = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        assert crew.finished(*hands) == {reference}
        assert [hand.all(messages.Failure) for hand in hands] == [[], []]


def test_loader_workers_follow_their_process_through_changes(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002", "workers=1") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.at_step(2, a, b)
        crew.entered(crew.commit(Mode.BOUNDARY, {0: [0, 5], 1: [1, 2, 3, 4, 6, 7]}))
        crew.at_step(8, a, b)
        crew.kill(a)
        crew.ended(a)
        crew.entered(crew.commit(Mode.NOW, {1: range(8)}))
        assert crew.finished(b) == {reference}


# --- who shall go, and may be the last that holds the state ------------------------------------


def freeze_one(crew: Crew, which: int) -> tuple[Hand, Hand]:
    """Two train, a signal stops this one, and the other waits for it in a step: those two."""
    hands = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, *hands)
    frozen, waiting = hands[which], hands[1 - which]
    os.kill(frozen.pid, signal.SIGSTOP)
    crew.until(lambda: waiting.beat.phase.name == "EXCHANGE", "one waits for the frozen one")
    return waiting, frozen


@pytest.mark.parametrize("drained", [0, 1])
def test_who_shall_leave_is_asked_back_where_the_others_die_before_the_boundary(
    crew: Crew, reference: str, drained: int
) -> None:
    last, other = freeze_one(crew, 1 - drained)
    crew.commit(Mode.BOUNDARY, {1 - drained: range(8)})
    crew.kill(other)
    crew.until(lambda: bool(last.all(messages.Broken)), "the loss is said")
    crew.ended(other)
    crew.entered(crew.commit(Mode.NOW, {drained: range(8)}))
    assert crew.finished(last) == {reference}


def leave_before_a_taker(crew: Crew) -> tuple[Hand, Hand]:
    """The first has left at the boundary; the second, which goes on, ends before it has entered."""
    a, b, c = start(crew, 3)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(3, a, b)
    os.kill(c.pid, signal.SIGSTOP)
    crew.commit(Mode.BOUNDARY, {1: range(4), 2: range(4, 8)})
    crew.until(lambda: b.beat.phase.name == "FORMING", "one waits for the newcomer")
    assert not a.all(messages.Drained)
    crew.kill(b)
    crew.kill(c)
    crew.ended(b, c)
    return a, b


def test_who_has_left_is_asked_back_where_those_that_go_on_die_before_they_have_entered(
    crew: Crew, reference: str
) -> None:
    a, _ = leave_before_a_taker(crew)
    crew.entered(crew.commit(Mode.NOW, {0: range(8)}))
    assert not a.all(messages.Drained)
    assert crew.finished(a) == {reference}


def test_who_has_left_and_is_not_asked_back_leaves_its_state_on_disk(
    zygote: Zygote, tmp_path: Path
) -> None:
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002", linger_timeout_s=1.0) as crew:
        a, b = leave_before_a_taker(crew)
        crew.ended(a)
        written, drained = a.last(messages.SnapshotWritten), a.last(messages.Drained)
        assert written is not None
        assert drained is not None
        assert written.step == drained.step == b.beat.step


def test_who_waits_left_out_writes_its_state_down_and_is_asked_back_all_the_same(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    """Where those that were to go on are silent, its agent ends it before anybody takes over."""
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002", linger_timeout_s=1.0) as crew:
        a, b = freeze_one(crew, 1)
        step = a.beat.step
        crew.commit(Mode.BOUNDARY, {1: range(8)})
        crew.kill(b)
        crew.until(lambda: bool(a.all(messages.SnapshotWritten)), "it keeps its state")
        assert [written.step for written in a.all(messages.SnapshotWritten)] == [step]
        crew.until(lambda: a.beat.phase.name == "BROKEN", "it waits on")
        crew.entered(crew.commit(Mode.NOW, {0: range(8)}))
        assert crew.finished(a) == {reference}


def test_where_main_dies_before_the_boundary_to_a_pause_the_others_are_asked_back(
    crew: Crew, reference: str
) -> None:
    b, a = freeze_one(crew, 0)
    crew.commit(Mode.BOUNDARY, None)
    crew.kill(a)
    crew.ended(a)
    crew.until(lambda: bool(b.all(messages.Broken)), "the loss is said")
    crew.entered(crew.commit(Mode.NOW, {1: range(8)}))
    assert crew.finished(b) == {reference}


def test_where_nobody_asks_back_the_job_stops_all_the_same_with_the_state_at_the_boundary(
    zygote: Zygote, tmp_path: Path
) -> None:
    """As where etcd has gone after the commit."""
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002", linger_timeout_s=1.0) as crew:
        b, a = freeze_one(crew, 0)
        step = b.beat.step
        crew.commit(Mode.BOUNDARY, None)
        crew.kill(a)
        crew.ended(a, b)
        written = b.last(messages.SnapshotWritten)
        assert written is not None
        assert written.step == step


def test_a_pause_in_an_evaluation_that_broke_is_no_end(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with Crew(
        zygote, tmp_path, LOSSY, "n0", "evaluation", "6", "pause=0.002", linger_timeout_s=1.0
    ) as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.until(lambda: bool(a.all(messages.Broken)), "the loss is said")
        crew.kill(b)
        crew.ended(b)
        crew.commit(Mode.BOUNDARY, None)
        with pytest.raises(AssertionError, match="it leaves"):
            crew.until(lambda: a.status is not None, "it leaves", within_s=2.0)
        crew.entered(crew.commit(Mode.NOW, {0: range(8)}))
        assert crew.finished(a) == {reference}


def test_who_has_come_to_the_pause_is_asked_back_by_who_has_not(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with Crew(zygote, tmp_path, LOSSY, "n0", "step", "5", "pause=0.02") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.until(lambda: b.beat.step == 4 and b.beat.rank == 5, "b is amid step 4")
        os.kill(b.pid, signal.SIGSTOP)
        crew.until(lambda: a.beat.phase.name == "EXCHANGE", "a waits for the frozen one")
        # Both say so in step 5, of which a, who is main, loses the result.
        crew.commit(Mode.BOUNDARY, None)
        os.kill(b.pid, signal.SIGCONT)
        crew.until(lambda: bool(a.all(messages.Broken)), "the loss is said")
        assert a.all(messages.Broken)[0].position == 5
        crew.until(lambda: b.beat.position == 6, "b has the result")
        crew.entered(crew.commit(Mode.NOW, {0: range(4), 1: range(4, 8)}))
        assert not b.all(messages.Broken)
        assert crew.finished(a, b) == {reference}


def test_where_main_dies_while_it_writes_the_last_snapshot_another_member_writes_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    mark = tmp_path / "writes"
    script = SCRIPT.with_name("stalling.py")
    with Crew(zygote, tmp_path, script, "n0", str(mark), "pause=0.002") as crew:
        a, b, c = start(crew, 3)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(3), 1: range(3, 6), 2: range(6, 8)}))
        crew.at_step(3, a, b, c)
        crew.commit(Mode.BOUNDARY, None)
        crew.until(mark.exists, "main writes")
        with pytest.raises(AssertionError, match="somebody leaves"):
            crew.until(
                lambda: b.status is not None or c.status is not None,
                "somebody leaves",
                within_s=1.0,
            )
        crew.kill(a)
        crew.ended(a, b, c)
        assert (b.status, c.status) == (0, 0)
        written, left = b.last(messages.SnapshotWritten), b.last(messages.Drained)
        assert written is not None
        assert left is not None
        assert written.step == left.step
        assert not c.all(messages.SnapshotWritten), "one is enough"


def test_where_mains_disk_does_not_take_the_last_snapshot_another_member_writes_it(
    zygote: Zygote, tmp_path: Path
) -> None:
    with Crew(zygote, tmp_path, SCRIPT, "pause=0.002") as crew:
        full = str(tmp_path / "full")
        Path(full).touch()  # a file, where there should be a folder
        a, b = crew.start("n0", snapshot_dir=full), crew.start("n1", snapshot_dir=full)
        c = crew.start("n2")
        crew.registered(a, b, c)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(3), 1: range(3, 6), 2: range(6, 8)}))
        crew.at_step(3, a, b, c)
        crew.commit(Mode.BOUNDARY, None)
        crew.ended(a, b, c)
        assert [len(hand.all(messages.SnapshotFailed)) for hand in (a, b, c)] == [1, 1, 0]
        written, left = c.last(messages.SnapshotWritten), c.last(messages.Drained)
        assert written is not None
        assert left is not None
        assert written.step == left.step


def test_a_snapshot_that_is_due_is_written_also_where_the_group_changes(
    zygote: Zygote, tmp_path: Path, reference: str
) -> None:
    with Crew(
        zygote, tmp_path, SCRIPT, "pause=0.02", snapshot_every_steps=1, snapshot_every_s=None
    ) as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.at_step(3, a, b)
        late = crew.start("late")
        crew.registered(late)
        commit = crew.commit(Mode.BOUNDARY, {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]})
        crew.entered(commit)
        step = next(e.step for e in a.all(messages.Entered) if e.generation == commit.generation)
        crew.at_step(step + 3, a)
        assert step in [written.step for written in a.all(messages.SnapshotWritten)]
        assert crew.finished(a, b, late) == {reference}


# --- commits that do not reach everybody at once ----------------------------------------------


def test_a_commit_that_one_member_heard_of_is_entered_by_all_while_etcd_is_away(
    crew: Crew, reference: str
) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(2, a, b)
    late = crew.start("late")
    crew.registered(late)
    commit = crew.commit(Mode.BOUNDARY, {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7]}, to=[a])
    crew.entered(commit)
    for told in (b, late):
        assert commit in [said.commit for said in told.all(messages.CommitSeen)], "by a peer"
    assert crew.finished(a, b, late) == {reference}


def test_of_two_commits_told_crosswise_the_newer_one_is_entered_by_all_and_the_other_never(
    crew: Crew, reference: str
) -> None:
    a, b = start(crew, 2)
    crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
    crew.at_step(2, a, b)
    older = crew.commit(Mode.BOUNDARY, {0: range(6), 1: range(6, 8)}, to=[])
    newer = crew.commit(Mode.BOUNDARY, {0: range(2), 1: range(2, 8)}, to=[a])
    crew.send(b, messages.Committed(commit=older))
    crew.entered(newer)
    said = [entered.generation for hand in (a, b) for entered in hand.all(messages.Entered)]
    assert older.generation not in said
    assert crew.finished(a, b) == {reference}


@pytest.mark.proof
def test_a_rank_that_two_hold_counts_once(zygote: Zygote, tmp_path: Path) -> None:
    with Crew(zygote, tmp_path, SCRIPT, "epochs=1", "pause=0.15") as crew:
        a, b = start(crew, 2)
        crew.entered(crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)}))
        crew.until(lambda: a.beat.step == 1 and a.beat.rank == 0, "step 1 begins")
        # a does not hear that it is left out and goes on with its ranks; b does them again.
        crew.entered(crew.commit(Mode.NOW, {1: range(8)}, to=[b]))
        crew.until(lambda: b.beat.rank == 1, "b holds rank 0")
        assert (a.beat.step, b.beat.step) == (1, 1)
        assert a.beat.rank in {1, 2, 3}, "a holds it too and has met nobody since"
        crew.entered(crew.commit(Mode.NOW, {0: range(4), 1: range(4, 8)}))
        assert crew.finished(a, b) == {alone(SCRIPT, tmp_path, "epochs=1")}
