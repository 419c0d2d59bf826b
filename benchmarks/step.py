"""Times a whole training step against stock DDP, a logical worker to a process, runs alternating.

`python benchmarks/step.py` launches the same model under easyscale and under torchrun in turn; each
run prints the median of its steps. Target: at most 1.05.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TARGET = 1.05
PROCESSES = 2
MODEL = """
import statistics, time, torch, torch.nn.functional as F
from torch import nn
WIDTH, ROWS, STEPS = {width}, {rows}, {steps}
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(WIDTH, WIDTH), nn.ReLU())))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
data = torch.utils.data.TensorDataset(torch.randn(ROWS * {n} * STEPS, WIDTH))
times = []
"""
OURS = """
import easyscale
job = easyscale.init(seed=0)
job.register(model=model, optimizer=optimizer)
loader = job.loader(data, batch_size=ROWS, shuffle=False)
for _ in job.epochs(1):
    began = time.perf_counter()
    for step in loader:
        for (x,) in step:
            F.mse_loss(model(x), x).backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
        began = time.perf_counter()
if job.is_main:
    print("step", statistics.median(times[3:]), flush=True)
"""
STOCK = """
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler
dist.init_process_group("gloo")
parallel = nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, ROWS, sampler=DistributedSampler(data, shuffle=False))
began = time.perf_counter()
for (x,) in loader:
    optimizer.zero_grad()
    F.mse_loss(parallel(x), x).backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
    began = time.perf_counter()
if dist.get_rank() == 0:
    print("step", statistics.median(times[3:]), flush=True)
dist.destroy_process_group()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    bin_folder = Path(sys.executable).parent
    head = MODEL.format(width=options.width, rows=options.rows, steps=options.steps, n=PROCESSES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, stock = folder / "ours.py", folder / "stock.py"
        ours.write_text(head + OURS)
        stock.write_text(head + STOCK)
        launch = [bin_folder / "easyscale", "launch", "--devices", f"cpu:{PROCESSES}"]
        launch += ["--logical-workers", str(PROCESSES), ours]
        torchrun = [bin_folder / "torchrun", "--nproc-per-node", str(PROCESSES), stock]
        pairs = [
            (step_s(list(map(str, launch)), folder), step_s(list(map(str, torchrun)), folder))
            for _ in range(options.rounds)
        ]
    ratio = statistics.median(a / b for a, b in pairs)
    a, b = (1e3 * statistics.median(side) for side in zip(*pairs, strict=True))
    verdict = "met" if ratio <= TARGET else "missed"
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} pairs of runs")
    print(
        f"whole step, {PROCESSES} processes: {ratio:.2f} x of stock DDP "
        f"(target {TARGET} x: {verdict}), {a:.1f} ms against {b:.1f} ms"
    )


def step_s(command: list[str], folder: Path) -> float:
    """Median step of one run, seconds."""
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=environment,
    )
    said = [line for line in done.stdout.splitlines() if "step " in line]
    return float(said[-1].rpartition("step ")[2])


if __name__ == "__main__":
    main()
