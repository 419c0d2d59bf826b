"""The protocol's model holds in every state of its scenes, with one group and with two.

Each guard is also taken away once: a model that holds without it would not show that it is needed.
"""

import pytest

from tests.support.protocol.search import Result, Scene, search
from tests.support.protocol.state import Faults, Guards

A, B, C = 1, 2, 4

#: Already taken over: A is cut off and silent, a restore names B, which has heard nothing yet.
TAKEN = Scene(
    members=A, standby=B, ranks=1, second=(B, "restore"), cut_off=A, most=2,
    faults=Faults(heal=1, snapshot=2),
)  # fmt: skip
BRIEFLY_TAKEN = Scene(
    members=A, standby=B, ranks=1, steps=1, second=(B, "restore"), cut_off=A, most=3,
    faults=Faults(heal=1),
)  # fmt: skip
#: The whole way: cut off, silent, taken over, heard again.
SHORT = Scene(members=A, standby=B, ranks=1, steps=1, most=2, faults=Faults(total=1, cut=1, heal=1))
#: The leader's join is committed; the member is cut off and killed about the handshake.
JOINED = Scene(
    members=A, standby=B, ranks=1, steps=2, second=(A | B, "boundary"), most=3,
    faults=Faults(total=2, cut=1, kill=1),
)  # fmt: skip
THREE_RANKS = Scene(members=A | B | C, ranks=3, steps=1, most=2, faults=Faults(total=1, kill=1))
FROZEN = Scene(members=A | B, steps=1, most=2, faults=Faults(total=1, freeze=1))
#: One of two is killed, the other one cut off, and somebody waits in register.
BOTH_AWAY = Scene(members=A | B, standby=C, steps=2, most=2, faults=Faults(total=2, kill=1, cut=1))
#: A leaves and C comes in one plan that is committed; B loses its lease.
EXCHANGED = Scene(
    members=A | B, standby=C, ranks=1, steps=1, second=(B | C, "boundary"), most=3,
    faults=Faults(total=1, lapse=1),
)  # fmt: skip
#: Taken over by two, of which one is killed before the other one has entered.
HALF_ENTERED = Scene(
    members=A, standby=B | C, ranks=1, steps=1, second=(B | C, "restore"), cut_off=A, most=3,
    faults=Faults(total=1, heal=1, kill=1),
)  # fmt: skip
ALONE = Scene(members=A, ranks=1, steps=3, most=1, faults=Faults(snapshot=2))

#: Long ones, for `make proof`.
WHOLE_WAY = Scene(
    members=A, standby=B, ranks=1, steps=2, most=3,
    faults=Faults(total=1, cut=1, heal=1, snapshot=2, survey=1),
)  # fmt: skip
PAIR = Scene(
    members=A | B, standby=C, cut_together=A | B, most=2,
    faults=Faults(total=1, cut=1, heal=1, snapshot=1),
)  # fmt: skip
CROSSWISE = Scene(members=A | B, most=4, faults=Faults(total=2, lapse=1, cut=1, heal=1))
KILL_AND_DRAIN = Scene(members=A | B, most=4, faults=Faults(total=2, kill=1, drain=1))


def told(result: Result) -> str:
    return "\n".join([result.found, *result.trace])


@pytest.mark.parametrize("scene", [TAKEN, BRIEFLY_TAKEN, SHORT, THREE_RANKS, FROZEN])
def test_with_every_guard_each_state_is_safe_and_can_end(scene: Scene) -> None:
    result = search(scene)
    assert not result.found, told(result)


@pytest.mark.parametrize("scene", [TAKEN, BRIEFLY_TAKEN, SHORT])
def test_two_groups_do_live_at_once_after_a_take_over(scene: Scene) -> None:
    assert search(scene).two_groups > 0


@pytest.mark.proof
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "scene",
    [WHOLE_WAY, PAIR, CROSSWISE, KILL_AND_DRAIN, JOINED, BOTH_AWAY, EXCHANGED, HALF_ENTERED],
)
def test_with_every_guard_longer_scenes_are_safe_and_can_end(scene: Scene) -> None:
    result = search(scene)
    assert not result.found, told(result)


#: Guard, the scene that needs it, what happens without it.
QUICK = [
    ("head_fence", BRIEFLY_TAKEN, "A writes progress at step 0 for a group that g2 has replaced"),
    ("main_of_head", BRIEFLY_TAKEN, "A writes progress at step 0 for a group that g2 has replaced"),
    ("same_line", TAKEN, "A registers a snapshot at step 1 for a group that g2 has replaced"),
    ("own_names", TAKEN, "the snapshot of step 1 that counts was written over"),
    ("marked_only", ALONE, "the snapshot of step 1 that counts was deleted"),
    ("fenced_end", BRIEFLY_TAKEN, "A writes progress at step 0 for a group that g3 has replaced"),
    ("outcome_of_head", BRIEFLY_TAKEN,
     "the outcome is written at step 1 for a group that g2 has replaced"),
    ("interrupts", FROZEN, "training cannot end from here"),
    ("held_counts", THREE_RANKS, "step 0 counts a rank twice in g2"),
]  # fmt: skip
SLOW = [
    ("overlap", EXCHANGED, "g2 {B,C}, g3 {A} run at once"),
    ("holders_first", BOTH_AWAY, "g2 throws step 1 away, which {A} holds and could go on with"),
    ("no_way_back", HALF_ENTERED, "A writes progress at step 0 for a group that g3 has replaced"),
    ("entry_proves", JOINED, "training cannot end from here"),
    ("takeover_lasts", HALF_ENTERED, "training cannot end from here"),
]


@pytest.mark.parametrize(("guard", "scene", "happens"), QUICK, ids=[g for g, _, _ in QUICK])
def test_without_the_guard_the_model_finds(guard: str, scene: Scene, happens: str) -> None:
    assert search(scene, Guards(**{guard: False})).found == happens


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("guard", "scene", "happens"), SLOW, ids=[g for g, _, _ in SLOW])
def test_without_the_guard_the_long_search_finds(guard: str, scene: Scene, happens: str) -> None:
    assert search(scene, Guards(**{guard: False})).found == happens


def test_every_guard_is_taken_away_once() -> None:
    assert sorted(guard for guard, _, _ in (*QUICK, *SLOW)) == sorted(Guards.__slots__)
