"""What a restore says that it cost, on every agent that saw it begin."""

from easyscale.reports import EventKind
from tests.support.stories import Player
from tests.support.world import World


def played(*commands: str) -> tuple[World, Player]:
    player = Player()
    player.run(list(commands))
    return player._world, player


def restores(world: World) -> list[tuple[str, object]]:
    """The reason and the steps lost of each restore that was told."""
    told = [event for event in world.events if event.event is EventKind.RESTORED]
    return [(event.reason, event.facts["steps_lost"]) for event in told]


START = ("job logical=1", "start a", "advance 2")
#: Node a has completed 7 steps, the store knows of 6, the snapshot has 2; then a is gone.
LOST_A = ("train 2", "snapshot a", "advance 2", "train 4", "advance 2", "train 1", "die a")


def test_an_agent_whose_first_generation_is_a_restore_counts_what_it_throws_away() -> None:
    world, _ = played(*START, "start b", "advance 3", *LOST_A)
    world.advance(70)
    assert world.nodes["b"].state.told_start
    assert restores(world) == [("", 4)]
    assert world.nodes["b"].state.totals.steps_lost == 4


def test_who_stood_by_while_it_began_counts_them_too() -> None:
    start = (*START, "start b", "start c", "advance 3")
    world, _ = played(*start, *LOST_A)
    world.advance(70)
    assert not world.nodes["c"].state.told_start
    assert [world.nodes[name].state.totals.steps_lost for name in "bc"] == [4, 4]
    assert sorted(restores(world)) == [("", 4), ("all were gone", 4)]


def test_who_comes_later_counts_nothing_that_was_lost_before_it() -> None:
    world, player = played(*START, "start b", "advance 3", *LOST_A)
    player.run(["advance 70", "train 2", "advance 2", "train 9", "advance 2", "train 1", "start d"])
    world.advance(8)
    assert world.nodes["d"].state.commit == world.nodes["b"].state.commit
    assert world.nodes["d"].state.totals.steps_lost == 0
    assert restores(world) == [("", 4)]


def test_a_first_start_has_lost_nothing() -> None:
    world, _ = played(*START, "train 3", "advance 2")
    assert restores(world) == []
    assert world.nodes["a"].state.totals.steps_lost == 0


def test_a_start_from_the_snapshot_of_a_stop_has_lost_nothing() -> None:
    world, player = played(*START, "train 3", "advance 2", "train 2")
    player.run(["wish stop", "advance 2", "train 1", "advance 2", "start a life=2", "advance 10"])
    assert restores(world) == [("", None)]
    assert world.nodes["a"].state.totals.steps_lost == 0
