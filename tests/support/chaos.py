"""Random harm to a job, drawn from a seed: what is done and when can be read and done again.

The schedule is drawn before anything runs; who it hits is drawn from who is there at that time.
"""

import itertools
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.etcd import Server
from tests.support.nodes import Event, Job, Node, freeze, kill, thaw
from tests.support.processes import run_easyscale

MOST_NODES = 3
MOST_SLOTS = 3
#: What is drawn, and how often of all.
HARMS = {
    "kill a worker": 4,
    "freeze a worker": 2,
    "kill an agent": 2,
    "freeze an agent": 1,
    "drain a node": 2,
    "start a node": 4,
    "set devices": 3,
    "freeze etcd": 2,
    "restart etcd": 1,
    "empty etcd": 1,
}


@dataclass(frozen=True, slots=True)
class Harm:
    """One thing that is done, after so many seconds in which nothing is."""

    what: str
    after_s: float


def draw(seed: int, count: int) -> list[Harm]:
    chance = random.Random(seed)
    what = chance.choices(list(HARMS), weights=list(HARMS.values()), k=count)
    # Every fourth comes together with the one before.
    pauses = [chance.choice((0.0, 1.0, 1.0, 1.0)) * chance.uniform(0.2, 5.0) for _ in what]
    return [Harm(name, round(pause_s, 2)) for name, pause_s in zip(what, pauses, strict=True)]


class Chaos:
    """Carries a schedule out against a job whose agents meet at `etcd`."""

    def __init__(self, job: Job, etcd: Server, *, seed: int) -> None:
        self._job = job
        self._etcd = etcd
        self._chance = random.Random(~seed)
        self._names: Iterator[str] = (f"n{number}" for number in itertools.count(1))
        #: What was done to whom, for the report.
        self.story: list[str] = []

    def begin(self) -> None:
        self._start()
        self._start()
        self._job.trains_on(2)

    def carry_out(self, harms: list[Harm]) -> None:
        for harm in harms:
            self._job.waits(harm.after_s)
            self._do(harm.what)
            if not self._living():
                self._start()

    def end(self) -> None:
        """Let the job come to its end; where all nodes were drained it is started once more."""
        self._job.hurry()
        finished: list[Event] = []
        while not finished:
            nodes = self._living() or [self._start()]
            for node in nodes:
                node.run.wait()
            finished = [end for node in nodes for end in node.events("finished")]
        for end in finished:
            self._job.holds(end, steps_lost=end["steps_lost"])

    def _do(self, what: str) -> None:
        job, etcd = self._job, self._etcd
        nodes = self._living()
        node = self._chance.choice(nodes)
        workers = sorted(set(job.pids()) & set().union(*(each.descendants() for each in nodes)))
        worker = self._chance.choice(workers) if workers else None
        target = worker if what.endswith("a worker") else node.name
        self.story.append(f"step {job.step()}: {what} ({target})")
        match what:
            case "kill a worker" if worker is not None:
                kill(worker)
            case "freeze a worker" if worker is not None:
                freeze(worker)  # for ever: the hang limit ends it
            case "kill an agent" if len(nodes) > 1:
                node.run.signal(signal.SIGKILL)
                node.run.wait()
            case "freeze an agent":
                freeze(node.run.pid)
                job.waits(self._chance.uniform(1.0, 8.0))
                thaw(node.run.pid)
            case "drain a node" if len(nodes) > 1:
                node.run.signal(signal.SIGTERM)
            case "start a node" if len(nodes) < MOST_NODES:
                self._start()
            case "set devices":
                devices = f"cpu:{self._chance.randint(1, MOST_SLOTS)}"
                run_easyscale("devices", job.name, node.name, "--set", devices, *job.where)
            case "freeze etcd":
                etcd.freeze()
                job.waits(self._chance.uniform(1.0, 8.0))
                etcd.thaw()
            case "restart etcd":
                etcd.kill()
                job.waits(self._chance.uniform(0.5, 3.0))
                etcd.start()
            case "empty etcd":
                etcd.wipe()
            case _:
                self.story[-1] += ": too few for it"
                if len(nodes) < MOST_NODES:
                    self._start()

    def _start(self) -> Node:
        return self._job.start(next(self._names), slots=self._chance.randint(1, 2))

    def _living(self) -> list[Node]:
        return [node for node in self._job.nodes if node.run.process.poll() is None]
