"""What memory allows a slot: by what is free, and by where it ran out."""

from collections.abc import Iterable

import msgspec
import numpy as np
import pytest
import torch

from easyscale.agent import drafts
from easyscale.agent.balance import limits
from easyscale.model import LogicalRank, WorkerFailure, WorkerId
from easyscale.rendezvous.view import JobView
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


def given(view: JobView, workers: Iterable[WorkerId]) -> list[int]:
    """How many ranks each gets of a plan over all of them, by their places."""
    chosen = tuple(workers)
    present = {w: held for w, held in drafts.ranks_of(view.base).items() if w in chosen}
    layout = drafts.lay_out(view, chosen, present=present)
    return [len(layout.ranks.get(w, ())) for w in chosen]


def free(view: JobView) -> dict[str, int]:
    known = limits.limits_of(view, drafts.slots_of(view)).free
    return {w.place: most for w, most in known.items()}


# --- by what is free ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("room", "partial", "most"),
    [(0, 100, 7), (99, 100, 7), (100, 100, 15), (250, 100, 31)],
)
def test_twice_as_many_ranks_take_one_partial_sum_more(room: int, partial: int, most: int) -> None:
    job = running()
    for each in (A, B):
        job.slot(each, free_bytes=room, partial_bytes=partial)
    assert free(job.view()) == {"a/cpu:0": most, "b/cpu:0": most}


@pytest.mark.parametrize(("room", "partial"), [(None, 100), (100, None), (100, 0), (10**18, 1)])
def test_what_is_not_known_or_not_needed_bounds_nothing(
    room: int | None, partial: int | None
) -> None:
    job = running()
    for each in (A, B):
        job.slot(each, free_bytes=room, partial_bytes=partial)
    assert free(job.view()) == {}
    assert drafts.bounds(job.view(), [A, B]) == {}


def test_a_newcomer_without_memory_is_given_nothing() -> None:
    job = running().slot(A, free_bytes=10**12, partial_bytes=100, taken_bytes=400)
    job.node("c", "standby")
    c = worker("c")
    assert free(job.slot(c, free_bytes=0).view())["c/cpu:0"] == 0
    assert given(job.view(), [A, B, c])[2] == 0


@pytest.mark.parametrize(("room", "most"), [(99, 0), (100, 0), (200, 1), (300, 3), (400, 7)])
def test_a_newcomer_needs_all_that_others_have_taken_before_its_first_rank(
    room: int, most: int
) -> None:
    """A holds 4 ranks with 3 partial sums and 100 bytes beside."""
    job = running().slot(A, free_bytes=10**12, partial_bytes=100, taken_bytes=400)
    job.node("c", "standby")
    job.slot(worker("c"), free_bytes=room)
    assert free(job.view())["c/cpu:0"] == most


def test_an_emptied_slot_needs_partial_sums_and_has_the_rest() -> None:
    job = Job(job_spec(logical_workers=8)).leads()
    job.node("a", ("in_use", 0.1)).node("b", ("in_use", 0.1))
    job.committed(commit(1, {A: range(8), B: ()}))
    job.slot(A, free_bytes=10**12, partial_bytes=100, taken_bytes=10**9)
    assert free(job.slot(B, free_bytes=0, partial_bytes=100).view())["b/cpu:0"] == 0
    assert free(job.slot(B, free_bytes=250, partial_bytes=100).view())["b/cpu:0"] == 3


def test_the_slots_of_a_host_share_its_memory() -> None:
    job = Job(job_spec(logical_workers=8)).leads()
    job.node("a", ("in_use", 0.1), ("in_use", 0.1)).node("b", ("in_use", 0.1))
    first, second = worker("a"), worker("a/1")
    job.committed(commit(1, {first: range(4), second: range(4, 6), B: range(6, 8)}))
    for each in (first, second, B):
        job.slot(each, free_bytes=200, partial_bytes=100)
    # 100 bytes for each of two slots, 200 for one that has its host for itself.
    assert free(job.view()) == {"a/cpu:0": 15, "a/cpu:1": 7, "b/cpu:0": 15}


def test_what_a_newcomer_found_free_when_it_began_yields_to_what_its_host_says_now() -> None:
    job = Job(job_spec(logical_workers=8)).leads()
    job.node("a", ("in_use", 0.1), "standby")
    first, second = worker("a"), worker("a/1")
    job.committed(commit(1, {first: range(8)}))
    job.slot(first, free_bytes=0, partial_bytes=100, taken_bytes=400)
    job.slot(second, free_bytes=10**12)
    assert free(job.view()) == {"a/cpu:0": 15, "a/cpu:1": 0}


@pytest.mark.parametrize(
    ("kind", "most"), [("nvidia (NVIDIA H200)", 3), ("nvidia (NVIDIA H200 MIG 1g.18gb)", 15)]
)
def test_workers_of_one_gpu_share_its_memory_and_slices_do_not(kind: str, most: int) -> None:
    one, two = (WorkerId("a", "a-boot-1", f"cuda:0/{n}", 1) for n in (0, 1))
    job = running()
    base = drafts.slots_of(job.view())[A]
    slots = {
        w: msgspec.structs.replace(
            base, slot=w.slot, worker=w, kind=kind, free_bytes=400, partial_bytes=100
        )
        for w in (one, two)
    }
    assert set(limits.limits_of(job.view(), slots).free.values()) == {most}


def test_estimates_give_way_by_as_few_partial_sums_as_can_be_and_it_is_said() -> None:
    """8 ranks where memory seems to hold 1 and 3: one partial sum more on one slot is enough."""
    job = Job(job_spec(logical_workers=8)).leads()
    job.node("a", ("in_use", 0.1)).node("b", ("in_use", 0.1))
    job.committed(commit(1, {A: (), B: ()}))
    job.slot(A, free_bytes=100, partial_bytes=100)
    job.slot(B, free_bytes=200, partial_bytes=100)
    view = job.view()
    assert free(view) == {"a/cpu:0": 1, "b/cpu:0": 3}
    assert drafts.bounds(view, [A, B]) == {A: 1, B: 7}
    assert limits.beyond_free(view, drafts.slots_of(view), {A: range(1), B: range(7)}) == (
        "b/cpu:0 has 7 and memory for 3, as it seems"
    )
    assert limits.beyond_free(view, drafts.slots_of(view), {A: range(1), B: range(3)}) == ""


# --- by where it ran out -------------------------------------------------------------------------


NUMPY = "numpy._core._exceptions._ArrayMemoryError"


@pytest.mark.parametrize(
    "said",
    [
        failure("OutOfMemoryError"),
        failure("torch.cuda.OutOfMemoryError"),
        failure("torch.OutOfMemoryError"),
        failure("MemoryError"),
        failure(NUMPY, f"{NUMPY}: Unable to allocate 7 TiB for an array with shape (9,)"),
        failure(
            "RuntimeError",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't"
            " allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot"
            " allocate memory)",
        ),
        failure("OSError", "OSError: [Errno 12] Cannot allocate memory"),
        failure("RuntimeError", "RuntimeError: CUDA error: out of memory"),
        failure("SIGKILL", "killed by SIGKILL: out of memory, says the kernel's log"),
    ],
)
def test_a_slot_that_ran_out_of_memory_is_given_half_of_what_it_held(said: WorkerFailure) -> None:
    job = running().gone(B, ranks=(4, 5, 6, 7), failure=said).node("b", "standby", spawn=2)
    view = job.view()
    again = worker("b", 2)
    assert drafts.bounds(view, [A, again]) == {again: 2}
    assert given(view, [A, again]) == [6, 2]


def test_what_torch_raises_on_a_cpu_is_known_for_what_it_is() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(1 << 60)
    told = f"RuntimeError: {raised.value}"
    assert limits.is_out_of_memory(failure("RuntimeError", told))


def test_what_numpy_raises_is_known_for_what_it_is() -> None:
    with pytest.raises(MemoryError) as raised:
        np.empty(1 << 58)
    cls = type(raised.value)
    assert limits.is_out_of_memory(failure(f"{cls.__module__}.{cls.__qualname__}"))


@pytest.mark.parametrize(
    "said",
    [
        failure("ValueError"),
        failure("RuntimeError", "RuntimeError: mat1 and mat2 cannot be multiplied"),
        failure("SIGKILL", "killed by SIGKILL"),
    ],
)
def test_another_failure_bounds_nothing(said: WorkerFailure) -> None:
    view = running().gone(B, ranks=(4, 5), failure=said).view()
    assert limits.fits_after_running_out(view) == {}


def test_before_it_held_ranks_it_says_nothing_of_how_many_fit() -> None:
    view = running().gone(B, ranks=(), failure=failure("MemoryError")).view()
    assert limits.fits_after_running_out(view) == {}


def test_the_least_that_did_not_fit_counts() -> None:
    job = running()
    for spawn, held in enumerate((range(8), range(3), range(6)), 1):
        job.gone(worker("b", spawn), ranks=tuple(held), failure=failure("MemoryError"))
    assert limits.fits_after_running_out(job.view()) == {"b/cpu:0": 1}
    assert limits.teachers(job.view()) == (worker("b", 2),)


def test_estimates_give_way_before_what_was_learned() -> None:
    job = running().gone(B, ranks=(4, 5, 6, 7), failure=failure("MemoryError"))
    job.node("b", "standby", spawn=2)
    job.slot(A, free_bytes=0, partial_bytes=100)
    view = job.view()
    again = worker("b", 2)
    # A seems to have memory for 7, and 2 fit on the other: 9 are enough for 8.
    assert drafts.bounds(view, [A, again]) == {A: 7, again: 2}
    assert drafts.bounds(view, [again, worker("c")]) == {again: 2}


def test_what_was_learned_is_kept_where_it_leaves_no_room() -> None:
    """Two slots that ran out with 8 and 12 hold 4 and 6 of 16, not 8 and 8."""
    job = Job(job_spec(logical_workers=16)).leads()
    for each, held in ((A, 8), (B, 12)):
        job.gone(each, ranks=tuple(range(held)), failure=failure("MemoryError"))
        job.node(each.node, "standby", spawn=2)
    workers = [worker("a", 2), worker("b", 2)]
    assert limits.shortage(job.view(), workers) == (
        "16 logical workers do not fit: a/cpu:0 takes 4, b/cpu:0 takes 6;"
        " add a slot or make the batch smaller"
    )
    assert limits.shortage(job.view(), [*workers, worker("c")]) == ""


def test_many_slots_are_not_all_named() -> None:
    job = Job(job_spec(logical_workers=16)).leads()
    workers = [worker(f"n{i}") for i in range(9)]
    for each in workers:
        job.gone(each, ranks=(0,), failure=failure("MemoryError"))
    assert limits.shortage(job.view(), workers) == (
        "16 logical workers do not fit: n0/cpu:0 takes none, n1/cpu:0 takes none,"
        " n2/cpu:0 takes none, n3/cpu:0 takes none, 5 more as little;"
        " add a slot or make the batch smaller"
    )


def test_a_plan_beyond_what_was_learned_is_named_unless_it_is_so_now() -> None:
    job = running().gone(worker("b", 0), ranks=(0, 1, 2, 3), failure=failure("MemoryError"))
    view = job.view()
    slots = drafts.slots_of(view)
    assert limits.beyond_learned(view, slots, {A: range(4), B: range(4)}) == ""
    assert limits.beyond_learned(view, slots, {A: range(3), B: range(5)}) == (
        "b/cpu:0 would be given 5 and takes 2 since it ran out of memory;"
        " add a slot or make the batch smaller"
    )


def test_how_it_ended_names_the_slot_and_what_fits() -> None:
    ran_out = failure("OutOfMemoryError")
    assert limits.what_fits(ran_out, "a/cpu:0", 5) == (
        ": out of memory with 5 logical ranks; a/cpu:0 takes at most 2 from now on"
    )
    assert limits.what_fits(ran_out, "a/cpu:0", 1) == (
        ": out of memory with 1 logical rank; none fits on a/cpu:0"
    )
    assert limits.what_fits(ran_out, "a/cpu:0", 0) == (
        ": out of memory on a/cpu:0 before it held a rank"
    )
    assert limits.what_fits(failure("ValueError"), "a/cpu:0", 5) == ""
    assert limits.what_fits(None, "a/cpu:0", 5) == ""
