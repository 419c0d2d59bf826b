"""A commit carries the restores that led to it: they say which snapshots still count."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent import drafts
from easyscale.agent.restoring import newest_to_restore
from easyscale.model import Assignment, Commit, Mode, Plan, Restored, SnapshotReference
from easyscale.rendezvous.view import JobView
from tests.support.views import Job, commit, number, worker

A = worker("a")


def drawn(generation: int, view: JobView, *, mode: Mode, step: int | None = None) -> Commit:
    plan = Plan(
        generation=number(generation),
        mode=mode,
        assignments=(Assignment(A, ()),),
        main=A,
        reason="as told",
    )
    snapshot = None if step is None else SnapshotReference("s", step, "d")
    return drafts.commit_of(plan, view, snapshot=snapshot)


def restored(*led: tuple[int, int]) -> tuple[Restored, ...]:
    return tuple(Restored(number(generation), step) for generation, step in led)


def after(*led: tuple[int, int]) -> Commit:
    return msgspec.structs.replace(commit(9, [A]), restores=restored(*led))


def test_a_restore_is_noted_with_the_step_that_it_began_from() -> None:
    view = Job().committed(after((1, 0), (4, 50))).view()
    led = drawn(10, view, mode=Mode.RESTORE, step=70).restores
    assert led == restored((1, 0), (4, 50), (10, 70))


def test_a_restore_from_further_back_replaces_those_that_it_undoes() -> None:
    view = Job().committed(after((1, 0), (4, 50), (6, 60))).view()
    led = drawn(10, view, mode=Mode.RESTORE, step=50).restores
    assert led == restored((1, 0), (10, 50))


def test_a_restore_without_a_snapshot_undoes_everything() -> None:
    view = Job().committed(after((1, 0), (4, 50))).view()
    assert drawn(10, view, mode=Mode.RESTORE).restores == restored((10, 0))


@pytest.mark.parametrize("mode", [Mode.NOW, Mode.BOUNDARY])
def test_other_generations_hand_on_what_led_to_the_one_before(mode: Mode) -> None:
    view = Job().committed(after((1, 0), (4, 50))).view()
    assert drawn(10, view, mode=mode).restores == restored((1, 0), (4, 50))


def test_in_an_emptied_store_the_offers_tell_what_led_there() -> None:
    view = Job().node("a", "in_use", offers=after((1, 0), (4, 50)), formed=number(9)).view()
    assert drawn(1, view, mode=Mode.NOW).restores == restored((1, 0), (4, 50))


def test_a_job_that_is_restored_for_ever_keeps_its_commits_short() -> None:
    many = tuple((generation, generation) for generation in range(1, 40))
    led = drawn(50, Job().committed(after(*many)).view(), mode=Mode.RESTORE, step=99).restores
    assert len(led) == drafts.MOST_RESTORES
    assert led[-1] == Restored(number(50), 99)


@pytest.mark.parametrize(
    ("generation", "step", "counts"),
    [
        (3, 49, True),  # on the way to where generation 4 began
        (3, 50, True),
        (3, 51, False),  # further than that: written by those who were taken over
        (4, 51, True),
        (5, 80, True),
    ],
)
def test_a_snapshot_counts_unless_a_later_restore_began_before_it(
    generation: int, step: int, counts: bool
) -> None:
    view = Job().snapshot(step, generation).view()
    (snapshot,) = view.snapshots.values()
    assert after((1, 0), (4, 50)).overtakes(snapshot) is not counts


def test_a_restore_takes_the_newest_that_counts_and_an_overtaken_one_before_none() -> None:
    view = Job().snapshot(70, 3).snapshot(55, 4).snapshot(60, 5, rejected="torn").view()
    found = dict(view.snapshots)
    best = newest_to_restore(found.values(), after((4, 50)))
    assert best is not None
    assert best.step == 55
    del found[best.name]
    hope = newest_to_restore(found.values(), after((4, 50)))
    assert hope is not None
    assert hope.step == 70
    assert newest_to_restore((), None) is None


@given(
    st.lists(st.integers(0, 8), max_size=6),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_restores_that_are_left_out_would_tell_nothing_new(
    restores: list[int], generation: int, step: int
) -> None:
    """Restores one after the other, shortened each time, judge as the whole list does."""
    job, whole = Job(), []
    for at, begun in enumerate(restores, start=1):
        job.committed(drawn(at, job.view(), mode=Mode.RESTORE, step=begun))
        whole.append((at, begun))
    newest = job.view().newest
    (snapshot,) = Job().snapshot(step, generation).view().snapshots.values()
    short = newest is not None and newest.overtakes(snapshot)
    assert short == after(*whole).overtakes(snapshot)


@pytest.mark.parametrize(("step", "lost"), [(60, 13), (80, 0)])
def test_a_restore_tells_how_many_completed_steps_it_throws_away(step: int, lost: int) -> None:
    job = Job().committed(commit(9, [A])).gone(A, step=73).progress(71)
    assert drawn(10, job.view(), mode=Mode.RESTORE, step=step).restores[-1].lost == lost
