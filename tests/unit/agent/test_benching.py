"""Newcomers that break the generation that admits them, and when they are asked again."""

import pytest

from easyscale.agent import benching
from easyscale.agent.memory import Memory, observe
from easyscale.model import Commit, Mode, Readiness, WorkerId
from tests.support.views import KEYS, Job, commit, launch_settings, number, worker

A, B, C = (worker(name) for name in "abc")
TIMEOUTS = launch_settings().timeouts


def joining(generation: int = 2, *, mode: Mode = Mode.BOUNDARY) -> tuple[Job, Commit]:
    """A trains; the generation that admits B is committed and entered by nobody."""
    job = Job().leads().node("a", "in_use").node("b", "in_use")
    job.committed(commit(1, [A]))
    made = commit(generation, [A, B], mode=mode)
    job.committed(made, entered=False)
    return job, made


def seen(job: Job, *times: float, memory: Memory | None = None) -> Memory:
    memory = memory or Memory()
    for now in times:
        memory = observe(memory, job.view(), now, timeouts=TIMEOUTS)
    return memory


def benched(memory: Memory) -> dict[WorkerId, tuple[int, float]]:
    return {who: (bench.times, bench.until_s) for who, bench in memory.benched.items()}


def test_a_newcomer_that_breaks_its_own_admission_is_left_out_once_for_each() -> None:
    job, made = joining()
    job.broken(made, B)
    assert not seen(job, 100.0).benched, "an exit may explain it yet"
    memory = seen(job, 100.0, 100.03, 100.5)
    assert benched(memory) == {B: (1, 105.03)}
    assert benching.benched(memory, 105.0) == {B}
    assert benching.reason(memory, 105.0) == "b/cpu:0 could not come in and will be asked again"

    again, made = joining(4)
    again.broken(made, B)
    assert benched(seen(again, 120.0, 120.03, memory=memory)) == {B: (2, 130.03)}


def test_its_readiness_does_not_make_it_forgotten_but_its_coming_in_does() -> None:
    job, made = joining()
    memory = seen(job.broken(made, B), 100.0, 101.0)
    job.put(KEYS.ready(number(3), B), Readiness(address="b"))
    assert benched(seen(job, 102.0, memory=memory)).keys() == {B}
    entered, _ = joining(4)
    entered.entered(commit(4, [A, B]), B)
    assert not seen(entered, 103.0, memory=memory).benched


@pytest.mark.parametrize("why", ("blames", "ended", "holds state", "at once", "member"))
def test_a_break_that_is_not_the_newcomers_own_benches_nobody(why: str) -> None:
    job, made = joining(mode=Mode.NOW if why == "at once" else Mode.BOUNDARY)
    job.broken(made, A if why == "member" else B, *([A] if why == "blames" else []))
    if why == "ended":
        job.gone(A)
    if why == "holds state":
        job.entered(made, B)
    assert not seen(job, 100.0, 101.0, 110.0).benched


def test_who_is_silent_and_who_cannot_come_in_are_told_apart() -> None:
    memory = benching.bench(Memory(), [C], 100.0, TIMEOUTS)
    memory = benching.bench(memory, [B], 100.0, TIMEOUTS, broke=number(2))
    assert benching.reason(memory, 101.0) == (
        "c/cpu:0 did not answer and b/cpu:0 could not come in and will be asked again"
    )
    assert benching.reason(memory, 105.0) == ""
