"""Medians of durations: calm under noise, quick after a change, blind to what stands apart."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.runtime.timing import Timing, Window


def feed(window: Window, *seconds: float, per_step: int = 1) -> None:
    for i, each in enumerate(seconds):
        window.append(each)
        window.step += (i + 1) % per_step == 0


def test_nothing_is_known_before_the_first() -> None:
    assert Window().middle() is None
    assert Window().spread() is None


@pytest.mark.parametrize(("before", "after"), [(1.0, 4.0), (4.0, 1.0), (1.0, 1.5)])
def test_a_change_of_pace_shows_after_five_steps(before: float, after: float) -> None:
    window = Window()
    feed(window, *[before] * 40)
    feed(window, *[after] * 4)
    assert window.middle() == before
    feed(window, after)
    assert window.middle() == after


def test_one_hard_step_of_many_micro_steps_is_no_change_of_pace() -> None:
    window = Window()
    feed(window, *[1.0] * 32, per_step=8)
    feed(window, *[9.0] * 8, per_step=8)
    feed(window, *[1.0] * 8, per_step=8)
    assert window.middle() == 1.0


def test_a_pace_that_swings_every_other_step_keeps_one_median() -> None:
    window = Window()
    feed(window, *[1.0, 1.5] * 40)
    assert window.middle() == pytest.approx(1.25)


@given(st.integers(0, 10**6), st.floats(0.001, 10.0))
def test_noise_moves_the_median_by_little(seed: int, usual: float) -> None:
    random, window = Random(seed), Window()
    feed(window, *(usual * random.uniform(0.9, 1.1) for _ in range(200)))
    middle = window.middle()
    assert middle is not None
    assert abs(middle / usual - 1) < 0.08
    spread = window.spread()
    assert spread is not None
    assert spread < 0.1


def test_the_first_step_is_no_measure_and_neither_is_one_after_a_change() -> None:
    timing = Timing()

    def micro_step() -> None:
        timing.begin_micro_step()
        timing.end_micro_step()

    for measured in (0, 1, 1):
        micro_step()
        assert len(timing.micro_steps) == measured
        timing.end_step()
        if measured:
            timing.interrupt()
            micro_step()
            assert len(timing.micro_steps) == measured


class Mark:
    """A moment in the work of a device that is behind its host."""

    def __init__(self, at_ms: float, *, reached: bool = True) -> None:
        self.at_ms = at_ms
        self.reached = reached

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, end: "Mark") -> float:
        return end.at_ms - self.at_ms


def test_a_device_is_measured_by_its_own_clock_once_the_step_is_done() -> None:
    marks = iter(
        [Mark(0), Mark(10), Mark(30), Mark(30), Mark(55), Mark(55), Mark(99, reached=False)]
    )
    timing = Timing(device_mark=lambda: next(marks))
    timing.begin_micro_step()
    timing.end_micro_step()
    timing.end_step()
    for _ in range(3):
        timing.begin_micro_step()
        timing.end_micro_step()
    assert timing.micro_steps.middle() is None
    timing.end_step()
    assert len(timing.micro_steps) == 2
    assert timing.micro_steps.middle() == pytest.approx(0.0225)


def test_steps_of_an_earlier_layout_stand_until_the_first_of_the_new_one() -> None:
    timing = Timing()
    for _ in range(4):
        timing.end_step()
    assert len(timing.steps) == 3
    timing.interrupt()
    timing.end_step()
    assert len(timing.steps) == 3
    timing.end_step()
    assert len(timing.steps) == 1
