"""Where a logical rank has been is told move by move, and only as far back as anybody asks."""

from easyscale.agent.doors.placements import MOST_MOVES, Placements
from easyscale.model import LogicalRank, Mode
from tests.support.views import commit, worker

A, B = worker("a"), worker("b")


def test_a_rank_that_stays_has_one_move_and_one_that_moves_has_each() -> None:
    placements = Placements()
    placements.follow(commit(1, {A: (0, 1), B: (2, 3)}), at="t1")
    placements.follow(commit(2, {A: (0, 1, 2, 3)}, mode=Mode.NOW), at="t2")
    placements.follow(commit(3, {A: (0,), B: (1, 2, 3)}, mode=Mode.BOUNDARY), at="t3")
    assert [line["decision"] for line in placements.story(LogicalRank(0))] == ["rank 0 -> a/cpu:0"]
    story = placements.story(LogicalRank(2))
    assert [(line["at"], line["event"], line["node"]) for line in story] == [
        ("t1", "gen 1 restore", "b"),
        ("t2", "gen 2 now", "a"),
        ("t3", "gen 3 boundary", "b"),
    ]
    assert placements.story(LogicalRank(9)) == []


def test_a_pause_moves_nobody_and_old_moves_are_forgotten() -> None:
    placements = Placements()
    placements.follow(commit(1, {}), at="t0")
    for number in range(100):
        placements.follow(commit(number + 2, {(A, B)[number % 2]: (0,)}), at=f"t{number}")
    story = placements.story(LogicalRank(0))
    assert len(story) == MOST_MOVES
    assert story[-1]["at"] == "t99"
