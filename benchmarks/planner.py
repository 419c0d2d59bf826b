"""Times the planner on 1,000 slots of 5 kinds and 4,096 logical workers, at first and again.

`python benchmarks/planner.py` prints the median of its runs. Target: under 10 ms, exact.
"""

import argparse
import os
import statistics
import time
from dataclasses import replace

from easyscale.agent.balance.planner import Place, plan
from easyscale.model import WorkerId

TARGET_MS = 10.0
LOGICAL_WORKERS = 4096
PERIODS = (100, 131, 177, 260, 410)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    fresh = [Place(WorkerId(f"n{i:04}", "i", "cpu:0", 0), PERIODS[i % 5]) for i in range(1000)]
    held = plan(fresh, logical_workers=LOGICAL_WORKERS).ranks
    again = [replace(place, ranks=held.get(place.worker, ())) for place in fresh]
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} runs")
    for name, places in (("first plan", fresh), ("re-plan", again)):
        took_ms = statistics.median(run_ms(places) for _ in range(options.rounds))
        verdict = "met" if took_ms < TARGET_MS else "missed"
        print(f"1,000 slots, {name}: {took_ms:.1f} ms (target {TARGET_MS:.0f} ms: {verdict})")


def run_ms(places: list[Place]) -> float:
    began_s = time.perf_counter()
    plan(places, logical_workers=LOGICAL_WORKERS)
    return 1e3 * (time.perf_counter() - began_s)


if __name__ == "__main__":
    main()
