"""Times the planner on 1,000 slots and 4,096 logical workers: of five kinds, and each with its own.

`python benchmarks/planner.py` prints, for each way to plan, the median of its runs and the worst
median among sets of random periods, in time of a core. Target: under 10 ms, exact.
"""

import argparse
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random

from easyscale.agent.balance.planner import Place, plan
from easyscale.model import LogicalRank, WorkerId

TARGET_MS = 10.0
SLOTS, LOGICAL_WORKERS = 1000, 4096
#: Micro-steps in milliseconds; five kinds that differ as generations of a device do.
PERIODS = (100, 131, 177, 260, 410)
#: How far the measured times of one kind lie apart.
SPREAD = 0.03

Held = Mapping[WorkerId, tuple[LogicalRank, ...]]
WORKERS = [WorkerId(f"n{i:04}", "i", "cpu:0", 0) for i in range(SLOTS)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sets", type=int, default=8, help="of random periods, besides the usual")
    options = parser.parse_args()
    random = Random(1)  # noqa: S311 - periods, no secrets
    took_ms: dict[str, list[float]] = defaultdict(list)
    for number in range(options.sets + 1):
        periods = PERIODS if not number else tuple(random.randint(50, 1000) for _ in PERIODS)
        for name, places in situations(periods, random):
            runs = [run_ms(places) for _ in range(options.rounds)]
            took_ms[name].append(statistics.median(runs))
    load = os.getloadavg()[0]
    print(f"load {load:.1f}, {os.cpu_count()} cores, {options.rounds} runs, {options.sets} sets")
    for name, each in took_ms.items():
        middle, worst = statistics.median(each), max(each)
        verdict = "met" if middle < TARGET_MS else "missed"
        print(
            f"1,000 slots, {name}: {middle:.1f} ms, worst set {worst:.1f} ms"
            f" (target {TARGET_MS:.0f} ms: {verdict})"
        )


def situations(periods: Sequence[int], random: Random) -> Iterator[tuple[str, list[Place]]]:
    """What a leader plans: at first, again, for other speeds, and from maps it would not make."""
    kinds = [periods[i % len(periods)] * 1_000_000 for i in range(SLOTS)]
    fresh = places(kinds)
    yield "first plan", fresh
    held = plan(fresh, logical_workers=LOGICAL_WORKERS).ranks
    yield "re-plan", places(kinds, held)
    others = [random.randint(50, 1000) for _ in periods]
    changed = [others[i % len(periods)] * 1_000_000 for i in range(SLOTS)]
    yield "re-plan for other speeds", places(changed, held)
    yield "re-plan of scattered ranks", places(changed, scattered(held, random))
    measured = places(around(kinds, random))
    yield "first plan, each slot with its own time", measured
    held = plan(measured, logical_workers=LOGICAL_WORKERS).ranks
    yield "re-plan, each slot with its own time", places(around(kinds, random), held)


def places(times: Sequence[int], held: Held | None = None) -> list[Place]:
    slots = [Place(worker, each) for worker, each in zip(WORKERS, times, strict=True)]
    return [replace(slot, ranks=(held or {}).get(slot.worker, ())) for slot in slots]


def around(times: Sequence[int], random: Random) -> list[int]:
    return [round(each * random.uniform(1 - SPREAD, 1 + SPREAD)) for each in times]


def scattered(held: Held, random: Random) -> Held:
    """As many ranks for each worker, in no order."""
    ranks = random.sample(range(LOGICAL_WORKERS), LOGICAL_WORKERS)
    shuffled = map(LogicalRank, ranks)
    return {worker: tuple(sorted(next(shuffled) for _ in own)) for worker, own in held.items()}


def run_ms(slots: Sequence[Place]) -> float:
    began_s = time.thread_time()
    plan(slots, logical_workers=LOGICAL_WORKERS)
    return 1e3 * (time.thread_time() - began_s)


if __name__ == "__main__":
    main()
