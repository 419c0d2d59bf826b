"""What one agent has told people since it began, kept for whoever asks later.

It stands between the agent and its audience: everything passes through, the newest part stays.
"""

import math
import threading
from collections import Counter, deque
from collections.abc import Mapping

import msgspec

from easyscale.reports import (
    Audience,
    EventKind,
    Fact,
    FirstCause,
    JobEvent,
    Progress,
    Source,
    Stream,
    Summary,
)

#: The newest changes that are kept, and the points of the metric's history.
MOST_EVENTS = 1000
MOST_POINTS = 64


class MetricStory(msgspec.Struct, frozen=True, kw_only=True):
    """The metric that is drawn, with its history as (step, value), oldest first."""

    name: str
    first: float
    last: float
    history: tuple[tuple[int, float], ...]
    #: The first step at which it was no number.
    not_finite_since: int | None = None

    def then(self, step: int, value: float) -> "MetricStory":
        """The story with one point more; when it is full, every second point goes."""
        if not math.isfinite(value):
            since = step if self.not_finite_since is None else self.not_finite_since
            return msgspec.structs.replace(self, last=value, not_finite_since=since)
        before = tuple(point for point in self.history if point[0] < step)
        history = (*before, (step, value))
        if len(history) > MOST_POINTS:
            history = (*history[:-1:2], history[-1])
        return msgspec.structs.replace(self, last=value, history=history)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """All that was told up to one moment."""

    #: Oldest first; `dropped` older ones are not here any more.
    events: tuple[JobEvent, ...] = ()
    dropped: int = 0
    #: How often each kind was told, the dropped ones too.
    counts: Mapping[str, int] = {}
    metric: MetricStory | None = None
    progress: Progress | None = None
    summary: Summary | None = None
    cause: FirstCause | None = None


class Chronicle:
    """Passes everything on to an audience; implements `easyscale.reports.Audience` itself."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience
        self._lock = threading.Lock()
        self._events: deque[JobEvent] = deque(maxlen=MOST_EVENTS)
        self._count = 0
        self._counts: Counter[str] = Counter()
        self._metric: MetricStory | None = None
        self._progress: Progress | None = None
        self._summary: Summary | None = None
        self._cause: FirstCause | None = None

    @property
    def told(self) -> Told:
        """What was told up to now; any thread may ask."""
        with self._lock:
            return Told(
                events=tuple(self._events),
                dropped=self._count - len(self._events),
                counts=dict(self._counts),
                metric=self._metric,
                progress=self._progress,
                summary=self._summary,
                cause=self._cause,
            )

    def open(self, *, job: str, facts: Mapping[str, Fact]) -> None:
        self._audience.open(job=job, facts=facts)

    def event(self, event: JobEvent) -> None:
        """Keep a change; a wait or a snapshot that follows another one stands for both."""
        with self._lock:
            self._counts[str(event.event)] += 1
            last = self._events[-1].event if self._events else None
            if event.event is last and last in (EventKind.WAITING, EventKind.SNAPSHOT):
                self._events[-1] = event
            else:
                self._events.append(event)
                self._count += 1
        self._audience.event(event)

    def progress(self, progress: Progress) -> None:
        with self._lock:
            self._progress = progress
            if progress.metric is not None and progress.value is not None:
                self._metric = self._metric_with(progress.metric, progress.step, progress.value)
        self._audience.progress(progress)

    def output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None:
        self._audience.output(source, stream, data, rank)

    def fail(self, cause: FirstCause) -> None:
        with self._lock:
            self._cause = cause
        self._audience.fail(cause)

    def finish(self, summary: Summary) -> None:
        with self._lock:
            self._summary = summary
        self._audience.finish(summary)

    def close(self) -> None:
        self._audience.close()

    def _metric_with(self, name: str, step: int, value: float) -> MetricStory:
        if self._metric is None or self._metric.name != name:
            begun = MetricStory(name=name, first=value, last=value, history=())
            return begun.then(step, value)
        return self._metric.then(step, value)
