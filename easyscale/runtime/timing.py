"""How long steps and their parts take: medians over a window, for screens and for the planner.

A change of pace shows within a few steps: when they differ from what was usual by more than its
noise, the window begins anew with them. What is not like the rest, as the first step, is left out.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol, Self

#: Entries that a median is taken over: long enough to be calm, short enough to follow a change.
_WINDOW = 32
#: The pace has changed when so many entries in a row lie this far off one way, or so few this far;
_CHANGED, _CHANGED_SHARE = 5, 0.2
_LEAPT, _LEAPT_SHARE = 3, 1.0
#: further where entries are noisy: by so many times their spread.
_NOISE = 4.0
#: Where single entries lie as far off now and then, so many in a row that chance hardly makes them.
_CHANCE = 1e-4
#: What is usual, and its spread, take so many entries: of fewer they would be chance, and such a
#: spread is believed to be no less than this share.
_LEAST = 8
_UNSURE = 0.2
#: Of so many, one that is not like the rest, as a step that compiles, is outvoted.
_OUTVOTING = 3
#: The last steps alone are so many.
_RECENT = 5
#: The usual pace is found anew after so many entries: a median costs more than an addition.
_REFRESH = 8


class Window:
    """The last durations of one thing, one for each step, and their median."""

    __slots__ = ("_fresh", "_leap", "_spread", "_streak", "_usual", "_values")

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=_WINDOW)
        self._usual: float | None = None
        self._spread: float | None = None
        self._fresh = 0
        #: Entries in a row above (or, negative, below) the usual, and far above or below it.
        self._streak = 0
        self._leap = 0

    def __len__(self) -> int:
        return len(self._values)

    def append(self, seconds: float) -> None:
        self._values.append(seconds)
        self._fresh += 1
        if self._usual is None:
            if self._fresh >= _LEAST:
                self._refresh()
            return
        noise = _NOISE * (self._spread or 0.0)
        for_change, for_leap = max(_CHANGED_SHARE, noise), max(_LEAPT_SHARE, noise)
        self._streak = _in_a_row(self._streak, _side(seconds, self._usual, for_change))
        self._leap = _in_a_row(self._leap, _side(seconds, self._usual, for_leap))
        has_changed = self._is_change(self._streak, least=_CHANGED, share=for_change)
        if has_changed or self._is_change(self._leap, least=_LEAPT, share=for_leap):
            new = max(abs(self._streak), abs(self._leap))
            self._values = deque(list(self._values)[-new:], maxlen=_WINDOW)
            self._refresh()
        elif self._fresh >= _REFRESH and not self._streak:
            self._refresh()

    def _is_change(self, streak: int, *, least: int, share: float) -> bool:
        """So many in a row are no chance, by how often one lay there before."""
        length = abs(streak)
        if length < least or self._usual is None:
            return False
        before = list(self._values)[:-length]
        way = 1 if streak > 0 else -1
        odd = sum(_side(each, self._usual, share) == way for each in before)
        return not odd or (odd / len(before)) ** length < _CHANCE

    def clear(self) -> None:
        self._values.clear()
        self._usual, self._fresh, self._streak, self._leap = None, 0, 0, 0

    def middle(self) -> float | None:
        """The median; while the pace is changing, of what was before."""
        return median(self._values) if self._values else None

    def settled(self) -> float | None:
        """The median, once there are enough for one that is odd to be outvoted."""
        return self.middle() if len(self._values) >= _OUTVOTING else None

    def recent(self) -> float | None:
        """The median of the last few: slots that are compared by it saw the same moments."""
        return median(list(self._values)[-_RECENT:]) if self._values else None

    def spread(self) -> float | None:
        """How far entries lie from their median, as a share of it: the median of that."""
        if len(self._values) < _LEAST and self._spread is not None:
            return self._spread
        middle = median(self._values) if self._values else 0.0
        if not middle:
            return None
        if len(self._values) < _LEAST:
            return max(_UNSURE, *(abs(value - middle) / middle for value in self._values))
        return median(abs(value - middle) for value in self._values) / middle

    def _refresh(self) -> None:
        self._spread = self.spread()
        self._usual, self._fresh = median(self._values), 0
        self._streak = self._leap = 0


def _side(seconds: float, usual: float, share: float) -> int:
    if seconds > usual * (1 + share):
        return 1
    return -1 if seconds * (1 + share) < usual else 0


def _in_a_row(streak: int, side: int) -> int:
    """One entry more that way, or the first of its way."""
    return streak + side if streak * side > 0 else side


class DeviceMark(Protocol):
    """A moment in a device's stream of work, which the host is ahead of (a CUDA event)."""

    def query(self) -> bool:
        """Whether the device has come there."""

    def elapsed_time(self, end: Self, /) -> float:
        """Milliseconds from here to there; both have been reached."""


@dataclass(slots=True)
class _MicroStep:
    """One that is done: the wait for its data and what it took by the host, its marks if any."""

    fetch_s: float
    took_s: float
    marks: tuple[DeviceMark, DeviceMark] | None

    @property
    def is_reached(self) -> bool:
        return self.marks is None or self.marks[1].query()

    @property
    def busy_s(self) -> float:
        if self.marks is None:
            return self.took_s
        began, ended = self.marks
        return began.elapsed_time(ended) / 1000

    def delay_s(self, former: "_MicroStep | None") -> float:
        """A device works off what it has while the host waits for data: the rest is the delay."""
        if self.marks is None or former is None or former.marks is None:
            return self.fetch_s
        gap_s = former.marks[1].elapsed_time(self.marks[0]) / 1000
        return min(self.fetch_s, max(0.0, gap_s))


@dataclass(slots=True)
class Timing:
    """Durations of what this process does, seconds."""

    #: Makes a mark where the device now is; None: the host computes, its clock is the measure.
    device_mark: Callable[[], DeviceMark] | None = None

    steps: Window = field(default_factory=Window)
    #: A step's micro-steps, each as long as their mean: what one rank more would take.
    micro_steps: Window = field(default_factory=Window)
    exchanges: Window = field(default_factory=Window)
    #: Waiting for data, all local micro-steps of a step together; not part of `micro_steps`.
    data: Window = field(default_factory=Window)
    #: How much longer that makes each: a device that still computes does not wait.
    delays: Window = field(default_factory=Window)
    #: When the last operation was complete; None before the first.
    completed_at_s: float | None = None
    _began_s: float = 0.0
    _began_mark: DeviceMark | None = None
    _fetch_s: float = 0.0
    #: Of the step that runs: what was fetched, and micro-steps that count.
    _data_s: float = 0.0
    _done: list["_MicroStep"] = field(default_factory=list)
    _step_ended_s: float | None = None
    #: Steps were measured with other shares: they say nothing of those now.
    _is_stale: bool = False
    #: No micro-step of the step that runs counts: kernels, caches and loader workers are cold.
    _is_cold: bool = True

    def add_data(self, seconds: float) -> None:
        self._fetch_s = seconds
        self._data_s += seconds

    def begin_micro_step(self) -> None:
        self._began_s = time.monotonic()
        self._began_mark = None if self.device_mark is None else self.device_mark()

    def end_micro_step(self) -> None:
        """A micro-step is done; those of a first step, or of one after a change, are no measure."""
        if self._is_cold:
            return
        took_s, marks = time.monotonic() - self._began_s, None
        if self.device_mark is not None and self._began_mark is not None:
            marks = self._began_mark, self.device_mark()
        self._done.append(_MicroStep(self._fetch_s, took_s, marks))

    def end_step(self) -> None:
        """A step's result is held, so the device has come to the marks before it."""
        self._measure()
        now = time.monotonic()
        if self._step_ended_s is not None:
            if self._is_stale:
                self.steps.clear()
                self.exchanges.clear()
                self._is_stale = False
            self.steps.append(now - self._step_ended_s)
        self._step_ended_s = now
        self._is_cold = False

    def _measure(self) -> None:
        """Note what this step's micro-steps took, and how long they stood for want of data."""
        done = [each for each in self._done if each.is_reached]
        if done:
            self.micro_steps.append(fmean(each.busy_s for each in done))
            before = (None, *done[:-1])
            delays = (each.delay_s(former) for former, each in zip(before, done, strict=True))
            self.delays.append(fmean(delays))
        if not self._is_cold:
            self.data.append(self._data_s)
        self._forget_step()

    def _forget_step(self) -> None:
        self._data_s = 0.0
        self._done.clear()

    def end_operation(self) -> None:
        self.completed_at_s = time.monotonic()

    def recent_rank_s(self) -> float | None:
        """What a rank has taken in the last few steps, its wait for data included."""
        busy_s = self.micro_steps.recent()
        return None if busy_s is None else busy_s + (self.delays.recent() or 0.0)

    def interrupt(self) -> None:
        """What comes now is no step like the others."""
        self._step_ended_s = None
        self._forget_step()
        self._is_stale = self._is_cold = True

    def change_map(self, *, is_other: bool) -> None:
        """Other ranks from here on, and other steps; other micro-steps where ``is_other``.

        Those are of a slot that had nothing to compute for a while, or of one beside which slots
        fall idle one by one: what was measured before says nothing of now.
        """
        self.interrupt()
        if is_other:
            self.micro_steps.clear()
            self.delays.clear()


def middle(window: Window) -> float | None:
    """The median, None while there is nothing."""
    return window.middle()
