"""Newcomers that do not answer, or cannot come in: the next plans go without them. Pure.

Each time they are left out for twice as long. A word of who was silent, however late, and it is
forgotten; of who broke the generation that admitted it, once it has come in.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from easyscale.agent import words
from easyscale.agent.settings import LaunchSettings, Timeouts
from easyscale.model import GenerationNumber, Mode, Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

if TYPE_CHECKING:
    from easyscale.agent.memory import Memory

#: A plan waits for newcomers so much of the grace at most: the drain behind it has to fit in.
GRACE_SHARE = 1 / 6


@dataclass(frozen=True, slots=True)
class Bench:
    """A newcomer that is left out: how often in a row, and until when."""

    times: int
    until_s: float
    #: The last generation that was to admit it and that it said is broken.
    broke: GenerationNumber | None = None


def silent(plan: Plan, view: JobView) -> tuple[WorkerId, ...]:
    """Newcomers that have not said that they hold the plan; members at work are never left out."""
    ready = view.ready.get(plan.generation, {})
    at_work = view.base.workers if view.base is not None else ()
    return tuple(w for w in plan.workers if w not in ready and w not in at_work)


def patience_s(settings: LaunchSettings) -> float:
    """Who waits for ranks does nothing else: it answers at once, if ever."""
    return min(settings.timeouts.deaf_timeout_s, GRACE_SHARE * settings.grace_s)


def bench(
    memory: "Memory",
    workers: Collection[WorkerId],
    now: float,
    timeouts: Timeouts,
    *,
    broke: GenerationNumber | None = None,
) -> "Memory":
    """Leave these out of the next plans for a while; `broke` is what they could not enter."""
    benched = dict(memory.benched)
    for worker in workers:
        former = benched.get(worker, Bench(0, now))
        rest_s = min(timeouts.bench_first_s * 2.0**former.times, timeouts.bench_most_s)
        benched[worker] = Bench(former.times + 1, now + rest_s, broke or former.broke)
    return replace(memory, benched=benched)


def follow(memory: "Memory", view: JobView, now: float, timeouts: Timeouts) -> "Memory":
    """Forget who is well again, and leave out who could not come in."""
    said = {worker for ready in view.ready.values() for worker in ready}
    kept = {
        worker: bench
        for worker, bench in memory.benched.items()
        if not view.ended(worker)
        and not (view.holds_state(worker) if bench.broke is not None else worker in said)
    }
    memory = replace(memory, benched=kept) if kept != memory.benched else memory
    broken = memory.broken
    if broken is None or now < broken[1] + timeouts.report_window_s:
        return memory  # the exit that explains it may follow
    generation = broken[0]
    refused = [w for w in _turned_back(view, generation) if not _is_known(memory, w, generation)]
    return bench(memory, refused, now, timeouts, broke=generation) if refused else memory


def _turned_back(view: JobView, generation: GenerationNumber) -> list[WorkerId]:
    """Newcomers that broke it and blame nobody, where nobody else's end explains it."""
    commit = next((one for one in view.open if one.generation == generation), None)
    if commit is None or commit.mode is not Mode.BOUNDARY:
        return []
    if any(view.ended(worker) for worker in commit.workers):
        return []
    return [
        worker
        for worker, report in sorted(view.breaks.get(generation, {}).items())
        if worker in commit.workers and not report.suspects and not view.holds_state(worker)
    ]


def _is_known(memory: "Memory", worker: WorkerId, generation: GenerationNumber) -> bool:
    bench = memory.benched.get(worker)
    return bench is not None and bench.broke == generation


def benched(memory: "Memory", now: float) -> frozenset[WorkerId]:
    """Who is left out now."""
    return frozenset(worker for worker, bench in memory.benched.items() if now < bench.until_s)


def reason(memory: "Memory", now: float) -> str:
    """Why those that stand ready hold nothing."""
    out = sorted(benched(memory, now))
    broke = [worker for worker in out if memory.benched[worker].broke is not None]
    mute = [worker for worker in out if worker not in broke]
    parts = [f"{words.places(mute)} did not answer"] if mute else []
    parts += [f"{words.places(broke)} could not come in"] if broke else []
    return f"{' and '.join(parts)} and will be asked again" if out else ""


def may_answer_yet(memory: "Memory", now: float) -> tuple[WorkerId, ...]:
    """Left out for the first time: it may only have been slow."""
    return tuple(w for w in sorted(benched(memory, now)) if memory.benched[w].times == 1)
