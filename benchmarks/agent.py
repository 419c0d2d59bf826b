"""Weighs the agent while its job trains, and times the status screen of a job of 512 slots.

`python benchmarks/agent.py` prints the memory and the CPU of the launcher's own process (it is the
agent; workers, zygote and etcd are not counted) over some seconds of training with two workers,
and how long one frame takes at 160 columns. Targets: below 60 MB and below 1 % of a core; a frame
is drawn each second, so it should take less than a tenth of one.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from easyscale.job_status import (
    Budget,
    Changes,
    JobFacts,
    JobStatus,
    Metric,
    SlotFacts,
    StepTime,
    StoreFacts,
    count_slots,
)
from easyscale.model import JobState
from easyscale_cli.views.glyphs import UNICODE
from easyscale_cli.views.status import Window, status_lines

MEMORY_TARGET_MB = 60
CPU_TARGET = 0.01
FRAME_TARGET_S = 0.1
WARM_UP_S = 5.0
NODES, SLOTS = 64, 8
#: Steps of about 20 ms that go on until the job is stopped.
SCRIPT = """
import time, torch, easyscale
job = easyscale.init()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.register(model=model, optimizer=optimizer)
data = torch.utils.data.TensorDataset(torch.randn(4000, 8, generator=torch.Generator()))
for _ in job.epochs(1000):
    for step in job.loader(data, batch_size=1):
        for (x,) in step:
            loss = model(x).square().mean()
            loss.backward()
            step.report(loss=loss)
            time.sleep(0.005)
        optimizer.step()
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.seconds:.0f} s")
    memory_mb, cpu = weigh_agent(options.seconds)
    print(
        f"agent while 2 workers train: {memory_mb:.0f} MB "
        f"(target {MEMORY_TARGET_MB}: {verdict(memory_mb, MEMORY_TARGET_MB)}), "
        f"{100 * cpu:.2f} % of a core (target {100 * CPU_TARGET:.0f} %: {verdict(cpu, CPU_TARGET)})"
    )
    frame_s = time_frame()
    print(
        f"one frame of a job of {NODES * SLOTS} slots: {1e3 * frame_s:.1f} ms "
        f"(target {1e3 * FRAME_TARGET_S:.0f} ms: {verdict(frame_s, FRAME_TARGET_S)})"
    )


def verdict(value: float, target: float) -> str:
    return "met" if value <= target else "missed"


def weigh_agent(seconds: float) -> tuple[float, float]:
    """Megabytes that are the agent's alone, and its share of a core, while its workers train."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "steady.py"
        script.write_text(SCRIPT)
        program = Path(sys.executable).parent / "easyscale"
        launch = ["launch", str(script), "--logical-workers", "4", "--devices", "cpu:2"]
        agent = subprocess.Popen(
            [str(program), *launch],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process = psutil.Process(agent.pid)
            time.sleep(WARM_UP_S)
            before_s, began_s = busy_s(process), time.monotonic()
            time.sleep(seconds)
            share = (busy_s(process) - before_s) / (time.monotonic() - began_s)
            memory_mb = process.memory_full_info().uss / 1e6
        finally:
            for _ in range(2):  # the second one forces
                agent.terminate()
                try:
                    agent.wait(timeout=15)
                except subprocess.TimeoutExpired:
                    continue
                break
    return memory_mb, share


def busy_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def time_frame(rounds: int = 20) -> float:
    """Seconds for one frame of a large job."""
    status, window = large_job(), Window(160, 50, UNICODE)
    taken_s = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        status_lines(status, window)
        taken_s.append(time.perf_counter() - began_s)
    return statistics.median(taken_s)


def large_job() -> JobStatus:
    """A running job on 64 nodes of 8 slots, some of them slow."""
    slots = tuple(
        SlotFacts(
            node=f"gpu-{node:03}",
            slot=f"cuda:{index}",
            kind="H100",
            state="in_use",
            ranks=(2 * (SLOTS * node + index), 2 * (SLOTS * node + index) + 1),
            micro_step_s=0.4 + 0.001 * index,
            against_kind=1.3 if (node, index) == (17, 2) else 1.0,
            slow=(node, index) == (17, 2),
            memory_used_bytes=61_000_000_000,
            memory_total_bytes=80_000_000_000,
        )
        for node in range(NODES)
        for index in range(SLOTS)
    )
    job = JobFacts(
        id="large",
        state=JobState.RUNNING,
        mode="elastic",
        logical_workers=2 * NODES * SLOTS,
        determinism="same-kind",
        era=1,
        generation=5,
        step=61_700,
        steps=100_000,
        epoch=6,
        epochs=None,
        started="2026-10-04T14:01:05.000Z",
        elapsed_s=7730.0,
        left_s=4850.0,
        steps_per_s=0.9,
        samples_per_s=3789.0,
    )
    history = tuple((step, 10.0 / (1 + step)) for step in range(200))
    return JobStatus(
        at="2026-10-04T14:13:58.012Z",
        job=job,
        metrics={"loss": Metric(last=2.814, first=10.9, history=history)},
        slots=slots,
        counts=count_slots(slots),
        step_time=StepTime(measured_s=1.11, predicted_s=1.0),
        changes=Changes(count=0, paused_s=0.0, steps_lost=0, last=()),
        budget=Budget(used=0, limit=3),
        store=StoreFacts(reachable=True, silent_s=0.3),
    )


if __name__ == "__main__":
    main()
