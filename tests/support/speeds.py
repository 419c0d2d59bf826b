"""A world whose slots compute at speeds that a test chooses: noisy, drifting, lying.

Each step takes what its slowest slot takes; what workers report went through the runtime's windows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

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


@dataclass
class Slot:
    """A device place: how long a micro-step takes there, and how it is told."""

    #: Seconds of a micro-step at a step of the job.
    takes: Callable[[int], float]
    #: What it measures of each second: 0.5 claims to be twice as fast as it is.
    claims: float = 1.0


@dataclass
class Race:
    """One job on the slots of node a; `run` completes steps."""

    slots: list[Slot]
    logical_workers: int
    noise: float = 0.02
    seed: int = 0
    #: Beside the micro-steps, in every step.
    overhead_s: float = 0.01
    balance: Balance = field(default_factory=Balance)
    world: World = field(init=False)
    step: int = 0
    #: Ranks by slot after each step, and what the step took.
    maps: list[tuple[int, ...]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    _windows: dict[WorkerId, Window] = field(default_factory=dict)
    _steps: Window = field(default_factory=Window)
    _generation: GenerationNumber | None = None
    _random: Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = Random(self.seed)
        self.world = World(logical_workers=self.logical_workers, balance=self.balance)
        self.world.report_of = self._report
        self.world.start("a", slots=len(self.slots))
        self.world.advance(2.0)

    @property
    def counts(self) -> tuple[int, ...]:
        held = dict.fromkeys(range(len(self.slots)), 0)
        for worker in self.world.nodes["a"].workers.values():
            held[int(worker.id.slot.partition(":")[2])] = len(self._ranks(worker))
        return tuple(held.values())

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

    def _ranks(self, worker: PlayedWorker) -> tuple[int, ...]:
        commit = worker.entered
        return (
            next((m.ranks for m in commit.members if m.worker == worker.id), ()) if commit else ()
        )

    def _complete_step(self) -> float:
        busy = [0.0]
        for worker in self.world.nodes["a"].workers.values():
            commit = worker.entered
            if commit is not None and commit.generation != self._generation:
                self._generation = commit.generation
                self._steps.clear()
            window = self._windows.setdefault(worker.id, Window())
            busy.append(sum(self._micro_step(worker.id, window) for _ in self._ranks(worker)))
            window.step += 1
        took_s = max(busy) + self.overhead_s
        self._steps.append(took_s)
        self._steps.step += 1
        return took_s

    def _micro_step(self, worker: WorkerId, window: Window) -> float:
        slot = self.slots[int(worker.slot.partition(":")[2])]
        seconds = slot.takes(self.step) * self._random.uniform(1 - self.noise, 1 + self.noise)
        window.append(seconds * slot.claims)
        return seconds

    def _report(self, worker: PlayedWorker) -> StepReport:
        window = self._windows.setdefault(worker.id, Window())
        return step_report(
            worker.position,
            steps=_STEPS,
            step_s=self._steps.middle() or 0.1,
            micro_step_s=window.middle(),
        )


def steady(seconds: float) -> Slot:
    return Slot(lambda _: seconds)


def between(seconds: float, other: float, first: int, last: int) -> Slot:
    """`other` from step `first` on, before `last`."""
    return Slot(lambda step: other if first <= step < last else seconds)
