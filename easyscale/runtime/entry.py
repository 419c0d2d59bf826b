"""The one handshake that enters every generation: from everybody's arrival to what each one does.

Pure: all members see the same arrivals and compute the same layout of the interrupted operation.
A plan's map never decides that operation; who holds a sum keeps it, only unheld ranks are dealt.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from easyscale.model import GenerationNumber, Mode, Record, Span, WorkerId
from easyscale.runtime import tree


class Arrival(Record, frozen=True, kw_only=True):
    """What a member brings to a generation; its held subtrees are frozen until the result."""

    worker: WorkerId
    has_state: bool
    #: Operations whose complete result it holds.
    position: int
    #: Subtrees of the operation at `position` of which it holds the sums.
    held: tuple[Span, ...] = ()
    #: The newest generation it has formed.
    formed: GenerationNumber = GenerationNumber(0, 0)
    #: It can serve the result of the operation before `position`.
    has_record: bool = False
    #: The newest commit it knows.
    newest: GenerationNumber = GenerationNumber(0, 0)
    #: Of its training state, where it stands at a step boundary; else empty.
    digest: str = ""
    #: A digest of what its script has registered: names, shapes, types.
    layout: str = ""

    def to_bytes(self) -> bytes:
        """Write the payload that travels in the entry operation."""
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class FetchCommit:
    """Somebody knows a newer commit: take it from there and start over with it."""

    source: int
    newest: GenerationNumber


@dataclass(frozen=True, slots=True)
class AwaitCommit:
    """Nobody here can go on: only a newer commit ends this generation."""

    reason: str


@dataclass(frozen=True, slots=True)
class Restore:
    """Nobody holds state, as a restoring generation expects: load it."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryLayout:
    """What everybody does before and in the operation at `position`, by process rank."""

    position: int
    #: The members one operation behind take the last record from this one.
    record_from: int | None
    record_to: tuple[int, ...]
    #: The members without state, or too far from the top, take all of it from this one.
    state_from: int
    state_to: tuple[int, ...]
    #: Members of `state_to` whose state differed from the one that counts.
    differing: tuple[int, ...]
    keep: tuple[tuple[Span, ...], ...]
    drop: tuple[tuple[Span, ...], ...]
    #: The logical ranks that each process computes for the operation.
    compute: tuple[tuple[int, ...], ...]
    #: The subtrees that each process sends in it.
    spans: tuple[tuple[Span, ...], ...]
    reason: str


Entry = EntryLayout | FetchCommit | AwaitCommit | Restore


def arrange(
    arrivals: Sequence[Arrival],
    *,
    owners: Sequence[int],
    generation: GenerationNumber,
    mode: Mode,
) -> Entry:
    """Lay out the entry into `generation` from all arrivals, by process rank.

    `owners` are the process ranks that the plan gives each logical rank to; it rules from the
    next step on, and here for the ranks that nobody holds.
    """
    newest = max(arrival.newest for arrival in arrivals)
    if newest > generation:
        source = next(rank for rank, one in enumerate(arrivals) if one.newest == newest)
        return FetchCommit(source, newest)
    holders = [rank for rank, arrival in enumerate(arrivals) if arrival.has_state]
    if not holders:
        if mode is Mode.RESTORE:
            return Restore(f"none of {len(arrivals)} members holds state")
        return AwaitCommit(f"none of {len(arrivals)} members of {generation} holds state")
    return _layout(arrivals, holders, owners)


def _layout(
    arrivals: Sequence[Arrival], holders: Sequence[int], owners: Sequence[int]
) -> EntryLayout:
    top = max(arrivals[rank].position for rank in holders)
    at_top = sorted(
        (rank for rank in holders if arrivals[rank].position == top),
        key=lambda rank: _seniority(arrivals[rank], rank),
    )
    differing = _differing(arrivals, at_top)
    true_holders = [rank for rank in at_top if rank not in differing]
    record_from = min((rank for rank in true_holders if arrivals[rank].has_record), default=None)
    record_to = tuple(
        rank for rank in holders if record_from is not None and arrivals[rank].position == top - 1
    )
    state_to = tuple(
        rank for rank in range(len(arrivals)) if rank not in true_holders and rank not in record_to
    )
    keep = _kept(arrivals, true_holders, len(owners))
    taken = {rank for spans in keep for span in spans for rank in range(span.lo, span.hi)}
    compute = tuple(
        tuple(rank for rank, owner in enumerate(owners) if owner == process and rank not in taken)
        for process in range(len(arrivals))
    )
    return EntryLayout(
        position=top,
        record_from=record_from if record_to else None,
        record_to=record_to,
        state_from=min(true_holders),
        state_to=state_to,
        differing=tuple(differing),
        keep=keep,
        drop=tuple(
            tuple(span for span in arrival.held if span not in kept)
            for arrival, kept in zip(arrivals, keep, strict=True)
        ),
        compute=compute,
        spans=tuple(
            tree.maximal_subtrees(
                [rank for span in kept for rank in range(span.lo, span.hi)] + list(fresh),
                len(owners),
            )
            for kept, fresh in zip(keep, compute, strict=True)
        ),
        reason=_words(top, len(taken), len(owners), record_to=record_to, state_to=state_to),
    )


def _seniority(arrival: Arrival, rank: int) -> tuple[int, int, int]:
    """Order by newest generation formed, then by process rank: a fenced one's sums come last."""
    return -arrival.formed.era, -arrival.formed.number, rank


def _differing(arrivals: Sequence[Arrival], at_top: Sequence[int]) -> list[int]:
    """Name the members at the top whose state is not that of the most senior one.

    Only code without deterministic kernels comes here: equal positions mean equal bits otherwise.
    """
    known = [rank for rank in at_top if arrivals[rank].digest]
    return sorted(rank for rank in known if arrivals[rank].digest != arrivals[known[0]].digest)


def _kept(
    arrivals: Sequence[Arrival], by_seniority: Sequence[int], n: int
) -> tuple[tuple[Span, ...], ...]:
    """Take each held subtree that is disjoint from all taken before."""
    taken: set[int] = set()
    keep: list[tuple[Span, ...]] = [()] * len(arrivals)
    for rank in by_seniority:
        for span in sorted(arrivals[rank].held):
            ranks = range(span.lo, span.hi)
            if tree.is_node(span, n) and taken.isdisjoint(ranks):
                taken.update(ranks)
                keep[rank] = (*keep[rank], span)
    return tuple(keep)


def _words(
    top: int, taken: int, n: int, *, record_to: Sequence[int], state_to: Sequence[int]
) -> str:
    said = [f"position {top}", f"{taken} of {n} logical ranks held"]
    if record_to:
        said.append(f"the last record goes to {list(record_to)}")
    if state_to:
        said.append(f"the state goes to {list(state_to)}")
    return ", ".join(said)
