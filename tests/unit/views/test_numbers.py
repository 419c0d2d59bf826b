"""The table of numbers: its own examples, and what holds for every value."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

from collections.abc import Callable
from datetime import UTC, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale_cli.views import numbers

SECONDS = st.floats(min_value=0, max_value=1e9)


def test_a_number_is_written_as_the_table_says() -> None:
    written = (
        (numbers.pause(0.0831), "0.083 s"),
        (numbers.pause(0.0), "0.000 s"),
        (numbers.pause(None), "-"),
        (numbers.recovery(0.083), "0.083 s"),
        (numbers.recovery(10.4), "10.4 s"),
        (numbers.pause_total(0.131), "0.131 s"),
        (numbers.pause_total(5.2), "5.2 s"),
        (numbers.duration(0.0004), "0.4 ms"),
        (numbers.duration(0.038), "38 ms"),
        (numbers.duration(4.1), "4.1 s"),
        (numbers.duration(18.2), "18 s"),
        (numbers.duration(59.6), "1m 00s"),
        (numbers.duration(485), "8m 05s"),
        (numbers.duration(14 * 3600 + 36 * 60 + 59), "14h 36m"),
        (numbers.duration(42 * 3600), "1d 18h"),
        (numbers.elapsed(4.0), "4.0 s"),
        (numbers.elapsed(61), "1m 01s"),
        (numbers.took(0.04), "0.04 s"),
        (numbers.took(1.31), "1.31 s"),
        (numbers.age(53.9), "53 s"),
        (numbers.age(400), "6m"),
        (numbers.age(200_000), "2d"),
        (numbers.age(None), "-"),
        (numbers.step_time(0.135), "135 ms"),
        (numbers.step_time(1.11), "1.11 s"),
        (numbers.step_times(0.156, 0.118, arrow="→"), "156 → 118 ms"),
        (numbers.step_times(1.2, 0.86, arrow="→"), "1.20 → 0.86 s"),
        (numbers.milliseconds(0.0004), "0.4"),
        (numbers.milliseconds(0.131), "131"),
        (numbers.milliseconds(0.0), "0"),
        (numbers.count(6412), "6,412"),
        (numbers.counted(1, "slot"), "1 slot"),
        (numbers.counted(4, "slot"), "4 slots"),
        (numbers.rate(7.4), "7.4"),
        (numbers.rate(0.9), "0.90"),
        (numbers.rate(0.004), "0.004"),
        (numbers.rate(461_200), "461k"),
        (numbers.rate(3789), "3,789"),
        (numbers.rate(9_999.7), "10.0k"),
        (numbers.rate(999_600), "1.00M"),
        (numbers.rate(None), "?"),
        (numbers.rate(float("inf")), "?"),
        (numbers.data_size(98_100_000), "98.1 MB"),
        (numbers.data_size(13_200_000_000), "13.2 GB"),
        (numbers.data_size(0), "0 B"),
        (numbers.data_size(999), "999 B"),
        (numbers.data_size(999_999), "1.00 MB"),
        (numbers.gigabytes_pair(41_000_000_000, 80_000_000_000), "41/80"),
        (numbers.gigabytes_pair(None, 1), "-"),
        (numbers.percent(0.6412), "64 %"),
        (numbers.percent(0.00016), "0.02 %"),
        (numbers.percent(0.9999), "99 %"),
        (numbers.percent(1.0), "100 %"),
        (numbers.percent(0), "0 %"),
        (numbers.ratio(1.73, times="×"), "1.7 ×"),
        (numbers.ratio(1.314, times="×", fine=True), "1.31 ×"),
        (numbers.ratio(2.314, times="x", fine=True), "2.3 x"),
        (numbers.metric(0.6121), "0.612"),
        (numbers.metric(10.93), "10.9"),
        (numbers.metric(float("nan")), "nan"),
        (numbers.metric(0.000012), "1.2e-05"),
        (numbers.logged_metric(0.90231), "0.9023"),
        (numbers.short_digest("c40be1d2907a81ff"), "c40be1d2907a"),
        (numbers.short_digest(""), "-"),
        (numbers.spans([0, 1, 2, 7]), "0-2,7"),
        (numbers.spans([]), "-"),
        (numbers.rank_phrase([14]), "rank 14"),
        (numbers.rank_phrase([12, 13]), "ranks 12-13"),
        (numbers.shares([3, 3, 3, 3, 1, 1, 1, 1], times="×"), "3+3+3+3+1+1+1+1"),
        (numbers.shares([2] * 500, times="×"), "500×2"),
        (numbers.shares([2] * 8 + [1], times="x"), "8x2+1"),
        (numbers.generation(1, 5), "gen 5"),
        (numbers.generation(2, 5), "gen 2.5"),
    )
    assert [shown for shown, _ in written] == [expected for _, expected in written]


def test_a_clock_shows_the_readers_own_zone() -> None:
    instant = "2026-10-04T14:07:10.480Z"
    assert numbers.clock(instant, UTC) == "14:07:10"
    assert numbers.clock(instant, timezone(timedelta(hours=2))) == "16:07:10"
    assert numbers.clock("yesterday", UTC) == "?"


@given(SECONDS)
def test_a_duration_is_never_wider_than_seven_cells(seconds: float) -> None:
    assert len(numbers.duration(seconds)) <= 7


@given(SECONDS)
def test_an_age_is_never_wider_than_four_cells(seconds: float) -> None:
    assert len(numbers.age(seconds)) <= 4


@given(st.floats(min_value=0, max_value=1e14))
def test_a_rate_is_never_wider_than_five_cells(value: float) -> None:
    assert len(numbers.rate(value)) <= 5


@given(st.integers(min_value=0, max_value=10**20))
def test_a_size_is_never_wider_than_seven_cells(size: int) -> None:
    assert len(numbers.data_size(size)) <= 7


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_never_wider_than_six_cells(share: float) -> None:
    assert len(numbers.percent(share)) <= 6


UNIT_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """Read a duration back: the round trip of its units."""
    total = 0.0
    words = text.replace(",", "").split()
    if len(words) == 2 and words[1] in UNIT_S:
        return float(words[0]) * UNIT_S[words[1]]
    for word in words:
        total += float(word[:-1]) * UNIT_S[word[-1]]
    return total


def count_of(text: str) -> float:
    """Read a rate or a size back."""
    scales = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
    number = text.replace(",", "").removesuffix("B").strip()
    return float(number[:-1]) * scales[number[-1]] if number[-1] in scales else float(number)


READ_BACK: list[tuple[Callable[[float], str], Callable[[str], float], float]] = [
    (numbers.duration, seconds_of, 0.06),
    (numbers.elapsed, seconds_of, 0.5),
    (numbers.took, seconds_of, 0.5),
    (numbers.step_time, seconds_of, 0.06),
    (numbers.pause, seconds_of, 0.5),
]


@pytest.mark.parametrize(("form", "read", "share"), READ_BACK)
@given(seconds=st.floats(min_value=0.001, max_value=8e6))
def test_a_time_read_back_in_its_unit_is_the_value_but_for_its_last_digit(
    form: Callable[[float], str], read: Callable[[str], float], share: float, seconds: float
) -> None:
    assert abs(read(form(seconds)) - seconds) <= max(share * seconds, 0.051)


@given(st.floats(min_value=0.1, max_value=9e14))
def test_a_rate_read_back_is_the_value_to_three_digits(value: float) -> None:
    assert abs(count_of(numbers.rate(value)) - value) <= max(0.006 * value, 0.05)


@given(st.integers(min_value=0, max_value=10**20))
def test_a_size_read_back_is_the_value_to_three_digits(size: int) -> None:
    assert abs(count_of(numbers.data_size(size)) - size) <= 0.006 * size


@pytest.mark.parametrize(
    ("form", "read"),
    (
        (numbers.duration, seconds_of),
        (numbers.elapsed, seconds_of),
        (numbers.took, seconds_of),
        (numbers.step_time, seconds_of),
        (numbers.age, seconds_of),
        (numbers.rate, count_of),
    ),
)
@given(first=st.floats(min_value=0, max_value=8e6), second=st.floats(min_value=0, max_value=8e6))
def test_a_larger_value_never_reads_as_the_smaller_one(
    form: Callable[[float], str], read: Callable[[str], float], first: float, second: float
) -> None:
    low, high = sorted((first, second))
    assert read(form(low)) <= read(form(high))


@given(st.lists(st.integers(min_value=0, max_value=60)))
def test_spans_name_exactly_the_numbers(values: list[int]) -> None:
    text = numbers.spans(values)
    named: set[int] = set()
    for piece in [] if text == "-" else text.split(","):
        low, _, high = piece.partition("-")
        named.update(range(int(low), int(high or low) + 1))
    assert named == set(values)


@given(st.lists(st.integers(min_value=1, max_value=4), max_size=40))
def test_shares_add_up_to_the_logical_workers(counts: list[int]) -> None:
    total = 0
    text = numbers.shares(counts, times="x")
    for piece in [] if text == "-" else text.split("+"):
        times, _, share = piece.rpartition("x")
        total += int(times or 1) * int(share)
    assert total == sum(counts)
