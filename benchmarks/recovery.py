"""Times what a change costs those who train on, against torchrun's restart in the same run.

`python benchmarks/recovery.py` kills a worker of each in turn, then adds, takes and moves slots and
loses a node. Every process writes the time of each step that it completed; the figures are gaps in
that. torchrun answers every change by restarting all workers, so its restart stands beside them.
"""

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from easyscale.rendezvous.embedded import EmbeddedEtcd

PROGRAMS = Path(sys.executable).parent
DEADLINE_S = 60.0
POLL_S = 0.01
#: Steps after which a start counts as steady.
STEADY = 15
#: A micro-step; four of them on two slots are the step.
SCRIPT = """
import os, sys, time
from pathlib import Path
out = Path(sys.argv[1])
trail = os.open(out / "trail", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def micro_step():
    slow = out / f"slow-{os.getpid()}"
    time.sleep(0.05 if slow.exists() else 0.01)
def done(step):
    os.write(trail, f"{time.monotonic()} {os.getpid()} {step}\\n".encode())
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
data = TensorDataset(torch.randn(400_000, 32), torch.randint(0, 4, (400_000,)))
"""
ELASTIC = (
    SCRIPT
    + """
import easyscale
job = easyscale.init()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
job.register(model=model, optimizer=optimizer)
for _ in job.epochs(1):
    for step in job.loader(data, batch_size=4, shuffle=True):
        for x, y in step:
            micro_step()
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        done(step.number)
"""
)
#: Three logical workers a process, as above; a checkpoint every ten steps, and back to it.
STOCK = (
    SCRIPT
    + """
import torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
saved, first = out / "checkpoint.pt", 0
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    first = state["step"]
parallel = nn.parallel.DistributedDataParallel(model)
for step, (x, y) in enumerate(DataLoader(data, 12), start=first):
    micro_step(); micro_step(); micro_step()
    optimizer.zero_grad()
    nn.functional.cross_entropy(parallel(x), y).backward()
    optimizer.step()
    done(step)
    if step % 10 == 9 and dist.get_rank() == 0:
        new = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(new, out / "partial.pt"); os.replace(out / "partial.pt", saved)
"""
)


class Step(NamedTuple):
    """A process completed a step."""

    at_s: float
    pid: int
    step: int


class Target(NamedTuple):
    """What a gap is called, and how much of torchrun's restart it may take."""

    name: str
    most: float


TARGETS = {
    "kill": Target("worker killed -> next completed step", 0.1),
    "join": Target("slot joins: longest gap between survivors' steps", 0.05),
    "drain": Target("slot leaves: longest gap between survivors' steps", 0.05),
    "rebalance": Target("rebalance: longest gap between steps", 0.05),
    "refused": Target("node killed -> next completed step", 0.02),
    "silent": Target("node falls silent -> next completed step", 0.15),
    # Its lease must end before another one leads, whatever anybody suspects.
    "refused-leader": Target("the leader's node killed -> next completed step", 0.15),
    "silent-leader": Target("the leader's node falls silent -> next completed step", 0.15),
}
#: What torchrun needs for the loss of a node: its agents' heartbeats, then the restart.
NODE_LOSS_S = 49.0
#: Its restart where it works, for a run in which it never did: about every second one.
RESTART_S = 1.6


@dataclass(slots=True)
class Running:
    """A launch that trains, read through what its processes write."""

    out: Path
    agents: list["subprocess.Popen[bytes]"]

    def steps(self) -> list[Step]:
        path = self.out / "trail"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # a line can be seen half written
        return [Step(float(a), int(b), int(c)) for a, b, c in (line.split() for line in lines)]

    def until(self, found: Callable[[list[Step]], object], what: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not found(self.steps()):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}: not within {DEADLINE_S:g} s, see {self.out}")
            time.sleep(POLL_S)

    def living(self) -> list[int]:
        """Processes of the newest steps."""
        steps = self.steps()
        newest = max((it.step for it in steps), default=0)
        return sorted({it.pid for it in steps if it.step >= newest - 3})

    def trains_on(self, processes: int) -> None:
        """Wait until so many take part, for some steps."""

        def steady(steps: list[Step]) -> bool:
            newest = max((it.step for it in steps), default=0)
            window = range(newest - STEADY, newest - 1)
            by_step = {s: {it.pid for it in steps if it.step == s} for s in window}
            return newest > STEADY and all(len(pids) == processes for pids in by_step.values())

        self.until(steady, f"{processes} processes train")

    def next_step_s(self, since_s: float, victims: set[int]) -> float:
        """Seconds from a loss to the first step that a survivor or successor completed after it."""

        def first(steps: list[Step]) -> Step | None:
            # What a survivor had computed already is completed a moment after the kill.
            known = max((it.step for it in steps if it.at_s <= since_s), default=0)
            later = (it for it in steps if it.at_s > since_s and it.pid not in victims)
            survivors = {it.pid for it in steps if it.at_s <= since_s}
            return next((it for it in later if it.step > known or it.pid not in survivors), None)

        self.until(first, "a step after the loss")
        found = first(self.steps())
        assert found is not None
        return found.at_s - since_s

    def longest_gap_s(self, since_s: float, pids: set[int]) -> float:
        gaps = [0.0]
        for pid in pids:
            times = [it.at_s for it in self.steps() if it.pid == pid and it.at_s > since_s - 1.0]
            gaps += [b - a for a, b in itertools.pairwise(times)]
        return max(gaps)


@contextmanager
def launched(out: Path, *commands: list[str]) -> Iterator[Running]:
    """Start agents, the next one when the one before has met etcd, and end all that they started.

    So the first one leads.
    """
    out.mkdir(parents=True)
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    log = (out / "log").open("wb")
    agents: list[subprocess.Popen[bytes]] = []
    running = Running(out, agents)
    try:
        for command in commands:
            if agents:
                running.until(lambda _: b'"met"' in (out / "log").read_bytes(), "the first agent")
            agents.append(
                subprocess.Popen(command, cwd=out, env=environment, stdout=log, stderr=log)
            )
        yield running
    finally:
        for pid in [pid for agent in agents for pid in family(agent.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for agent in agents:
            agent.wait()
        log.close()


def family(pid: int) -> list[int]:
    """A process and all below it."""
    with suppress(psutil.NoSuchProcess):
        return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return []


def ours(out: Path, *words: str, node: str = "a", slots: int = 2) -> list[str]:
    script = out.parent / "elastic.py"
    return [
        str(PROGRAMS / "easyscale"), "launch", "--json", "--job-id", out.name, "--node-name", node,
        "--devices", f"cpu:{slots}", "--max-restarts", "100", *words, str(script),
        "--logical-workers", "6", str(out),
    ]  # fmt: skip


def ask(*words: str) -> None:
    subprocess.run([str(PROGRAMS / "easyscale"), *words], check=True, capture_output=True)


def kill_one(running: Running) -> float:
    """SIGKILL the worker that is not main."""
    victim = running.living()[-1]
    since_s = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    return running.next_step_s(since_s, {victim})


def torchrun_restart(out: Path) -> dict[str, float]:
    command = [
        str(PROGRAMS / "torchrun"), "--standalone", "--nproc-per-node", "2", "--max-restarts", "3",
        str(out.parent / "stock.py"), str(out),
    ]  # fmt: skip
    with launched(out, command) as running:
        running.trains_on(2)
        victims = set(running.living())
        since_s = time.monotonic()
        os.kill(max(victims), signal.SIGKILL)
        return {"restart": running.next_step_s(since_s, victims)}


def one_node(out: Path) -> dict[str, float]:
    """Everything that slots of one node can do, in one job."""
    found: dict[str, float] = {}
    with launched(out, ours(out)) as running:
        running.trains_on(2)
        found["kill"] = kill_one(running)
        running.trains_on(2)
        for name, slots in (("join", 3), ("drain", 2)):
            before = set(running.living())
            since_s = time.monotonic()
            ask("devices", out.name, "a", "--set", f"cpu:{slots}")
            running.trains_on(slots)
            found[name] = running.longest_gap_s(since_s, before & set(running.living()))
        slow = running.living()[-1]
        (out / f"slow-{slow}").touch()
        since_s = time.monotonic()
        with suppress(TimeoutError):
            running.until(lambda _: b'"rebalanced"' in (out / "log").read_bytes(), "a rebalance")
            time.sleep(0.5)
            found["rebalance"] = running.longest_gap_s(since_s + 1.0, set(running.living()))
    return found


def node_loss(out: Path, number: signal.Signals, *, leads: bool) -> dict[str, float]:
    """End, or stop, every process of one of two nodes at once: the one that leads, or the other."""
    with ExitStack() as stack:
        server = EmbeddedEtcd.start()
        stack.callback(server.stop)
        where = ("--etcd", str(server.endpoint))
        commands = [ours(out, *where, node=node, slots=1) for node in ("a", "b")]
        running = stack.enter_context(launched(out, *commands))
        running.trains_on(2)
        victims = family(running.agents[0 if leads else 1].pid)
        since_s = time.monotonic()
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return {out.name: running.next_step_s(since_s, set(victims))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    restarts: list[float] = []
    found: dict[str, list[float]] = {name: [] for name in TARGETS}
    failures: list[str] = []

    def attempt(measure: Callable[[], dict[str, float]]) -> None:
        try:
            for key, value in measure().items():
                (restarts if key == "restart" else found[key]).append(value)
                print(f"  {key} {value:.3f} s", file=sys.stderr, flush=True)
        except TimeoutError as error:
            failures.append(str(error))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "elastic.py").write_text(ELASTIC)
        (folder / "stock.py").write_text(STOCK)
        for turn in range(options.rounds):
            attempt(partial(torchrun_restart, folder / f"stock-{turn}"))
            attempt(partial(one_node, folder / f"one-{turn}"))
        for how, number in (("refused", signal.SIGKILL), ("silent", signal.SIGSTOP)):
            attempt(partial(node_loss, folder / how, number, leads=False))
            attempt(partial(node_loss, folder / f"{how}-leader", number, leads=True))
    report(restarts, found, failures, rounds=options.rounds)


def report(
    restarts: list[float], found: dict[str, list[float]], failures: list[str], *, rounds: int
) -> None:
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {rounds} rounds")
    said = f"{statistics.median(restarts):.2f} s" if restarts else "never recovered"
    print(f"torchrun, worker killed -> next completed step: {said} ({len(restarts)} of {rounds})")
    restart_s = statistics.median(restarts) if restarts else RESTART_S
    for key, target in TARGETS.items():
        if not found[key]:
            print(f"{target.name}: not measured")
            continue
        value_s = statistics.median(found[key])
        is_node = key.startswith(("refused", "silent"))
        ratio = value_s / (NODE_LOSS_S if is_node else restart_s)
        verdict = "met" if ratio <= target.most else "missed"
        what = "its loss of a node" if is_node else "its restart"
        when = "" if restarts and not is_node else ", measured once"
        print(
            f"{target.name}: {value_s:.3f} s, {ratio:.3f} x of {what}{when} "
            f"(target {target.most} x: {verdict})"
        )
    for failure in failures:
        print(f"failed: {failure}")


if __name__ == "__main__":
    main()
