"""The lines of a checkup as values, and how they name nodes and numbers; pure."""

from collections.abc import Callable, Sequence
from enum import StrEnum

import msgspec

from easyscale.agent.checkup.node_facts import NodeFacts

_MOST_NAMED = 5


class Level(StrEnum):
    GOOD = "good"
    WARNING = "warning"
    FAULT = "fault"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report; `cure` says what follows and what to do where it is not good."""

    name: str
    level: Level
    facts: str
    nodes: tuple[str, ...] = ()
    cure: str = ""


def by(nodes: Sequence[NodeFacts], shown: Callable[[NodeFacts], str]) -> str:
    """`a, b 2.13.0; c 2.12.1`: who shares a value stands together; one node alone has no name."""
    groups: dict[str, list[str]] = {}
    for node in nodes:
        groups.setdefault(shown(node), []).append(node.node)
    if len(nodes) == 1:
        return next(iter(groups))
    if len(groups) == 1:
        value = next(iter(groups))
        return f"{value} on all {len(nodes)} nodes"
    return "; ".join(f"{', '.join(names)} {value}" for value, names in groups.items())


def on(some: Sequence[NodeFacts], nodes: Sequence[NodeFacts]) -> str:
    return "" if len(nodes) == 1 else f"{listed(some)}: "


def on_list(some: Sequence[NodeFacts], nodes: Sequence[NodeFacts]) -> str:
    return "" if len(nodes) == 1 else f" on {listed(some)}"


def listed(nodes: Sequence[NodeFacts]) -> str:
    names = [node.node for node in nodes]
    return ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )


def names_of(nodes: Sequence[NodeFacts]) -> tuple[str, ...]:
    return tuple(node.node for node in nodes)


def milliseconds(seconds: float) -> str:
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 9.95 else f"{value:.0f} ms"  # noqa: PLR2004 - two digits


def size(size: int) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"
