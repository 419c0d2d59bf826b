"""Newcomers that were asked into a plan and say nothing: the next plan goes without them. Pure.

Each time they are left out for twice as long; a word of theirs, however late, and it is forgotten.
"""

from collections.abc import Collection
from dataclasses import replace

from easyscale.agent import words
from easyscale.agent.memory import Bench, Memory
from easyscale.agent.settings import LaunchSettings, Timeouts
from easyscale.model import Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

#: A plan waits for newcomers so much of the grace at most: the drain behind it has to fit in.
GRACE_SHARE = 1 / 6


def silent(plan: Plan, view: JobView) -> tuple[WorkerId, ...]:
    """Newcomers that have not said that they hold the plan; members at work are never left out."""
    ready = view.ready.get(plan.generation, {})
    at_work = view.base.workers if view.base is not None else ()
    return tuple(w for w in plan.workers if w not in ready and w not in at_work)


def patience_s(settings: LaunchSettings) -> float:
    """Who waits for ranks does nothing else: it answers at once, if ever."""
    return min(settings.timeouts.deaf_timeout_s, GRACE_SHARE * settings.grace_s)


def bench(memory: Memory, workers: Collection[WorkerId], now: float, timeouts: Timeouts) -> Memory:
    """Leave these out of the next plans for a while."""
    benched = dict(memory.benched)
    for worker in workers:
        times = benched[worker].times if worker in benched else 0
        rest_s = min(timeouts.bench_first_s * 2.0**times, timeouts.bench_most_s)
        benched[worker] = Bench(times + 1, now + rest_s)
    return replace(memory, benched=benched)


def benched(memory: Memory, now: float) -> frozenset[WorkerId]:
    """Who is left out now."""
    return frozenset(worker for worker, bench in memory.benched.items() if now < bench.until_s)


def reason(memory: Memory, now: float) -> str:
    """Why those that stand ready hold nothing."""
    out = sorted(benched(memory, now))
    return f"{words.places(out)} did not answer and will be asked again" if out else ""


def may_answer_yet(memory: Memory, now: float) -> tuple[WorkerId, ...]:
    """Left out for the first time: it may only have been slow."""
    return tuple(w for w in sorted(benched(memory, now)) if memory.benched[w].times == 1)
