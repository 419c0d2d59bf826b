"""The forms that options take: what a word on the command line may be, and the value it becomes."""

from math import isnan
from typing import Any, NamedTuple

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


class NumberRange(click.FloatRange):
    """A number within bounds; one that is none lies within all of them, as comparisons go."""

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's own
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


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
        if isnan(seconds) or seconds < 0:
            self.fail(f"{value!r} is neither seconds nor 'never'", param, ctx)
        return seconds


class RendezvousConf(NamedTuple):
    """`--rdzv-conf`: what of it means something here."""

    join_timeout_s: float = 600.0
    last_call_s: float = 3.0


#: Keys of torchrun's backends that steer what is not there: its store, its heartbeats, its polls.
_IDLE_CONF = frozenset(
    {
        "is_host", "store_type", "read_timeout", "close_timeout", "heartbeat_timeout",
        "keep_alive_interval", "keep_alive_max_attempt", "timeout",
    }
)  # fmt: skip
_CONF_OPTIONS = {"cacert": "--etcd-ca", "ssl_cert": "--etcd-cert", "ssl_cert_key": "--etcd-key"}
_CONF_OPTIONS |= {"ca_cert": "--etcd-ca", "cert": "--etcd-cert", "key": "--etcd-key"}


def read_rendezvous_conf(text: str) -> tuple[RendezvousConf, tuple[str, ...]]:
    """Read `k=v,k=v`; gives the lines for keys without effect, raises UsageError for unknown."""
    known = {"join_timeout": "join_timeout_s", "last_call_timeout": "last_call_s"}
    conf = RendezvousConf()
    notes = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"--rdzv-conf {text}: {word} is not KEY=VALUE")
        if key in known:
            if not value.replace(".", "", 1).isdecimal():
                raise UsageError(f"--rdzv-conf {word}: {value} is not a number of seconds")
            conf = conf._replace(**{known[key]: float(value)})
        elif key in _CONF_OPTIONS:
            raise UsageError(
                f"--rdzv-conf {word}: certificates have options of their own",
                hint=f"{_CONF_OPTIONS[key]} {value}",
            )
        elif key in _IDLE_CONF:
            notes.append(f"--rdzv-conf {key} has no effect here")
        else:
            raise UsageError(
                f"--rdzv-conf {word}: {key} is no key", hint="--rdzv-conf join_timeout=600"
            )
    return conf, tuple(notes)


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
