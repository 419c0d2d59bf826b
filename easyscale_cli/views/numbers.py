"""Every number of the screens: value in, text of a stated width out; pure.

A value that is not known is `-`, one that is not yet measured `?`; a number is shown whole or not
at all. Where a digit would be gained by rounding up a promise (100 %), it is not.
"""

# ruff: noqa: PLR2004 - the bounds are where rounding would add a digit; names would hide that

import math
from collections.abc import Sequence
from datetime import datetime, tzinfo

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
_UNKNOWN = "-"


def count(value: int | None) -> str:
    """A step or another number of things: `6,412`."""
    return _UNKNOWN if value is None else f"{value:,}"


def counted(value: int, noun: str, plural: str = "") -> str:
    """`1 slot`, `4 slots`."""
    return f"{value:,} {noun if value == 1 else plural or noun + 's'}"


def pause(seconds: float | None) -> str:
    """A pause, always in seconds with three decimals: `0.083 s`."""
    return _UNKNOWN if seconds is None else f"{seconds:.3f} s"


def recovery(seconds: float) -> str:
    """How long a recovery took: a pause, shortened once its milliseconds say nothing."""
    return pause(seconds) if seconds < 9.9995 else elapsed(seconds)


def pause_total(seconds: float) -> str:
    """The sum of pauses: `0.131 s`, `5.2 s`, `1m 10s`."""
    return pause(seconds) if seconds < 0.9995 else duration(seconds)


def duration(seconds: float) -> str:
    """At most 7 cells: `38 ms`, `4.1 s`, `18 s`, `8m 05s`, `14h 36m`, `1d 18h`."""
    if seconds < 0.9995:
        milliseconds = seconds * 1_000
        return f"{milliseconds:.1f} ms" if milliseconds < 9.95 else f"{milliseconds:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < MINUTE_S - 0.5:
        return f"{seconds:.0f} s"
    return _two_units(round(seconds))


def elapsed(seconds: float) -> str:
    """How long a wait or a silence has lasted: `4.0 s`, `21.7 s`, then as a duration."""
    return f"{seconds:.1f} s" if seconds < MINUTE_S - 0.05 else _two_units(round(seconds))


def took(seconds: float) -> str:
    """How long our own act took: `0.04 s`, `1.31 s`, `10.4 s`, then as a duration."""
    return f"{seconds:.2f} s" if seconds < 9.995 else elapsed(seconds)


def _two_units(seconds: int) -> str:
    if seconds < HOUR_S:
        return f"{seconds // MINUTE_S}m {seconds % MINUTE_S:02d}s"
    if seconds < DAY_S:
        return f"{seconds // HOUR_S}h {seconds % HOUR_S // MINUTE_S:02d}m"
    days = seconds // DAY_S
    return f"{days}d {seconds % DAY_S // HOUR_S:02d}h" if days < 100 else f"{days:,}d"


def age(seconds: float | None) -> str:
    """At most 4 cells, the largest unit alone: `53 s`, `6m`, `11h`, `2d`."""
    if seconds is None:
        return _UNKNOWN
    whole = int(max(seconds, 0))
    if whole < MINUTE_S:
        return f"{whole} s"
    if whole < HOUR_S:
        return f"{whole // MINUTE_S}m"
    if whole < DAY_S:
        return f"{whole // HOUR_S}h"
    return f"{min(whole // DAY_S, 999)}d"


def step_time(seconds: float | None) -> str:
    """The length of a step or micro-step, 3 digits: `135 ms`, `1.11 s`, `12.3 s`."""
    if seconds is None:
        return _UNKNOWN
    unit = _step_unit(seconds)
    return f"{_in_unit(seconds, unit)} {unit}"


def step_times(before_s: float, after_s: float, *, arrow: str) -> str:
    """Two step times in one unit: `156 -> 118 ms`, `1.20 -> 0.86 s`."""
    unit = _step_unit(max(before_s, after_s))
    return f"{_in_unit(before_s, unit)} {arrow} {_in_unit(after_s, unit)} {unit}"


def milliseconds(seconds: float | None) -> str:
    """A cell under a header that names the unit: `131`, `0.4`."""
    return _UNKNOWN if seconds is None else _in_unit(seconds, "ms")


def _step_unit(seconds: float) -> str:
    return "ms" if seconds < 0.9995 else "s"


def _in_unit(seconds: float, unit: str) -> str:
    if unit == "ms":
        value = seconds * 1_000
        if value == 0 or value >= 9.95:
            return f"{value:,.0f}"
        return f"{value:.1f}"
    return f"{seconds:.2f}" if seconds < 9.995 else f"{seconds:,.1f}"


def clock(instant: str, zone: tzinfo | None) -> str:
    """An RFC 3339 instant as a person's clock shows it: `14:07:10`; None is the local zone."""
    try:
        return datetime.fromisoformat(instant).astimezone(zone).strftime("%H:%M:%S")
    except ValueError:
        return "?"


def rate(value: float | None) -> str:
    """Something per second: `0.90`, `7.4`, `26.3`, `3,789`, `461k`, `1.23M`."""
    if value is None or not math.isfinite(value):
        return "?"
    if value < 0.0995:
        return f"{value:.3f}"
    if value < 0.995:
        return f"{value:.2f}"
    if value < 99.95:
        return f"{value:.1f}"
    if value < 9_999.5:
        return f"{value:,.0f}"
    return _three_digits(value, ("", "k", "M", "G", "T"))


def data_size(size: int | None) -> str:
    """Bytes in decimal units, 3 digits: `98.1 MB`, `13.2 GB`, `0 B`."""
    if size is None:
        return _UNKNOWN
    if size < 1_000:
        return f"{size} B"
    text = _three_digits(size, ("", "k", "M", "G", "T", "P", "E"))
    return f"{text[:-1]} {text[-1]}B"


def _three_digits(value: float, units: Sequence[str]) -> str:
    place = 0
    # A value that would round up to 1,000 of a unit is 1 of the next one.
    while value >= 999.5 and place + 1 < len(units):
        value /= 1_000
        place += 1
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}{units[place]}"


def gigabytes_pair(used: int | None, total: int | None) -> str:
    """Used and whole memory under a header that names the unit: `41/80`."""
    if used is None or total is None:
        return _UNKNOWN
    return f"{used / 1e9:.0f}/{total / 1e9:.0f}"


def percent(share: float | None) -> str:
    """A share of 1, at most 5 cells up to 99: `64 %`, `0.02 %`; 100 only when it is all."""
    if share is None:
        return _UNKNOWN
    value = share * 100
    if value == 0 or value >= 0.995:
        whole = round(value)
        return f"{min(whole, 99) if value < 100 else whole} %"
    return f"{value:.2f} %"


def ratio(value: float | None, *, times: str, fine: bool = False) -> str:
    """A slot against its kind: `1.7 x`; in a list of slow slots `1.31 x` between 1.1 and 1.5."""
    if value is None:
        return "?"
    return f"{value:.{2 if fine and 1.1 < value < 1.5 else 1}f} {times}"


def metric(value: float | None) -> str:
    """A loss in a view: `0.612`, `2.303`, `10.9`, `nan`."""
    if value is None:
        return _UNKNOWN
    size = abs(value)
    if not math.isfinite(value) or size >= 1e5 or 0 < size < 1e-3:
        return f"{value:.3g}"
    decimals = 3 if size < 9.9995 else 1 if size < 999.95 else 0
    return f"{value:.{decimals}f}"


def logged_metric(value: float) -> str:
    """A loss in a plain line, 4 significant digits: `0.9023`."""
    return f"{value:.4g}"


def short_digest(digest: str) -> str:
    """The first 12 digits, never cut with a mark."""
    return digest[:12] or _UNKNOWN


def spans(numbers: Sequence[int]) -> str:
    """Numbers in order with neighbours joined: `0-2,7`."""
    pieces: list[str] = []
    ordered = sorted(set(numbers))
    begin = 0
    for index in range(1, len(ordered) + 1):
        if index == len(ordered) or ordered[index] != ordered[index - 1] + 1:
            low, high = ordered[begin], ordered[index - 1]
            pieces.append(str(low) if low == high else f"{low}-{high}")
            begin = index
    return ",".join(pieces) or _UNKNOWN


def rank_phrase(ranks: Sequence[int]) -> str:
    """`rank 14`, `ranks 0-2`."""
    return f"rank{'s' if len(set(ranks)) > 1 else ''} {spans(ranks)}"


def shares(counts: Sequence[int], *, times: str, longest: int = 8) -> str:
    """Logical workers per slot: `3+3+1+1`, or run by run where there are many: `500x2`."""
    if len(counts) <= longest:
        return "+".join(map(str, counts)) or _UNKNOWN
    runs: list[list[int]] = []
    for number in counts:
        if runs and runs[-1][1] == number:
            runs[-1][0] += 1
        else:
            runs.append([1, number])
    return "+".join(
        f"{length}{times}{number}" if length > 1 else str(number) for length, number in runs
    )


def generation(era: int, number: int) -> str:
    """`gen 5`, and `gen 2.5` from the second era on."""
    return f"gen {number}" if era <= 1 else f"gen {era}.{number}"
