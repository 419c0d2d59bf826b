"""The runs that a job is compared in."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.verify.scenes import (
    Scene,
    Shares,
    again_scene,
    brief_scenes,
    changing_scenes,
    fixed_scene,
    shares_text,
)

WORKERS = st.integers(1, 40)
STEPS = st.integers(1, 60)


def dealings(scene: Scene) -> list[Shares]:
    """Every way in which a scene deals the ranks, in order."""
    changes = [*scene.changes]
    if scene.killed is not None:
        changes.append(scene.killed[1])
    if scene.restored is not None:
        changes.append(scene.restored)
    return [scene.shares, *(change.shares for change in changes)]


def moments(scene: Scene) -> list[int]:
    return [change.step for change in scene.changes]


@given(n=WORKERS, steps=STEPS, width=st.integers(1, 8))
def test_every_rank_has_one_worker_in_every_layout(n: int, steps: int, width: int) -> None:
    for scene in (fixed_scene(n), *changing_scenes(n, steps=steps, width=width)):
        for shares in dealings(scene):
            dealt = [rank for share in shares if share is not None for rank in share]
            assert sorted(dealt) == list(range(n)), scene.name


@given(n=WORKERS, steps=STEPS)
def test_changes_come_two_steps_apart_and_before_the_end(n: int, steps: int) -> None:
    """A change is agreed on in the step before it, where the last one has to be over."""
    for scene in changing_scenes(n, steps=steps, width=4):
        times = moments(scene)
        assert all(later - sooner >= 2 for sooner, later in pairwise(times))
        assert all(1 <= time < steps for time in times)
        for change in [scene.killed and scene.killed[1], scene.restored]:
            assert change is None or 1 <= change.step < steps or steps == 2


@given(n=WORKERS)
def test_whoever_is_killed_computes_something(n: int) -> None:
    killed = [scene for scene in changing_scenes(n, steps=30, width=4) if scene.killed]
    assert len(killed) == 1
    assert killed[0].killed is not None
    victim, change = killed[0].killed
    assert killed[0].shares[victim]
    assert change.shares[victim] is None


def test_a_job_of_one_step_is_compared_in_fixed_layouts_only() -> None:
    for scene in changing_scenes(8, steps=1, width=4):
        assert scene.changes == ()
        assert scene.killed is None
        assert scene.restored is None


def test_the_fixed_run_is_repeated_where_sets_have_another_order() -> None:
    assert changing_scenes(4, steps=9, width=2)[0] == again_scene(4)
    assert again_scene(4).on_other_host


@pytest.mark.parametrize(
    ("shares", "text"),
    [
        (((0, 1), (2, 3)), "2+2"),
        (((0,), (1,), (2,), (3,)), "1 each"),
        (((0, 1, 2), None, (3,)), "3+1"),
        ((tuple(range(16)),), "16"),
    ],
)
def test_a_layout_is_shown_by_its_counts(shares: Shares, text: str) -> None:
    assert shares_text(shares) == text


def test_a_scene_says_its_first_and_its_last_layout_and_when_it_changes() -> None:
    scene = next(s for s in changing_scenes(16, steps=30, width=4) if s.name == "changing in place")
    assert scene.layout == "8+8 -> 12+4"
    assert scene.change == "steps 9, 16, 22"


@given(n=WORKERS, steps=st.integers(2, 60))
def test_the_brief_ones_repeat_change_kill_and_restore(n: int, steps: int) -> None:
    brief = brief_scenes(changing_scenes(n, steps=steps, width=2))
    assert brief[0] == again_scene(n)
    assert [scene.name for scene in brief[1:]] == [
        "changing in place",
        "SIGKILL in reduce",
        "snapshot and restore",
    ]


def test_a_job_of_one_step_is_spread_where_nothing_can_change() -> None:
    scenes = changing_scenes(4, steps=1, width=2)
    assert brief_scenes(scenes) == scenes
