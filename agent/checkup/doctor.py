"""What a checkup makes of what it found: good, worth a look, or a fault that stops a job. Pure.

A check that is not good says in its cure what it means and what to do about it.
"""

from collections.abc import Sequence
from itertools import combinations

import msgspec

from easyscale.agent.checkup import doctor_nodes
from easyscale.agent.checkup.doctor_report import (
    Check,
    Level,
    by,
    listed,
    milliseconds,
    names_of,
    on,
)
from easyscale.agent.checkup.node_facts import NodeFacts
from easyscale.guide import Paragraph, see
from easyscale.model import FORMAT_VERSION

_SLOW_PUT_S = 0.1
_SLOW_TRIP_S = 0.02
#: Clocks reach screens and file names only, never a decision.
_CLOCK_S = 1.0
_MOST_PAIRS = 3


class StoreFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What was found of etcd. Without endpoints a launch serves its own."""

    endpoints: int = 0
    version: str = ""
    #: Why it cannot serve, or what is wrong with its version.
    fault: str = ""
    warning: str = ""
    hint: str = ""
    #: How long writes took: half of them, and the slowest.
    put_s: float | None = None
    slowest_put_s: float | None = None


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a script's own text says of itself."""

    name: str
    fault: str = ""
    calls_init: bool = False
    #: Stock ways to train by process that it names.
    by_process: tuple[str, ...] = ()


def judge(
    store: StoreFacts, nodes: Sequence[NodeFacts], script: ScriptFacts | None = None
) -> tuple[Check, ...]:
    """All checks, in the order in which they are shown."""
    checks = [
        _etcd(store),
        _clocks(nodes),
        _ports(nodes),
        _releases(nodes),
        doctor_nodes.devices(nodes),
        doctor_nodes.torch(nodes),
        doctor_nodes.cores(nodes),
        doctor_nodes.open_files(nodes),
        doctor_nodes.shared_memory(nodes),
        doctor_nodes.folder(nodes),
        _script(script),
    ]
    return tuple(check for check in checks if check is not None)


def _etcd(store: StoreFacts) -> Check:
    if store.fault:
        return Check(name="etcd", level=Level.FAULT, facts=store.fault, cure=store.hint)
    if store.endpoints == 0:
        facts = f"none is named: a launch serves its own, {store.version}, for one machine"
        return Check(name="etcd", level=Level.GOOD, facts=facts)
    many = "1 endpoint" if store.endpoints == 1 else f"{store.endpoints} endpoints"
    facts = f"{store.version} at {many}"
    if store.put_s is not None and store.slowest_put_s is not None:
        facts += (
            f", put {milliseconds(store.put_s)} p50, {milliseconds(store.slowest_put_s)} at worst"
        )
    if store.warning:
        return Check(name="etcd", level=Level.WARNING, facts=facts, cure=store.warning)
    if store.put_s is not None and store.put_s > _SLOW_PUT_S:
        cure = "every change of a job waits for it: a faster disk for etcd, or less beside it"
        return Check(name="etcd", level=Level.WARNING, facts=facts, cure=cure)
    return Check(name="etcd", level=Level.GOOD, facts=facts)


def _clocks(nodes: Sequence[NodeFacts]) -> Check | None:
    if len(nodes) == 1:
        return None
    skews = {
        (one.node, found.node): found.clock_s
        for one in nodes
        for found in one.reached or ()
        if found.clock_s is not None
    }
    if not skews:
        return Check(
            name="clocks", level=Level.WARNING, facts="not compared", cure="no node reached another"
        )
    (one, other), worst = max(skews.items(), key=lambda item: abs(item[1]))
    names = ", ".join(node.node for node in nodes)
    if abs(worst) <= _CLOCK_S:
        return Check(
            name="clocks", level=Level.GOOD, facts=f"{names} within {milliseconds(abs(worst))}"
        )
    ahead = "ahead of" if worst > 0 else "behind"
    return Check(
        name="clocks",
        level=Level.WARNING,
        facts=f"{other} is {abs(worst):.1f} s {ahead} {one}",
        nodes=(one, other),
        cure="times of events will not agree, decisions do not use them: chronyd or ntpd on both",
    )


def _ports(nodes: Sequence[NodeFacts]) -> Check:
    unable = [node for node in nodes if node.ports_fault]
    if unable:
        return Check(
            name="ports",
            level=Level.FAULT,
            facts=f"{on(unable, nodes)}no random port opens ({unable[0].ports_fault})",
            nodes=names_of(unable),
            cure="workers listen at random ports: let them",
        )
    barred = [(one, found) for one in nodes for found in one.reached or () if found.fault]
    if barred:
        pairs = [
            f"{one.node} does not reach {found.node} at {found.fault}" for one, found in barred
        ]
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        return Check(
            name="ports",
            level=Level.FAULT,
            facts=f"{pairs[0]}{more}",
            nodes=tuple(sorted({one.node for one, _ in barred})),
            cure="workers connect to one another at random ports: open 1024 to 65535 between nodes",
        )
    trips = _round_trips(nodes)
    open_ports = "20 random ports open"
    if not trips:
        return Check(name="ports", level=Level.GOOD, facts=open_ports)
    slowest = max(trips.values())
    pairs = [f"{one}, {other} {milliseconds(trip)}" for (one, other), trip in sorted(trips.items())]
    shown = (
        "; ".join(pairs) if len(pairs) <= _MOST_PAIRS else f"slowest pair {milliseconds(slowest)}"
    )
    if slowest > _SLOW_TRIP_S:
        cure = "each step waits for the slowest pair: nodes of one network"
        return Check(name="ports", level=Level.WARNING, facts=shown, cure=cure)
    return Check(name="ports", level=Level.GOOD, facts=f"{shown}; {open_ports}")


def _round_trips(nodes: Sequence[NodeFacts]) -> dict[tuple[str, str], float]:
    """The slower way of each pair."""
    ways = {
        (one.node, found.node): found.round_trip_s
        for one in nodes
        for found in one.reached or ()
        if found.round_trip_s is not None
    }
    trips = {}
    for one, other in combinations([node.node for node in nodes], 2):
        both = [ways[way] for way in ((one, other), (other, one)) if way in ways]
        if both:
            trips[one, other] = max(both)
    return trips


def _releases(nodes: Sequence[NodeFacts]) -> Check | None:
    formats = {node.format for node in nodes}
    if len({node.release for node in nodes}) == 1 and len(formats) == 1:
        return None
    facts = by(nodes, lambda node: node.release)
    if len(formats) == 1:
        return Check(
            name="easyscale",
            level=Level.WARNING,
            facts=facts,
            cure="they understand each other; pip install -U easyscale-torch for equal ones",
        )
    newest = max((*formats, FORMAT_VERSION))
    old = [node for node in nodes if node.format < newest]
    return Check(
        name="easyscale",
        level=Level.FAULT,
        facts=facts,
        nodes=names_of(old),
        cure=f"they do not read each other: pip install -U easyscale-torch on {listed(old)}",
    )


def _script(script: ScriptFacts | None) -> Check | None:
    if script is None:
        return None
    if script.fault:
        return Check(
            name="script", level=Level.FAULT, facts=f"{script.name}: {script.fault}",
            cure="give the path from here",
        )  # fmt: skip
    if not script.calls_init:
        return Check(
            name="script",
            level=Level.WARNING,
            facts=f"{script.name} does not call easyscale.init: plain mode, as torchrun",
            cure=f"eight lines make it elastic: {see(Paragraph.LAUNCH).partition('#')[0]}",
        )
    if script.by_process:
        return Check(
            name="script",
            level=Level.WARNING,
            facts=f"{script.name} calls easyscale.init, and names {', '.join(script.by_process)}",
            cure=f"refused if it is run: {see(Paragraph.PROCESS_GROUP)}",
        )
    return Check(
        name="script",
        level=Level.GOOD,
        facts=f"{script.name} calls easyscale.init: elastic mode",
    )
