"""What a worker decides about commits, breaks and boundaries: the table of the specification."""

import pytest

from easyscale.model import Commit, GenerationNumber, LogicalRank, Member, Mode, WorkerId
from easyscale.runtime import member
from easyscale.runtime.member import (
    AtBoundary,
    Broken,
    CommitKnown,
    EndCompleted,
    Entered,
    Fence,
    Fenced,
    Finished,
    Form,
    Forming,
    Leave,
    Leaving,
    LeftBehind,
    Running,
    SayBroken,
    SayEntered,
    SayFinished,
    SwitchMap,
    WaitBroke,
    Waiting,
)

A, B, C = (WorkerId(node, "1", "cpu:0", 0) for node in "abc")


def commit(
    number: int, *workers: WorkerId, mode: Mode = Mode.BOUNDARY, share: int = 4, era: int = 1
) -> Commit:
    dealt = [range(share), range(share, 8)] + [range(0)] * len(workers)
    members = tuple(
        Member(worker, f"host:{at}", tuple(LogicalRank(rank) for rank in dealt[at]))
        for at, worker in enumerate(workers)
    )
    return Commit(
        generation=GenerationNumber(era, number), mode=mode, members=members, main=A, reason="why"
    )


def decide(state: member.State, event: member.Event) -> tuple[member.State, object]:
    decision = member.step(state, event, me=A)
    assert decision.reason
    return decision.state, decision.action


FIRST = commit(1, A, B, mode=Mode.RESTORE)
JOIN = commit(2, A, B, C)
LOSS = commit(2, A, mode=Mode.NOW)
WITHOUT_ME = commit(2, B, mode=Mode.NOW)
PAUSE = commit(2)
DRAINED = commit(2, B)


def test_a_waiting_worker_forms_the_first_commit_that_names_it() -> None:
    assert decide(Waiting(), CommitKnown(FIRST)) == (Forming(FIRST, has_state=False), Form(FIRST))
    assert decide(Waiting(), CommitKnown(WITHOUT_ME)) == (Waiting(), None)


def test_the_end_of_the_handshake_is_said() -> None:
    forming = Forming(FIRST, has_state=False)
    assert decide(forming, Entered()) == (Running(FIRST), SayEntered(FIRST))


@pytest.mark.parametrize("state", [Forming(FIRST, has_state=True), Broken(FIRST, has_state=True)])
def test_a_worker_that_is_stuck_takes_any_newer_commit(state: member.State) -> None:
    for newer in (JOIN, LOSS, commit(2, A, B, mode=Mode.RESTORE)):
        assert decide(state, CommitKnown(newer)) == (Forming(newer, has_state=True), Form(newer))
    assert decide(state, CommitKnown(WITHOUT_ME)) == (Fenced(WITHOUT_ME), Fence(WITHOUT_ME))


def test_who_forms_ends_for_a_planned_change_without_it() -> None:
    forming = Forming(FIRST, has_state=True)
    paused = (Leaving(PAUSE, pauses=True), Leave(PAUSE, pauses=True))
    assert decide(forming, CommitKnown(PAUSE)) == paused
    assert decide(forming, CommitKnown(DRAINED)) == (Fenced(DRAINED), Fence(DRAINED))


def test_who_is_broken_keeps_its_state_until_others_have_passed_the_boundary_without_it() -> None:
    broken = Broken(FIRST, has_state=True)
    for planned in (DRAINED, PAUSE):
        assert decide(broken, CommitKnown(planned)) == (broken, None)
    # Who was to go on has ended: this one is asked back.
    assert decide(broken, CommitKnown(LOSS)) == (Forming(LOSS, has_state=True), Form(LOSS))
    assert decide(broken, LeftBehind(DRAINED)) == (Fenced(DRAINED), Fence(DRAINED))
    paused = (Leaving(PAUSE, pauses=True), Leave(PAUSE, pauses=True))
    assert decide(broken, LeftBehind(PAUSE)) == paused


def test_only_who_is_broken_is_left_behind() -> None:
    for state in (Waiting(), Forming(FIRST, has_state=True), Running(FIRST), Finished(FIRST)):
        assert decide(state, LeftBehind(DRAINED)) == (state, None)


@pytest.mark.parametrize("state", [Forming(JOIN, has_state=False), Broken(JOIN, has_state=False)])
def test_a_newcomer_that_is_left_out_waits_again(state: member.State) -> None:
    left_out = commit(3, B, mode=Mode.NOW)
    assert decide(state, CommitKnown(left_out)) == (Waiting(), None)


@pytest.mark.parametrize(
    "state",
    [Running(JOIN), Forming(JOIN, has_state=True), Broken(JOIN, has_state=True)],
)
def test_an_older_or_equal_commit_is_ignored(state: member.State) -> None:
    for old in (FIRST, JOIN, commit(2, A, mode=Mode.NOW)):
        assert decide(state, CommitKnown(old)) == (state, None)


def test_a_new_era_is_newer_than_any_number_of_the_old_one() -> None:
    new_era = commit(1, A, B, mode=Mode.NOW, era=2)
    running = Running(commit(9, A, B))
    assert decide(running, CommitKnown(new_era)) == (
        Forming(new_era, has_state=True),
        Form(new_era),
    )


def test_a_running_worker_leaves_at_once_for_a_loss_and_never_for_a_planned_change() -> None:
    running = Running(FIRST)
    assert decide(running, CommitKnown(LOSS)) == (Forming(LOSS, has_state=True), Form(LOSS))
    assert decide(running, CommitKnown(JOIN)) == (running, None)
    assert decide(running, CommitKnown(PAUSE)) == (running, None)
    assert decide(running, CommitKnown(WITHOUT_ME)) == (Fenced(WITHOUT_ME), Fence(WITHOUT_ME))


def test_a_planned_change_needs_the_headers_of_all_members() -> None:
    running, old, new = Running(FIRST), FIRST.generation, JOIN.generation
    newer = GenerationNumber(1, 3)
    for headers in ((), (old, old), (old, new), (new, newer), (newer, newer)):
        assert decide(running, AtBoundary(headers, JOIN)) == (running, None)
    assert decide(running, AtBoundary((new, new), JOIN)) == (
        Forming(JOIN, has_state=True),
        Form(JOIN),
    )


def test_equal_headers_of_a_commit_that_is_no_longer_the_newest_change_nothing() -> None:
    running = Running(FIRST)
    newest = commit(3, A, B)
    agreed = (JOIN.generation, JOIN.generation)
    assert decide(running, AtBoundary(agreed, newest)) == (running, None)


def test_the_same_processes_in_the_same_order_keep_their_group() -> None:
    rebalanced = commit(2, A, B, share=7)
    agreed = (rebalanced.generation,) * 2
    event = AtBoundary(agreed, rebalanced)
    assert decide(Running(FIRST), event) == (Running(rebalanced), SwitchMap(rebalanced))
    swapped = commit(2, B, A)
    event = AtBoundary((swapped.generation,) * 2, swapped)
    assert decide(Running(FIRST), event) == (Forming(swapped, has_state=True), Form(swapped))


def test_a_member_that_is_drained_leaves_at_the_boundary_of_all() -> None:
    drained = commit(2, B)
    event = AtBoundary((drained.generation,) * 2, drained)
    assert decide(Running(FIRST), event) == (
        Leaving(drained, pauses=False),
        Leave(drained, pauses=False),
    )
    event = AtBoundary((PAUSE.generation,) * 2, PAUSE)
    assert decide(Running(FIRST), event) == (
        Leaving(PAUSE, pauses=True),
        Leave(PAUSE, pauses=True),
    )


def test_a_broken_wait_is_said_with_its_suspects() -> None:
    event = WaitBroke((B,), "no bytes from b")
    said = SayBroken(FIRST, (B,), "no bytes from b")
    assert decide(Running(FIRST), event) == (Broken(FIRST, has_state=True), said)
    forming = Forming(FIRST, has_state=False)
    assert decide(forming, event) == (Broken(FIRST, has_state=False), said)


def test_whoever_has_left_stays_away() -> None:
    newer = commit(5, A, B, mode=Mode.NOW)
    for state in (Finished(FIRST), Fenced(LOSS)):
        for event in (CommitKnown(newer), Entered(), WaitBroke((), "x"), EndCompleted()):
            assert decide(state, event) == (state, None)


@pytest.mark.parametrize("left", [Leaving(PAUSE, pauses=True), Leaving(DRAINED, pauses=False)])
def test_who_has_left_goes_on_where_a_loss_comes_between(left: Leaving) -> None:
    back = commit(5, A, B, mode=Mode.NOW)
    assert decide(left, CommitKnown(back)) == (Forming(back, has_state=True), Form(back))
    for other in (FIRST, left.commit, commit(5, B, mode=Mode.NOW)):
        assert decide(left, CommitKnown(other)) == (left, None)
    for event in (Entered(), WaitBroke((), "x"), EndCompleted()):
        assert decide(left, event) == (left, None)


def test_the_end_is_said_once() -> None:
    assert decide(Running(FIRST), EndCompleted()) == (Finished(FIRST), SayFinished(FIRST))
