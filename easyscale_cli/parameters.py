"""The forms that options take: what a word on the command line may be, and the value it becomes."""

from typing import NamedTuple

import click

from easyscale.errors import UsageError
from easyscale.model import LogicalRank


class NodeRange(NamedTuple):
    """`--nodes`: how many to start with and how many to allow."""

    least: int
    most: int | None


class SnapshotPeriod(NamedTuple):
    """`--snapshot-every`: exactly one of the two is set."""

    steps: int | None
    seconds: float | None


class NodeRangeType(click.ParamType[NodeRange]):
    """`N` or `MIN:MAX`."""

    name = "N|MIN:MAX"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> NodeRange:
        if isinstance(value, NodeRange):
            return value
        least, colon, most = str(value).partition(":")
        if not least.isdecimal() or (colon and not most.isdecimal()):
            self.fail(f"{value!r} is neither N nor MIN:MAX", param, ctx)
        result = NodeRange(int(least), int(most) if colon else int(least))
        if result.least < 1:
            self.fail(f"{value}: a job needs at least 1 node", param, ctx)
        if result.most is not None and result.least > result.most:
            message = f"--nnodes {value}: the minimum {least} is above the maximum {most}"
            raise UsageError(message, hint=f"--nnodes {most}:{least}")
        return result


class SnapshotPeriodType(click.ParamType[SnapshotPeriod]):
    """`N` steps or `Ns` seconds."""

    name = "N|SECONDSs"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> SnapshotPeriod:
        if isinstance(value, SnapshotPeriod):
            return value
        text = str(value)
        number = text.removesuffix("s")
        if text.isdecimal() and int(text) > 0:
            return SnapshotPeriod(int(text), None)
        if number != text and number.replace(".", "", 1).isdecimal() and float(number) > 0:
            return SnapshotPeriod(None, float(number))
        message = f"{value!r} is neither a number of steps nor seconds such as 300s"
        raise click.BadParameter(message, ctx=ctx, param=param)


class SecondsOrNever(click.ParamType[float | None]):
    """A number of seconds, or `never`."""

    name = "SECONDS|never"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | None:
        if value is None or value == "never":
            return None
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = -1.0
        if seconds < 0:
            self.fail(f"{value!r} is neither seconds nor 'never'", param, ctx)
        return seconds


def parse_layout(text: str | None, logical_workers: int) -> tuple[tuple[LogicalRank, ...], ...]:
    """Read `0,2|1,3`: slots are parted by bars; every logical rank stands exactly once."""
    if not text:
        return ()
    slots = [[word for word in part.split(",") if word] for part in text.split("|")]
    ranks = [word for words in slots for word in words]
    if sorted(ranks) != sorted(map(str, range(logical_workers))):
        message = f"--layout {text}: not each of the ranks 0 to {logical_workers - 1} just once"
        raise UsageError(message, hint=f"--layout '{_in_two(logical_workers)}'")
    return tuple(tuple(LogicalRank(int(word)) for word in words) for words in slots)


def _in_two(logical_workers: int) -> str:
    ranks = list(map(str, range(logical_workers)))
    half = (logical_workers + 1) // 2
    return "|".join(filter(None, (",".join(ranks[:half]), ",".join(ranks[half:]))))
