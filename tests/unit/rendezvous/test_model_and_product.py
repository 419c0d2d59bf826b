"""In every state of the model's scenes the product objects to the same commits as the model."""

from functools import cache

import pytest

from easyscale.model import (
    Commit,
    Ending,
    Entry,
    Head,
    LogicalRank,
    Member,
    Mode,
    NodeRecord,
    Position,
    WorkerId,
)
from easyscale.rendezvous.agreement import JobView, Node, objection
from easyscale.rendezvous.keys import Incarnation
from tests.support.protocol import state as words
from tests.support.protocol.leading import Leader
from tests.support.protocol.search import ALL_GUARDS, Scene, reachable
from tests.support.protocol.state import Faults, State, bits
from tests.support.views import number, worker

WORKERS = tuple(worker(name) for name in "abc")
A, B, C = 1, 2, 4
SCENES = {
    "joined": Scene(
        members=A, standby=B, ranks=1, steps=1, second=(A | B, "boundary"), most=3,
        faults=Faults(total=2, cut=1, kill=1),
    ),
    "taken over": Scene(
        members=A, standby=B | C, ranks=1, steps=1, second=(B, "restore"), cut_off=A, most=2,
        faults=Faults(heal=1),
    ),
    "cut off": Scene(
        members=A | B, ranks=1, steps=1, most=3, faults=Faults(total=1, cut=1, heal=1)
    ),
}  # fmt: skip


@cache
def committed(generation: int, members: int, mode: str) -> Commit:
    named = [WORKERS[w] for w in bits(members)]
    return Commit(
        generation=number(generation),
        mode=Mode(mode),
        members=tuple(Member(one, one.place, (LogicalRank(i),)) for i, one in enumerate(named)),
        main=named[0],
        reason="",
    )


@cache
def registration(one: WorkerId) -> Node:
    record = NodeRecord(
        node=one.node, incarnation=one.incarnation, boot_id="", host=one.node, address="", slots=()
    )
    return Node(record, create_revision=1)


ENTRY = Entry(position=Position(0), has_state=True)
ENDING = Ending(how="exited")


def seen(state: State) -> JobView:
    """What the product's leader would see in this state."""
    store = state.store
    commits = {c.number: committed(c.number, c.members, c.mode) for c in state.commits}
    return JobView(
        head=Head(era=1, planned=store.planned, committed=state.newest.number, digest=""),
        nodes={WORKERS[w].node: registration(WORKERS[w]) for w in bits(store.leases)},
        gone={WORKERS[w]: ENDING for w in bits(store.gone | store.done)},
        commits={commit.generation: commit for commit in commits.values()},
        entries={
            commits[c.number].generation: {WORKERS[w]: ENTRY for w in bits(c.entered)}
            for c in state.commits
        },
    )


def silent(state: State) -> frozenset[Incarnation]:
    return frozenset(
        Incarnation(WORKERS[w].node, WORKERS[w].incarnation) for w in bits(state.store.silent)
    )


@pytest.mark.parametrize("scene", SCENES.values(), ids=list(SCENES))
def test_product_and_model_object_to_the_same_commits(scene: Scene) -> None:
    leader = Leader(ALL_GUARDS, most=scene.most)
    modes: tuple[words.Mode, ...] = ("now", "restore")
    answers = set()
    # What both rules look at; most states of a scene differ in other things.
    asked: set[object] = set()
    for state in reachable(scene):
        store = state.store
        question = (
            store.planned, store.leases, store.silent, store.gone, store.done,
            tuple((c.number, c.members, c.mode, c.entered) for c in state.commits),
        )  # fmt: skip
        if question in asked:
            continue
        asked.add(question)
        view, away = seen(state), silent(state)
        for members in range(1, 1 << len(state.workers)):
            for mode in modes:
                due = committed(store.planned + 1, members, mode)
                refused = objection(due, view, silent=away)
                expected = leader.objects(state, members, mode)
                assert (refused is not None) == expected, (state, members, mode, refused)
                answers.add((mode, expected))
    assert len(answers) == 2 * len(modes), "the scene asks both ways"
