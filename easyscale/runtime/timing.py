"""How long steps and their parts take: medians over a window, for screens and for the planner.

A change of pace shows within a few steps: when all of them differ clearly from what was usual, the
window begins anew with them. What is not like the rest, such as the first step, is left out.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, Self

#: Entries that a median is taken over: long enough to be calm, short enough to follow a change.
_WINDOW = 32
#: The pace has changed when so many entries in a row, of so many steps, lie this far off one way.
_CHANGED_ENTRIES = 5
_CHANGED_STEPS = 3
_CHANGED_SHARE = 0.2
#: The usual pace is found anew after so many entries: a median costs more than an addition.
_REFRESH = 8


class Window:
    """The last durations of one thing, and their median."""

    __slots__ = ("_fresh", "_streak", "_streak_step", "_usual", "_values", "step")

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self._usual: float | None = None
        self._fresh = 0
        #: Entries in a row above (or, negative, below) the usual, and the step of the first.
        self._streak = 0
        self._streak_step = 0
        self.step = 0

    def __len__(self) -> int:
        return len(self._values)

    def append(self, seconds: float) -> None:
        self._values.append(seconds)
        self._fresh += 1
        if self._usual is None:
            if self._fresh >= _CHANGED_ENTRIES:
                self._refresh()
            return
        side = _side(seconds, self._usual)
        if not side:
            self._streak = 0
        elif self._streak * side <= 0:
            self._streak, self._streak_step = side, self.step
        else:
            self._streak += side
        steps = self.step - self._streak_step + 1
        if abs(self._streak) >= _CHANGED_ENTRIES and steps >= _CHANGED_STEPS:
            self._values = deque(list(self._values)[-abs(self._streak) :], maxlen=_WINDOW)
            self._refresh()
        elif self._fresh >= _REFRESH and not self._streak:
            self._refresh()

    def clear(self) -> None:
        self._values.clear()
        self._usual, self._fresh, self._streak = None, 0, 0

    def middle(self) -> float | None:
        """The median; while the pace is changing, of what was before."""
        return median(self._values) if self._values else None

    def spread(self) -> float | None:
        """How far entries lie from their median, as a share of it: the median of that."""
        if len(self._values) < _CHANGED_ENTRIES:
            return None
        middle = median(self._values)
        return median(abs(value - middle) for value in self._values) / middle if middle else None

    def _refresh(self) -> None:
        self._usual, self._fresh, self._streak = median(self._values), 0, 0


def _side(seconds: float, usual: float) -> int:
    if seconds > usual * (1 + _CHANGED_SHARE):
        return 1
    return -1 if seconds < usual / (1 + _CHANGED_SHARE) else 0


class DeviceMark(Protocol):
    """A moment in a device's stream of work, which the host is ahead of (a CUDA event)."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def elapsed_time(self, end: Self, /) -> float:
        """Milliseconds from here to there; both have been reached."""


@dataclass(slots=True)
class Timing:
    """Durations of what this process does, seconds."""

    #: Makes a mark where the device now is; None: the host computes, its clock is the measure.
    device_mark: Callable[[], DeviceMark] | None = None

    steps: Window = field(default_factory=Window)
    micro_steps: Window = field(default_factory=Window)
    exchanges: Window = field(default_factory=Window)
    #: Waiting for data, all local micro-steps of a step together.
    data: Window = field(default_factory=Window)
    #: When the last operation was complete; None before the first.
    completed_at_s: float | None = None
    _began_s: float = 0.0
    _began_mark: DeviceMark | None = None
    _marks: list[tuple[DeviceMark, DeviceMark]] = field(default_factory=list)
    _data_s: float = 0.0
    _step_ended_s: float | None = None
    #: Steps were measured with other shares: they say nothing of those now.
    _is_stale: bool = False
    #: No micro-step of the step that runs counts: kernels, caches and loader workers are cold.
    _is_cold: bool = True

    def add_data(self, seconds: float) -> None:
        self._data_s += seconds

    def begin_micro_step(self) -> None:
        self._began_s = time.monotonic()
        self._began_mark = None if self.device_mark is None else self.device_mark()

    def end_micro_step(self) -> None:
        """A micro-step is done; those of a first step, or of one after a change, are no measure."""
        if self._is_cold:
            return
        if self.device_mark is None or self._began_mark is None:
            self.micro_steps.append(time.monotonic() - self._began_s)
        else:
            self._marks.append((self._began_mark, self.device_mark()))

    def end_step(self) -> None:
        """A step's result is held, so the device has come to the marks before it."""
        for began, ended in self._marks:
            if ended.query():
                self.micro_steps.append(began.elapsed_time(ended) / 1000)
        self._marks.clear()
        now = time.monotonic()
        if self._step_ended_s is not None:
            if self._is_stale:
                self.steps.clear()
                self.exchanges.clear()
                self._is_stale = False
            self.steps.append(now - self._step_ended_s)
        self._step_ended_s = now
        self.data.append(self._data_s)
        self._data_s = 0.0
        self._is_cold = False
        for window in (self.steps, self.micro_steps, self.exchanges, self.data):
            window.step += 1

    def end_operation(self) -> None:
        self.completed_at_s = time.monotonic()

    def interrupt(self) -> None:
        """What comes now is no step like the others."""
        self._step_ended_s = None
        self._marks.clear()
        self._is_stale = self._is_cold = True


def middle(window: Window) -> float | None:
    """The median, None while there is nothing."""
    return window.middle()
