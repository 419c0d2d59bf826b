"""How long steps and their parts take: medians over a window, for screens and for the planner."""

import time
from collections import deque
from dataclasses import dataclass, field
from statistics import median

#: Entries that a median is taken over: long enough to be calm, short enough to follow a change.
_WINDOW = 32


def _window() -> deque[float]:
    return deque(maxlen=_WINDOW)


@dataclass(slots=True)
class Timing:
    """Durations of what this process does, seconds."""

    steps: deque[float] = field(default_factory=_window)
    micro_steps: deque[float] = field(default_factory=_window)
    exchanges: deque[float] = field(default_factory=_window)
    #: Waiting for data, all local micro-steps of a step together.
    data: deque[float] = field(default_factory=_window)
    #: When the last operation was complete; None before the first.
    completed_at_s: float | None = None
    _data_s: float = 0.0
    _step_ended_s: float | None = None

    def add_data(self, seconds: float) -> None:
        self._data_s += seconds

    def end_step(self) -> None:
        """A step's result is held."""
        now = time.monotonic()
        if self._step_ended_s is not None:
            self.steps.append(now - self._step_ended_s)
        self._step_ended_s = now
        self.data.append(self._data_s)
        self._data_s = 0.0

    def end_operation(self) -> None:
        self.completed_at_s = time.monotonic()

    def interrupt(self) -> None:
        """What comes now is no step like the others."""
        self._step_ended_s = None


def middle(window: deque[float]) -> float | None:
    """The median, None while there is nothing."""
    return median(window) if window else None
