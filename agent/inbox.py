"""What the agent's loop takes next: events in the order they came, and the tick on its time.

    report of a worker --> waits for the next tick, the newest of each worker is enough
    anything else -------> taken at once; of a worker, only behind the reports that wait

So a step of the machine is paid for by each tick, not by each report of each worker.
"""

import queue
import time
from collections.abc import Callable, Mapping

import msgspec

from easyscale.agent.events import AgentEvent, Ticked, WorkerExited, WorkerSaid, ZygoteLost
from easyscale.errors import EasyScaleError
from easyscale.messages import StepReport
from easyscale.model import WorkerId
from easyscale.pulse import Beat
from easyscale.rendezvous.election import boottime_s

#: Where each worker is, read when it is asked.
Beats = Callable[[], Mapping[WorkerId, Beat]]
#: The pulses are read this often while a worker runs, and time passes this often otherwise.
BUSY_TICK_S = 0.25
IDLE_TICK_S = 1.0


class _Failed(msgspec.Struct, frozen=True):
    """A thread of ours met what ends the launch."""

    error: EasyScaleError


class Inbox:
    """Any thread puts events in; the loop alone takes them out."""

    def __init__(self, *, clock: Callable[[], float] = boottime_s) -> None:
        self._clock = clock
        self._queue: queue.SimpleQueue[AgentEvent | _Failed] = queue.SimpleQueue()
        self._reports: dict[WorkerId, StepReport] = {}
        #: What a worker said after its reports: it comes next.
        self._held: AgentEvent | None = None
        self._ticked_s = clock()

    def put(self, event: AgentEvent) -> None:
        self._queue.put(event)

    def fail(self, error: EasyScaleError) -> None:
        """Let the loop raise this as soon as it comes to it."""
        self._queue.put(_Failed(error))

    def take(self, beats: Beats, *, is_busy: bool, wake_s: float | None = None) -> AgentEvent:
        """Wait for the next event; the tick is one, with the beats of then, by `wake_s`."""
        if (held := self._held) is not None:
            self._held = None
            return held
        due_s = self._ticked_s + (BUSY_TICK_S if is_busy else IDLE_TICK_S)
        while True:
            now_s = self._clock()
            # A tick that is due waits for nobody, or many events would put off what it watches.
            event = None if now_s >= due_s else self._get(min(due_s, wake_s or due_s) - now_s)
            match event:
                case None:
                    return self._tick(beats)
                case WorkerSaid(worker=worker, message=StepReport() as report):
                    self._reports[worker] = report
                case WorkerSaid() | WorkerExited() | ZygoteLost() if self._reports:
                    self._held = event
                    return self._tick(beats)
                case _:
                    return event

    def _get(self, timeout_s: float) -> AgentEvent | None:
        try:
            event = self._queue.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(event, _Failed):
            raise event.error
        return event

    def _tick(self, beats: Beats) -> Ticked:
        self._ticked_s = self._clock()
        reports, self._reports = self._reports, {}
        return Ticked(beats=beats(), monotonic_s=time.monotonic(), reports=reports)
