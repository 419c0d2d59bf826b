"""Times N logical workers on one slot against a plain loop over the same batches, and their memory.

`python benchmarks/overhead.py` prints for micro-steps of about 1 and 10 ms the median ratio of
alternating steps, and the peak memory for N = 1 ... 16, each in a process of its own. Targets: time
at most 1.02; memory at most plain + log2(N) gradients.
"""

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import easyscale

Batch = tuple[torch.Tensor, torch.Tensor]

TIME_TARGET = 1.02
N = 16
#: Width of the hidden layers and rows of a batch: micro-steps of about 1 and 10 ms on one core.
SIZES = {"1 ms": (256, 64), "10 ms": (512, 256)}
MEMORY_WIDTH = 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.rounds)))
        return
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} pairs of steps")
    for name, (width, rows) in SIZES.items():
        found = ask("time", width, rows, rounds=options.rounds)
        ratio = found["ratio"]
        print(
            f"N = {N} on one slot, micro-step {found['micro_step_ms']:.1f} ms (about {name}): "
            f"{ratio:.3f} x of a plain loop (target {TIME_TARGET} x: "
            f"{'met' if ratio <= TIME_TARGET else 'missed'})"
        )
    gradient_mb = ask("gradient", MEMORY_WIDTH, rounds=1)["mb"]
    plain_mb = ask("plain", MEMORY_WIDTH, N, rounds=1)["mb"]
    for n in (1, 2, 4, 8, 16):
        ours_mb = ask("easyscale", MEMORY_WIDTH, n, rounds=1)["mb"]
        gradients = (ours_mb - plain_mb) / gradient_mb
        most = math.log2(n)
        verdict = "met" if gradients <= most + 0.1 else "missed"
        print(
            f"N = {n}: peak {ours_mb:.0f} MB, plain {plain_mb:.0f} MB, {gradients:+.1f} gradients "
            f"of {gradient_mb:.0f} MB (target {most:.0f}: {verdict})"
        )


def ask(*words: object, rounds: int) -> dict[str, float]:
    """One measurement in a process of its own."""
    command = [sys.executable, __file__, "--rounds", str(rounds), "--child", *map(str, words)]
    environment = dict(os.environ) | {"EASYSCALE_LOGICAL_WORKERS": str(N), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=600, env=environment
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def child(words: list[str], rounds: int) -> dict[str, float]:
    kind, width, *rest = words
    match kind:
        case "time":
            return compare_times(int(width), int(rest[0]), rounds)
        case "gradient":
            return {"mb": 4 * (2 * int(width) ** 2 + 2 * int(width)) / 1e6}
        case "plain":
            run_plain(int(width), int(rest[0]))
        case _:
            os.environ["EASYSCALE_LOGICAL_WORKERS"] = rest[0]
            run_ours(int(width))
    return {"mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3}


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def take_plain_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[Batch]
) -> None:
    optimizer.zero_grad()
    for x, y in batches:
        (F.mse_loss(model(x), y) / len(batches)).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def take_our_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: Any) -> None:
    for x, y in step:
        F.mse_loss(model(x), y).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def compare_times(width: int, rows: int, rounds: int) -> dict[str, float]:
    """Alternate steps of a plain loop and of ours over batches that lie ready."""
    job = easyscale.init(seed=0)
    model, optimizer = build(width)
    twin, twin_optimizer = build(width)
    batch = (torch.randn(rows, width), torch.randn(rows, width))
    job.register(model=model, optimizer=optimizer)
    loader = job.loader(Ready(N * (rounds + 2), batch), batch_size=1, collate_fn=first)
    ratios, plain_s = [], []
    for _ in job.epochs(1):
        for step in loader:
            ours_s = timed(take_our_step, model, optimizer, step)
            other_s = timed(take_plain_step, twin, twin_optimizer, [batch] * N)
            ratios.append(ours_s / other_s)
            plain_s.append(other_s)
    return {
        "ratio": statistics.median(ratios[2:]),
        "micro_step_ms": 1e3 * statistics.median(plain_s[2:]) / N,
    }


class Ready(Dataset[Batch]):
    """Every sample is one batch that lies ready: reading costs nothing."""

    def __init__(self, length: int, batch: Batch) -> None:
        self._length, self._batch = length, batch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Batch:
        return self._batch


def first(samples: list[Batch]) -> Batch:
    """Collate a batch of one sample to that sample."""
    return samples[0]


def timed(take_step: Callable[..., None], *arguments: object) -> float:
    began_s = time.perf_counter()
    take_step(*arguments)
    return time.perf_counter() - began_s


def run_plain(width: int, n: int) -> None:
    model, optimizer = build(width)
    batches = [(torch.randn(4, width), torch.randn(4, width))] * n
    for _ in range(3):
        take_plain_step(model, optimizer, batches)


def run_ours(width: int) -> None:
    job = easyscale.init(seed=0)
    model, optimizer = build(width)
    batch = (torch.randn(4, width), torch.randn(4, width))
    job.register(model=model, optimizer=optimizer)
    loader = job.loader(Ready(3 * job.logical_workers, batch), batch_size=1, collate_fn=first)
    for _ in job.epochs(1):
        for step in loader:
            take_our_step(model, optimizer, step)


if __name__ == "__main__":
    main()
