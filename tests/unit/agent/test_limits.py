"""What memory allows a slot: by what is free, and by where it ran out."""

import msgspec
import pytest

from easyscale.agent import drafts
from easyscale.agent.balance import limits
from easyscale.model import LogicalRank, WorkerFailure
from tests.support.views import Job, commit, job_spec, worker

A, B = worker("a"), worker("b")


def failure(kind: str, headline: str = "") -> WorkerFailure:
    return WorkerFailure(
        type=kind,
        headline=headline or kind,
        place="train.py:4",
        rank=LogicalRank(2),
        step=7,
        generation=None,
        pid=1,
        log="",
    )


def running() -> Job:
    job = Job(job_spec(logical_workers=8)).leads()
    job.node("a", ("in_use", 0.1)).node("b", ("in_use", 0.1))
    return job.committed(commit(1, {A: range(4), B: range(4, 8)}))


def with_memory(free: int | None, partial: int | None) -> dict[str, int]:
    view = running().view()
    slots = {
        w: msgspec.structs.replace(s, free_bytes=free, partial_bytes=partial)
        for w, s in drafts.slots_of(view).items()
    }
    bounds = limits.most_ranks(view, slots, drafts.ranks_of(view.base))
    return {w.node: most for w, most in bounds.items()}


@pytest.mark.parametrize(
    ("free", "partial", "most"),
    [(0, 100, 7), (99, 100, 7), (100, 100, 15), (250, 100, 31)],
)
def test_twice_as_many_ranks_take_one_partial_sum_more(free: int, partial: int, most: int) -> None:
    assert with_memory(free, partial) == {"a": most, "b": most}


@pytest.mark.parametrize(("free", "partial"), [(None, 100), (100, None), (100, 0), (10**18, 1)])
def test_what_is_not_known_or_not_needed_bounds_nothing(
    free: int | None, partial: int | None
) -> None:
    assert with_memory(free, partial) == {}


@pytest.mark.parametrize(
    "said",
    [
        failure("OutOfMemoryError"),
        failure("torch.cuda.OutOfMemoryError"),
        failure("SIGKILL", "killed by SIGKILL; kernel log: out of memory"),
    ],
)
def test_a_slot_that_ran_out_of_memory_is_given_half_of_what_it_held(said: WorkerFailure) -> None:
    job = running().gone(B, ranks=(4, 5, 6, 7), failure=said).node("b", "standby", spawn=2)
    view = job.view()
    again = worker("b", 2)
    bounds = limits.most_ranks(view, drafts.slots_of(view), {})
    assert bounds == {again: 2}
    layout = drafts.lay_out(view, [A, again], present={A: tuple(map(LogicalRank, range(4)))})
    assert [len(layout.ranks[w]) for w in (A, again)] == [6, 2]


def test_another_failure_bounds_nothing() -> None:
    view = running().gone(B, ranks=(4, 5), failure=failure("ValueError")).view()
    assert limits.fits_after_running_out(view) == {}


def test_a_job_that_fits_nowhere_by_that_is_tried_as_it_is() -> None:
    job = running()
    for each in (A, B):
        job.gone(each, ranks=(0,), failure=failure("MemoryError"))
        job.node(each.node, "standby", spawn=2)
    workers = [worker("a", 2), worker("b", 2)]
    layout = drafts.lay_out(job.view(), workers, present={})
    assert sum(len(held) for held in layout.ranks.values()) == 8


def test_how_it_ended_names_what_fits() -> None:
    ran_out = failure("OutOfMemoryError")
    assert limits.what_fits(ran_out, 5) == (
        ": out of memory with 5 logical ranks; at most 2 logical ranks from now on"
    )
    assert limits.what_fits(ran_out, 1) == ": out of memory with 1 logical rank; none fits"
    assert limits.what_fits(failure("ValueError"), 5) == ""
    assert limits.what_fits(None, 5) == ""
