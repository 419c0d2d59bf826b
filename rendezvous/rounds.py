"""Rounds in which the nodes of a torchrun job meet: who is in, who waits, when one is complete.

    opened by whoever needs one --> joined by who is present --> complete --> the next one opened

Pure but for the forms of keys; presence is a leased key, so a dead node shows by itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote

import msgspec

from easyscale.model import Record, decode
from easyscale.rendezvous.store import View

ROOT = "/easyscale/torchrun/v1/"
#: From the second round on it is known who is expected: others have so long to come along.
SETTLE_S = 1.0


class Round(Record, frozen=True, kw_only=True):
    """Who meets; while it is open its nodes stand in the order in which they joined."""

    number: int
    nodes: tuple[str, ...]
    #: Nodes of the round before that lived when this one was opened; none: a first round.
    before: tuple[str, ...] = ()
    is_complete: bool = False


class Presence(Record, frozen=True, kw_only=True):
    """A node that takes part or wants to; gone with its lease."""

    host: str


@dataclass(frozen=True, slots=True)
class RunKeys:
    """The keys of one run; ids of torchrun are free text."""

    prefix: str

    @classmethod
    def of(cls, run_id: str) -> "RunKeys":
        return cls(f"{ROOT}{quote(run_id, safe='')}/")

    @property
    def round(self) -> str:
        return f"{self.prefix}round"

    @property
    def closed(self) -> str:
        return f"{self.prefix}closed"

    @property
    def nodes(self) -> str:
        return f"{self.prefix}nodes/"

    def node(self, node: str) -> str:
        return f"{self.nodes}{node}"

    @property
    def addresses(self) -> str:
        return f"{self.prefix}address/"

    def address(self, number: int) -> str:
        """Where the first node of a round serves the store of its workers."""
        return f"{self.addresses}{number}"


@dataclass(frozen=True, slots=True)
class RunView:
    """One run as the store held it at one revision."""

    revision: int = 0
    round: Round | None = None
    #: mod_revision of the round, 0 where it is absent.
    round_revision: int = 0
    present: frozenset[str] = frozenset()
    is_closed: bool = False
    addresses: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, keys: RunKeys) -> "RunView":
        """Read a view of the run's folder; raises FormatError."""
        entry = view.get(keys.round)
        return cls(
            revision=view.revision,
            round=None if entry is None else decode(entry.value, Round, source=entry.key),
            round_revision=0 if entry is None else entry.mod_revision,
            present=frozenset(one.key.removeprefix(keys.nodes) for one in view.under(keys.nodes)),
            is_closed=view.get(keys.closed) is not None,
            addresses={
                int(number): one.value
                for one in view.under(keys.addresses)
                if (number := one.key.removeprefix(keys.addresses)).isdecimal()
            },
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """How many nodes a round takes, and how long a first one waits for more than the least."""

    least: int
    most: int
    last_call_s: float


@dataclass(frozen=True, slots=True)
class Propose:
    """Write this round where the one that was seen stands."""

    round: Round


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before the view changes, or before so many seconds are over."""

    reason: str
    for_s: float | None = None


@dataclass(frozen=True, slots=True)
class Met:
    """The round is complete and we are in it."""

    round: Round
    rank: int


Step = Propose | Wait | Met | Literal["closed"]


def next_step(view: RunView, *, me: str, left: int, limits: Limits, enough_for_s: float) -> Step:
    """What a node does that wants into a round after number `left`.

    `enough_for_s` is how long this node has seen an open round with enough nodes in it.
    """
    if view.is_closed:
        return "closed"
    current = view.round
    if current is None:
        return Propose(Round(number=left + 1, nodes=(me,)))
    present = view.present | {me}
    if current.is_complete:
        return _after(current, present, me=me, left=left, limits=limits)
    joined = tuple(node for node in current.nodes if node in present)
    if me not in joined:
        if len(joined) >= limits.most:
            return Wait(f"round {current.number} has its {limits.most} nodes")
        joined = (*joined, me)
    number = max(current.number, left + 1)  # a store that was emptied counts anew, we do not
    if joined != current.nodes or number != current.number:
        return Propose(msgspec.structs.replace(current, nodes=joined, number=number))
    return _complete(current, present, limits=limits, enough_for_s=enough_for_s)


def _after(current: Round, present: frozenset[str], *, me: str, left: int, limits: Limits) -> Step:
    """The round is complete: with us, or the next one is due, or there is no place."""
    if me in current.nodes and current.number > left:
        return Met(current, current.nodes.index(me))
    alive = tuple(node for node in current.nodes if node in present)
    if me not in alive and len(alive) >= limits.most:
        return Wait(f"all {limits.most} nodes of round {current.number} live")
    return Propose(Round(number=max(current.number, left) + 1, nodes=(me,), before=alive))


def _complete(
    current: Round, present: frozenset[str], *, limits: Limits, enough_for_s: float
) -> Step:
    """Everybody who can be expected has joined, or the last call is over."""
    count = len(current.nodes)
    done = msgspec.structs.replace(current, nodes=_ranked(current), is_complete=True)
    if count == limits.most:
        return Propose(done)
    if count < limits.least:
        return Wait(f"{count} of at least {limits.least} nodes have joined")
    missing = [node for node in current.before if node in present and node not in current.nodes]
    if missing:
        # They live: their agents stop workers and come, or their leases end.
        return Wait(f"{len(missing)} of the round before have not come yet")
    wait_s = min(SETTLE_S, limits.last_call_s) if current.before else limits.last_call_s
    if enough_for_s < wait_s:
        return Wait("last call", wait_s - enough_for_s)
    return Propose(done)


def _ranked(current: Round) -> tuple[str, ...]:
    """Whoever was in the round before keeps its order; newcomers follow."""
    stayed = tuple(node for node in current.before if node in current.nodes)
    return (*stayed, *(node for node in current.nodes if node not in stayed))


def waiting(view: RunView, *, number: int, lost: int) -> int:
    """How many nodes ask those of round `number` to meet anew; `lost` of it are gone for good."""
    current = view.round
    if view.is_closed or current is None:
        return 0
    if current.number > number:
        return max(1, len(current.nodes))
    return lost
