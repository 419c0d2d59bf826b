"""Whatever drains are asked for happen, and no completed step is lost by them."""

import random
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from easyscale.agent import changes
from easyscale.agent.memory import Memory
from easyscale.model import Mode
from easyscale.pulse import Phase
from easyscale.rendezvous.agreement import JobView
from easyscale.reports import EventKind
from tests.support.stories import Player
from tests.support.views import Job, commit, job_spec, launch_settings, worker
from tests.support.world import World

A, A1, B = (worker(name) for name in ("a", "a/1", "b"))


def course(dice: random.Random) -> Iterator[str]:
    """Two nodes at work, perhaps a third beside them, and drains amid kills and pauses."""
    yield f"job logical={dice.choice((1, 2, 3, 5))}"
    yield f"start a slots={dice.choice((1, 1, 2))}"
    yield "advance 1"
    yield "start b"
    yield from ("start c",) * dice.randint(0, 1)
    yield "advance 3"
    yield "train 2"
    drained = False
    for _ in range(dice.randint(2, 5)):
        name = dice.choice("ab")
        what = ["advance 0.25", "advance 1", "train 1", "lose-lease b"]
        what += [f"drain {name}", f"signal {name} 15", "drain a/cpu:0"] * 2
        yield dice.choice(what)
        if not drained and dice.random() < 0.3:
            drained = True
            yield "kill b"


@pytest.mark.parametrize("seed", range(16))
def test_drains_happen_and_lose_no_step(seed: int) -> None:
    player = Player()
    asked: set[str] = set()
    for command in course(random.Random(seed)):
        if command == "lose-lease b" and player._world.nodes["b"].lease is None:
            continue
        if command == "kill b" and not player._world.nodes["b"].workers:
            continue
        player.run([command])
        if command.startswith(("drain", "signal")):
            asked.add(command.split()[1])
    for _ in range(10):
        player.run(["advance 2", "train 1"])
    world = player._world
    view = JobView.of(world.server.contents.view(world.keys.prefix), world.keys)
    restored = [event for event in world.events if event.event is EventKind.RESTORED]
    assert [event.facts["steps_lost"] for event in restored] == []
    left = {w.place for node in world.nodes.values() for w in node.workers}
    assert not [
        place for place in asked if any(p == place or p.startswith(f"{place}/") for p in left)
    ]
    if view.outcome is None:
        assert not view.wishes
        assert any(w.entered for node in world.nodes.values() for w in node.workers.values())


def test_where_only_a_newcomer_gets_ranks_a_member_stays_without() -> None:
    job = Job(job_spec(logical_workers=1)).leads().node("a", ("in_use", 1.0))
    job.node("b", ("standby", 0.01)).committed(commit(1, {A: [0]}))
    view = job.view()
    memory = Memory(entered=commit(1, {A: [0]}).generation)
    first = changes.propose(view, memory, 0.0, settings=launch_settings())
    change = changes.propose(view, first.memory, 5.0, settings=launch_settings())
    assert change.plan is not None, change.reason
    assert [(each.worker, each.ranks) for each in change.plan.assignments] == [(A, ()), (B, (0,))]
    assert change.plan.mode is Mode.BOUNDARY


def test_who_is_left_out_is_not_ended_while_it_writes_its_state_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    player = Player()
    beat = World._beat
    for command in (
        "job logical=2",
        *("start a b", "advance 2", "train 2", "advance 2", "train 1"),
        *("drain a/cpu:0", "advance 2", "break a b", "die b", "advance 14"),
    ):
        player.run([command])
    world = player._world
    monkeypatch.setattr(
        World, "_beat", lambda at, w: replace(beat(at, w), phase=Phase.SNAPSHOT, since_s=at.now)
    )
    player.run(["advance 60"])
    assert world.nodes["a"].workers
    monkeypatch.setattr(World, "_beat", beat)
    player.run(["advance 1"])
    assert not world.nodes["a"].workers


@pytest.mark.parametrize(
    ("wished", "reason"),
    [
        ((), "a/cpu:1 (devices set by ann)"),
        (("a", "cpu:1"), "a/cpu:1 (bob)"),
        (("a",), "node a (bob)"),
    ],
)
def test_a_slot_that_is_emptied_is_named_with_who_asked_or_what_its_agent_says(
    wished: tuple[str, ...], reason: str
) -> None:
    made = commit(1, [A, A1, B])
    job = Job().leads().node("a", "in_use", "draining").node("b", "in_use").committed(made)
    job.slot(A1, withdrawn="devices set by ann")
    if wished:
        job.wish("drain", *wished, by="bob")
    memory = Memory(entered=made.generation)
    first = changes.propose(job.view(), memory, 0.0, settings=launch_settings())
    change = changes.propose(job.view(), first.memory, 5.0, settings=launch_settings())
    assert change.plan is not None, change.reason
    assert change.plan.reason == reason
