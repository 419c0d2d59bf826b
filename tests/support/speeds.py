"""A world whose slots compute at speeds that a test chooses: noisy, drifting, lying.

Each step takes what its slowest slot takes; what workers report went through the runtime's windows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from math import exp, sqrt
from random import Random
from typing import Protocol

from easyscale.agent.balance.planner import shares
from easyscale.agent.settings import Balance
from easyscale.messages import StepReport
from easyscale.model import GenerationNumber, WorkerId
from easyscale.reports import JobEvent
from easyscale.runtime.timing import Window
from tests.support.world import Worker as PlayedWorker
from tests.support.world import World, step_report

#: Far more steps than a test runs: the end of the job decides nothing.
_STEPS = 1_000_000


class Noise(Protocol):
    """By what each slot's micro-steps of one step are longer or shorter than they should be."""

    def next_step(self) -> None: ...

    def of(self, slot: int) -> float: ...


class Even:
    """Every micro-step lies within a share of what it should be, and knows of no other."""

    def __init__(self, share: float, seed: int) -> None:
        self._share, self._random = share, Random(seed)

    def next_step(self) -> None:
        """Nothing lasts longer than a micro-step."""

    def of(self, slot: int) -> float:
        del slot
        return self._random.uniform(1 - self._share, 1 + self._share)


class Hiccups:
    """Some micro-steps, here and there, take many times as long: a collector of garbage, a disk."""

    def __init__(self, share: float, times: float, seed: int) -> None:
        self._share, self._times, self._random = share, times, Random(seed)

    def next_step(self) -> None:
        """Nothing lasts longer than a micro-step."""

    def of(self, slot: int) -> float:
        del slot
        usual = self._random.uniform(0.98, 1.02)
        return usual * (self._times if self._random.random() < self._share else 1.0)


class Crowd:
    """Two workers on two cores among other programs: measured there, as logarithms of ratios.

    A step's micro-steps together lay about 0.33 off the usual, for both slots alike and half of it
    for the next step too; the slots apart by 0.1 as a rule, and by 0.5 in three steps of ten.
    """

    _TOGETHER, _LASTS, _RULE, _EXCEPTION, _EXCEPTIONS = 0.33, 0.55, 0.08, 0.5, 0.3

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._together = 0.0
        self._own: dict[int, float] = {}

    def next_step(self) -> None:
        fresh = self._random.gauss(0.0, self._TOGETHER * sqrt(1 - self._LASTS**2))
        self._together = self._LASTS * self._together + fresh
        self._own = {}

    def of(self, slot: int) -> float:
        if slot not in self._own:
            is_rare = self._random.random() < self._EXCEPTIONS
            self._own[slot] = self._random.gauss(0.0, self._EXCEPTION if is_rare else self._RULE)
        return exp(self._together + self._own[slot])


class Recorded:
    """What two workers on two busy cores did, step by step, from its beginning again and again."""

    def __init__(self, steps: Sequence[Sequence[float]]) -> None:
        self._steps = cycle(steps)
        self._now: Sequence[float] = ()

    def next_step(self) -> None:
        self._now = next(self._steps)

    def of(self, slot: int) -> float:
        return self._now[slot]


@dataclass
class Slot:
    """A device place: how long a micro-step takes there, and how it is told."""

    #: Seconds of a micro-step at a step of the job.
    takes: Callable[[int], float]
    #: What it measures of each second: 0.5 claims to be twice as fast as it is.
    claims: float = 1.0
    #: Seconds that its loader takes for a batch; it goes on while others are waited for.
    loads: Callable[[int], float] = lambda _: 0.0


@dataclass
class Race:
    """One job on the slots of node a, the last ones on node b; `run` completes steps."""

    slots: list[Slot]
    logical_workers: int
    noise: float | Noise = 0.02
    seed: int = 0
    #: Beside the micro-steps, in every step.
    overhead_s: float = 0.01
    balance: Balance = field(default_factory=Balance)
    #: So many of the slots are on node b, which comes when node a trains.
    on_b: int = 0
    world: World = field(init=False)
    step: int = 0
    #: Ranks by slot after each step, and what the step took.
    maps: list[tuple[int, ...]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _windows: dict[WorkerId, Window] = field(default_factory=dict)
    _delays: dict[WorkerId, Window] = field(default_factory=dict)
    _idle: dict[WorkerId, float] = field(default_factory=dict)
    _steps: Window = field(default_factory=Window)
    _generation: GenerationNumber | None = None
    #: The first step of a generation is no measure, and until there is another the last one stands.
    _is_first: bool = True
    _step_s: float = 0.1
    _noise: Noise = field(init=False)

    def __post_init__(self) -> None:
        noise = self.noise
        self._noise = Even(noise, self.seed) if isinstance(noise, float) else noise
        self.world = World(logical_workers=self.logical_workers, balance=self.balance)
        self.world.report_of = self._report
        self.world.start("a", slots=len(self.slots) - self.on_b)
        self.world.advance(2.0)
        if self.on_b:
            self.world.start("b", slots=self.on_b)
            self.world.advance(2.0)

    @property
    def counts(self) -> tuple[int, ...]:
        held = dict.fromkeys(range(len(self.slots)), 0)
        for worker in self._workers():
            held[self._index(worker.id)] = len(self._ranks(worker))
        return tuple(held.values())

    @property
    def workers(self) -> set[WorkerId]:
        return {worker.id for worker in self._workers()}

    @property
    def events(self) -> list[JobEvent]:
        return self.world.events

    def told(self, kind: str) -> list[JobEvent]:
        return [event for event in self.events if event.event.value == kind]

    @property
    def moves(self) -> int:
        """How often the map has changed."""
        return sum(a != b for a, b in zip(self.maps, self.maps[1:], strict=False))

    def run(self, steps: int) -> None:
        for _ in range(steps):
            took_s = self._complete_step()
            self.world.train(1)
            self.step += 1
            self.world.advance(round(took_s, 3))  # the world's clock counts in microseconds
            self.maps.append(self.counts)
            self.times.append(took_s)

    def until(self, counts: tuple[int, ...], *, within: int) -> int:
        """Run until the map is this one; how many steps it took."""
        return self._until(lambda: self.counts == counts, str(counts), within)

    def until_shares(self, told: str, *, within: int) -> int:
        """Run until slots, whichever they are, hold so many ranks."""
        return self._until(lambda: shares(self.counts) == told, told, within)

    def _until(self, is_so: Callable[[], bool], what: str, within: int) -> int:
        for passed in range(within + 1):
            if is_so():
                return passed
            self.run(1)
        raise AssertionError(f"{self.counts}, not {what}: {self.world.trace[-30:]}")

    def mean_s(self, last: int) -> float:
        return sum(self.times[-last:]) / last

    # --- a step ----------------------------------------------------------------------------------

    def _workers(self) -> list[PlayedWorker]:
        return [w for node in self.world.nodes.values() for w in node.workers.values()]

    def _index(self, worker: WorkerId) -> int:
        first = 0 if worker.node == "a" else len(self.slots) - self.on_b
        return first + int(worker.slot.partition(":")[2])

    def _ranks(self, worker: PlayedWorker) -> tuple[int, ...]:
        commit = worker.entered
        return (
            next((m.ranks for m in commit.members if m.worker == worker.id), ()) if commit else ()
        )

    def _complete_step(self) -> float:
        busy: dict[WorkerId, float] = {}
        self._noise.next_step()
        for worker in self._workers():
            commit = worker.entered
            if commit is not None and commit.generation != self._generation:
                self._generation = commit.generation
                self._step_s = self._steps.middle() or self._step_s
                self._steps.clear()
                self._is_first = True
            if ranks := len(self._ranks(worker)):
                busy[worker.id] = self._compute(worker.id, ranks)
        took_s = max(busy.values(), default=0.0) + self.overhead_s
        self._idle = {worker: took_s - each for worker, each in busy.items()}
        if not self._is_first:
            self._steps.append(took_s)
        self._is_first = False
        return took_s

    def _compute(self, worker: WorkerId, ranks: int) -> float:
        """A step's micro-steps on one slot, and what they measure there."""
        index = self._index(worker)
        slot = self.slots[index]
        each = [slot.takes(self.step) * self._noise.of(index) for _ in range(ranks)]
        window = self._windows.setdefault(worker, Window())
        if worker not in self._idle:
            window.clear()
        if not self._is_first:
            window.append(slot.claims * sum(each) / ranks)
        ahead_s = sum(each) + self._idle.get(worker, 0.0)
        wait_s = max(0.0, ranks * slot.loads(self.step) - ahead_s)
        self._delays.setdefault(worker, Window()).append(wait_s / ranks)
        return sum(each) + wait_s

    def _report(self, worker: PlayedWorker) -> StepReport:
        window = self._windows.setdefault(worker.id, Window())
        delays = self._delays.setdefault(worker.id, Window())
        return step_report(
            worker.position,
            steps=_STEPS,
            step_s=self._steps.middle() or self._step_s,
            micro_step_s=window.settled(),
            spread=window.spread(),
            data_wait_s=delays.middle(),
            recent_s=(window.recent() or 0.0) + (delays.recent() or 0.0) or None,
        )


def steady(seconds: float) -> Slot:
    return Slot(lambda _: seconds)


def between(seconds: float, other: float, first: int, last: int) -> Slot:
    """`other` from step `first` on, before `last`."""
    return Slot(lambda step: other if first <= step < last else seconds)
