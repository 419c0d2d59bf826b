"""What an agent tells passes through its chronicle unchanged, and the newest part stays."""

import math
from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.doors.chronicle import MOST_EVENTS, MOST_POINTS, Chronicle, MetricStory
from easyscale.reports import (
    EventKind,
    Fact,
    FirstCause,
    JobEvent,
    Progress,
    Source,
    Stream,
    Summary,
)


class Listener:
    """An audience that writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def open(self, *, job: str, facts: Mapping[str, Fact]) -> None:
        self.heard.append((job, facts))

    def event(self, event: JobEvent) -> None:
        self.heard.append(event)

    def progress(self, progress: Progress) -> None:
        self.heard.append(progress)

    def output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None:
        self.heard.append((source, stream, data, rank))

    def fail(self, cause: FirstCause) -> None:
        self.heard.append(cause)

    def finish(self, summary: Summary) -> None:
        self.heard.append(summary)

    def close(self) -> None:
        self.heard.append("closed")


def event(number: int, kind: EventKind = EventKind.JOINED) -> JobEvent:
    at = "2026-10-04T14:02:11.204Z"
    return JobEvent(at=at, job="j", event=kind, step=number, era=1, generation=1, reason="")


def progress(step: int, value: float, metric: str = "loss") -> Progress:
    return Progress(
        at="", job="j", step=step, steps=None, epoch=0, epochs=None, metric=metric, value=value,
        history=(), steps_per_s=None, samples_per_s=None, left_s=None, elapsed_s=0.0, nodes=1,
        slots=1, era=1, generation=1,
    )  # fmt: skip


def test_everything_reaches_the_audience_in_its_order() -> None:
    listener = Listener()
    chronicle = Chronicle(listener)
    chronicle.open(job="j", facts={})
    chronicle.event(event(1))
    chronicle.output(Source("a", "cpu:0", 7), Stream.STDOUT, b"x", None)
    chronicle.progress(progress(1, 2.0))
    chronicle.close()
    assert listener.heard == [
        ("j", {}), event(1), (Source("a", "cpu:0", 7), Stream.STDOUT, b"x", None),
        progress(1, 2.0), "closed",
    ]  # fmt: skip


def test_the_newest_events_are_kept_and_the_others_counted() -> None:
    chronicle = Chronicle(Listener())
    for number in range(MOST_EVENTS + 5):
        chronicle.event(event(number))
    told = chronicle.told
    assert [each.step for each in told.events] == list(range(5, MOST_EVENTS + 5))
    assert told.dropped == 5


def test_a_wait_that_is_told_again_is_one_event() -> None:
    chronicle = Chronicle(Listener())
    for number in range(3):
        chronicle.event(event(number, EventKind.WAITING))
    chronicle.event(event(3))
    assert [each.step for each in chronicle.told.events] == [2, 3]


def test_another_metric_begins_a_history_of_its_own() -> None:
    chronicle = Chronicle(Listener())
    chronicle.progress(progress(1, 2.0))
    chronicle.progress(progress(2, 0.5, "accuracy"))
    metric = chronicle.told.metric
    assert metric is not None
    assert (metric.name, metric.first, metric.history) == ("accuracy", 0.5, ((2, 0.5),))


def test_nan_is_no_point_of_the_history_and_its_first_step_is_remembered() -> None:
    chronicle = Chronicle(Listener())
    for step, value in ((1, 2.0), (2, math.nan), (3, math.nan)):
        chronicle.progress(progress(step, value))
    metric = chronicle.told.metric
    assert metric is not None
    assert metric.history == ((1, 2.0),)
    assert metric.not_finite_since == 2
    assert math.isnan(metric.last)


@given(st.lists(st.tuples(st.integers(0, 10_000), st.floats(-5, 5)), min_size=1, max_size=400))
def test_a_history_rises_in_steps_ends_at_the_newest_and_stays_short(
    points: list[tuple[int, float]],
) -> None:
    story = MetricStory(name="loss", first=0.0, last=0.0, history=())
    for step, value in points:
        story = story.then(step, value)
    steps = [step for step, _ in story.history]
    assert steps == sorted(set(steps))
    assert story.history[-1] == points[-1]
    assert len(story.history) <= MOST_POINTS
