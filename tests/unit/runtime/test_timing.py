"""Medians of durations: calm under noise, quick after a change, blind to what stands apart."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.runtime.timing import Timing, Window


def feed(window: Window, *seconds: float) -> None:
    for each in seconds:
        window.append(each)


def test_nothing_is_known_before_the_first() -> None:
    assert Window().middle() is None
    assert Window().spread() is None


@pytest.mark.parametrize(
    ("before", "after", "steps"),
    [(1.0, 4.0, 3), (4.0, 1.0, 3), (1.0, 1.5, 5), (1.5, 1.0, 5)],
)
def test_a_change_of_pace_shows_after_few_steps(before: float, after: float, steps: int) -> None:
    window = Window()
    feed(window, *[before] * 40)
    feed(window, *[after] * (steps - 1))
    assert window.middle() == before
    feed(window, after)
    assert window.middle() == after


def test_three_hard_steps_in_a_row_are_no_change_where_a_quarter_of_all_is_hard() -> None:
    window = Window()
    feed(window, *[1.0, 1.0, 1.0, 4.0] * 10, *[4.0] * 3)
    assert window.middle() == 1.0
    feed(window, *[4.0] * 4)
    assert window.middle() == 4.0, "seven in a row are no chance"


def test_two_hard_steps_are_no_change_of_pace() -> None:
    window = Window()
    feed(window, *[1.0] * 32, *[9.0] * 2, *[1.0] * 8)
    assert window.middle() == 1.0
    assert len(window) == 32


def test_where_steps_are_noisy_a_change_must_stand_out_of_the_noise() -> None:
    window = Window()
    feed(window, *[0.7, 1.0, 1.3] * 12)
    feed(window, *[1.5] * 6)
    assert len(window) == 32, "six steps of 1.5 are what this noise does now and then"
    feed(window, *[4.0] * 3)
    assert window.middle() == 4.0
    assert window.spread() == pytest.approx(0.3), "of three steps nobody knows it anew"


def test_the_last_steps_are_known_whatever_the_window_holds() -> None:
    window = Window()
    assert window.recent() is None
    feed(window, *[1.0] * 32, 3.0, 3.0)
    assert (window.middle(), window.recent()) == (1.0, 1.0)
    feed(window, 3.0)
    assert (window.middle(), window.recent()) == (3.0, 3.0)


def test_a_young_window_is_no_surer_than_its_worst_entry() -> None:
    window = Window()
    feed(window, 1.0)
    assert window.spread() == 0.2, "of one step nobody knows"
    feed(window, 1.01)
    assert window.spread() == 0.2
    feed(window, 0.7)
    assert window.spread() == pytest.approx(0.3)
    feed(window, *[1.0] * 5)
    assert window.spread() == 0.0, "from eight on it is the median of what they show"


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
        timing.end_step()
        assert len(timing.micro_steps) == measured
        if measured:
            timing.interrupt()


def test_one_odd_step_is_outvoted_before_anything_is_passed_on() -> None:
    window = Window()
    for seconds, settled in ((30.0, None), (1.0, None), (1.0, 1.0)):
        window.append(seconds)
        assert window.settled() == settled


@pytest.mark.parametrize(("is_other", "micro_step_s"), [(False, 1.0), (True, 1.25)])
def test_steps_of_another_map_are_no_measure_of_this_one(
    monkeypatch: pytest.MonkeyPatch, is_other: bool, micro_step_s: float
) -> None:
    timing, clock = Timing(), [0.0]
    monkeypatch.setattr("easyscale.runtime.timing.time.monotonic", lambda: clock[0])

    def steps(number: int, *, ranks: int, takes_s: float) -> None:
        for _ in range(number):
            for _ in range(ranks):
                timing.begin_micro_step()
                clock[0] += takes_s
                timing.end_micro_step()
            timing.end_step()

    steps(32, ranks=2, takes_s=1.0)
    timing.change_map(is_other=is_other)
    steps(2, ranks=3, takes_s=1.25)
    assert timing.steps.middle() == 3 * 1.25, "not what two ranks took"
    steps(3, ranks=3, takes_s=1.25)
    assert timing.micro_steps.middle() == micro_step_s


def test_micro_steps_of_a_step_count_as_their_mean_and_waits_for_data_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timing, clock = Timing(), [0.0]
    monkeypatch.setattr("easyscale.runtime.timing.time.monotonic", lambda: clock[0])
    for _ in range(3):
        for wait_s, takes_s in ((0.25, 1.0), (0.75, 2.0)):
            timing.add_data(wait_s)
            timing.begin_micro_step()
            clock[0] += takes_s
            timing.end_micro_step()
        timing.end_step()
    assert len(timing.micro_steps) == 2, "all but the first step"
    assert timing.micro_steps.middle() == 1.5
    assert timing.delays.middle() == 0.5
    assert timing.data.middle() == 1.0


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
    assert len(timing.micro_steps) == 1
    assert timing.micro_steps.middle() == pytest.approx(0.0225)


def test_a_device_that_still_computes_does_not_wait_for_data() -> None:
    """The second batch was there before the first was done, the third came 4 ms after."""
    at_ms = (0, 10, 10, 20, 24, 34, 40, 50)
    marks = iter([Mark(0), *map(Mark, at_ms)])
    timing = Timing(device_mark=lambda: next(marks))
    timing.begin_micro_step()
    timing.end_micro_step()
    timing.end_step()
    for fetch_s in (0.002, 0.006, 0.006, 0.001):
        timing.add_data(fetch_s)
        timing.begin_micro_step()
        timing.end_micro_step()
    timing.end_step()
    assert timing.micro_steps.middle() == pytest.approx(0.010)
    # All of the first, none of the second, the 4 ms, and no more than the fetch took.
    assert timing.delays.middle() == pytest.approx((0.002 + 0.0 + 0.004 + 0.001) / 4)


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
