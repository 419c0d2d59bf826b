"""Why a plan is this one: shares, waste and other plans, of a job's records or of slots to come.

Pure; the same sums serve slots that run and slots that somebody thinks of.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from statistics import median_low
from typing import TypedDict

import msgspec

from easyscale.agent import drafts, words
from easyscale.agent.balance import proposals
from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.balance.profile import NS_PER_S, micro_steps
from easyscale.agent.balance.sharing import NOT_SHARED, Sharing, arrange
from easyscale.agent.balance.waste import Load, unused
from easyscale.balance import FormerPlan
from easyscale.errors import UsageError
from easyscale.kinds import short_kind
from easyscale.model import Commit, LogicalRank, SlotRecord, WorkerId
from easyscale.plan_facts import Alternative, PlanFacts, PlannedSlot, PreviousPlan, Waste
from easyscale.rendezvous.view import JobView

#: Other plans that are shown at most.
MOST_ALTERNATIVES = 4
#: A slot this much slower than its kind is the first that a person would do without.
SLOWER = 1.2
#: and no noise, beyond so many times the spread of its steps; or the leader calls it slow.
NOISE = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A slot as the sums need it; times in units of which `Book.unit` make a second."""

    worker: WorkerId
    kind: str
    micro_step: int
    ranks: tuple[LogicalRank, ...] = ()
    spread: float | None = None
    most: int | None = None
    is_measured: bool = True
    data_wait_s: float | None = None

    @property
    def place(self) -> Place:
        return Place(self.worker, self.micro_step, self.ranks, self.most)

    @property
    def busy(self) -> int:
        return len(self.ranks) * self.micro_step


@dataclass(frozen=True, slots=True)
class Book:
    """All slots of a plan, and how many units of time make a second."""

    rows: tuple[Row, ...]
    unit: int
    logical_workers: int
    shared: Sharing = NOT_SHARED

    @property
    def work(self) -> int:
        """A step's work: how long the slowest slot computes."""
        return max(row.busy for row in self.rows)

    def seconds(self, units: int) -> float:
        return float(Fraction(units, self.unit))


# --- slots that do not exist -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KindOfSlot:
    """So many slots of one kind, as somebody thinks of them."""

    name: str
    slots: int
    micro_steps_per_s: Fraction


def of_kinds(kinds: Sequence[KindOfSlot], logical_workers: int) -> PlanFacts:
    """The best plan of slots that do not exist; no number is rounded on the way."""
    if not any(kind.slots for kind in kinds):
        raise UsageError("a plan needs at least one slot", hint="--slots fast:2@4.0,slow:1@1.0")
    unit = lcm(*(kind.micro_steps_per_s.numerator for kind in kinds))
    rows = tuple(
        Row(WorkerId(kind.name, "", str(i), 0), kind.name, int(unit / kind.micro_steps_per_s))
        for kind in kinds
        for i in range(kind.slots)
    )
    layout = plan([row.place for row in rows], logical_workers=logical_workers)
    book = Book(
        tuple(replace(row, ranks=layout.ranks.get(row.worker, ())) for row in rows),
        unit,
        logical_workers,
    )
    others = _others(book, slow=None)
    return PlanFacts(
        job=None,
        era=None,
        generation=None,
        planned_at=None,
        planned_at_step=None,
        logical_workers=logical_workers,
        step_seconds=book.seconds(layout.step),
        measured_step_seconds=None,
        **_sums(book),
        reason=f"{layout.reason}: least step time; among equals fewest slots",
        assignments=_assignments(book, None),
        alternatives=others,
    )


# --- a job -------------------------------------------------------------------------------------


def of_job(job: str, view: JobView, *, measured_s: float | None) -> PlanFacts:
    """The running plan of a job, by the speeds that its slots have now."""
    commit, spec = view.base, view.spec
    if commit is None or spec is None:
        raise UsageError(f"job {job!r} has no plan yet", hint=f"easyscale status {job}")
    slots = drafts.slots_of(view)
    book = _book(commit, slots, spec.logical_workers, Sharing.of(view, slots))
    is_measured = any(row.is_measured for row in book.rows)
    record = view.speed
    is_of_it = record is not None and record.generation == commit.generation
    former = record.former if record is not None and is_of_it else None
    slow = _slow(book, frozenset(each.worker for each in record.slow) if record else frozenset())
    predicted_s = commit.step_s[1] if commit.step_s else None
    if predicted_s is None and is_measured:
        predicted_s = book.seconds(book.work)
    return PlanFacts(
        job=job,
        era=commit.generation.era,
        generation=commit.generation.number,
        planned_at=record.planned_at if record is not None and is_of_it else None,
        planned_at_step=record.planned_at_step if record is not None and is_of_it else None,
        logical_workers=spec.logical_workers,
        step_seconds=predicted_s,
        measured_step_seconds=measured_s,
        **(_sums(book) if is_measured else _NOTHING),
        reason=commit.reason,
        assignments=_assignments(book, former.counts if former else None),
        moved_ranks=_moved(commit, former.counts if former else None),
        previous=_previous(former) if former else None,
        alternatives=_others(book, slow=slow) if is_measured else (),
        slower_since=slow.worker.place if slow is not None and slow.busy == book.work else None,
        occasion=f"now that {slow.worker.place} is slow" if slow is not None else "",
    )


def _book(commit: Commit, slots: Mapping[WorkerId, SlotRecord], n: int, shared: Sharing) -> Book:
    ranks = drafts.ranks_of(commit)
    usable = {w: slot for w, slot in slots.items() if w in ranks or slot.state == "standby"}
    missing = [SlotRecord(w.slot, "", w) for w in ranks if w not in usable]
    times = micro_steps((*usable.values(), *missing))
    rows = [
        Row(
            worker,
            usable[worker].kind if worker in usable else "",
            times[worker],
            ranks.get(worker, ()),
            spread=usable[worker].spread if worker in usable else None,
            is_measured=worker in usable and bool(usable[worker].micro_step_s),
            data_wait_s=usable[worker].data_wait_s if worker in usable else None,
        )
        for worker in sorted({*usable, *ranks})
    ]
    return Book(tuple(rows), NS_PER_S, n, shared)


def _slow(book: Book, told: frozenset[WorkerId]) -> Row | None:
    """The slot that costs the step most of those that are slower than their kind, beyond noise."""
    usual = _usual(book)
    slow = [
        row
        for row in book.rows
        if row.is_measured and row.micro_step >= SLOWER * usual[row.kind]
        if row.worker in told or row.micro_step >= (1 + NOISE * (row.spread or 0)) * usual[row.kind]
    ]
    return max(slow, key=lambda row: (row.busy, row.micro_step), default=None)


def _usual(book: Book) -> dict[str, int]:
    by_kind: dict[str, list[int]] = defaultdict(list)
    for row in book.rows:
        by_kind[row.kind].append(row.micro_step)
    return {kind: median_low(times) for kind, times in by_kind.items()}


def _previous(former: FormerPlan) -> PreviousPlan:
    return PreviousPlan(
        generation=former.generation.number,
        step_seconds=former.step_s,
        per_slot=tuple(sorted(filter(None, former.counts.values()), reverse=True)),
    )


def _moved(commit: Commit, before: Mapping[str, int] | None) -> tuple[int, ...]:
    """Ranks of the slots that hold more than they did; which ones exactly is not kept."""
    if before is None:
        return ()
    gained: list[int] = []
    for member in commit.members:
        more = len(member.ranks) - before.get(member.worker.place, 0)
        gained += member.ranks[-more:] if more > 0 else ()
    return tuple(sorted(gained))


# --- the same for both -------------------------------------------------------------------------


class _Sums(TypedDict):
    throughput_per_s: float | None
    capability_per_s: float | None
    waste: Waste | None


_NOTHING = _Sums(throughput_per_s=None, capability_per_s=None, waste=None)


def _sums(book: Book) -> _Sums:
    sums = unused(Load(row.kind, row.micro_step, len(row.ranks)) for row in book.rows)
    waste = Waste(
        idle_per_s=float(sums.idle * book.unit),
        padding_per_s=float(sums.padding * book.unit),
        share=float(sums.share),
    )
    return {
        "throughput_per_s": float(sums.throughput * book.unit),
        "capability_per_s": float(sums.capability * book.unit),
        "waste": waste,
    }


def _assignments(book: Book, before: Mapping[str, int] | None) -> tuple[PlannedSlot, ...]:
    return tuple(
        PlannedSlot(
            node=row.worker.node,
            slot=row.worker.slot,
            kind=row.kind,
            ranks=row.ranks,
            micro_steps_per_s=book.unit / row.micro_step if row.is_measured else None,
            spread_share=row.spread,
            busy_s=book.seconds(row.busy) if row.is_measured else None,
            previous_count=before.get(row.worker.place, 0) if before is not None else None,
            data_wait_s=row.data_wait_s,
        )
        for row in book.rows
    )


def _others(book: Book, *, slow: Row | None) -> tuple[Alternative, ...]:
    """What the obvious other plan would cost, and what would help."""
    counts = tuple(sorted((len(row.ranks) for row in book.rows if row.ranks), reverse=True))
    present = Alternative(
        name="this plan",
        per_slot=counts,
        busy_s=book.seconds(book.work),
        against_now_share=None,
        reason="kept",
        is_present=True,
    )
    candidates = (_best(book), _without(book, slow), _more(book), _recovered(book, slow))
    found = [present, *(each for each in candidates if each is not None)]
    return tuple(found[:MOST_ALTERNATIVES])


def _alternative(book: Book, rows: Iterable[Row], *, name: str, reason: str) -> Alternative:
    n = book.logical_workers
    places = arrange([row.place for row in rows], book.shared, logical_workers=n)
    layout = plan(places, logical_workers=n)
    shares = sorted((len(held) for held in layout.ranks.values()), reverse=True)
    return Alternative(
        name=name,
        per_slot=tuple(shares),
        busy_s=book.seconds(layout.step),
        against_now_share=float(Fraction(layout.step, book.work) - 1),
        reason=reason,
    )


def _best(book: Book) -> Alternative | None:
    """The least step of these slots, where the present plan is not it."""
    best = _alternative(book, book.rows, name="best of these slots", reason="")
    if best.against_now_share is None or best.against_now_share >= 0:
        return None
    known = all(row.is_measured for row in book.rows if row.ranks)
    why = "not yet worth a change" if known else "measured too little to know"
    return msgspec.structs.replace(best, reason=why)


def _without(book: Book, slow: Row | None) -> Alternative | None:
    """The plan without the slow slot, else without the one that sets the step."""
    used = [row for row in book.rows if row.ranks]
    least = slow or max(used, key=lambda row: (row.micro_step, row.busy))
    others = [row for row in book.rows if row.worker != least.worker]
    if not others or not least.ranks:
        return None
    held = sum(book.work // row.micro_step for row in others)
    if held >= book.logical_workers:
        reason = "the others hold all of it in the same time"
    else:
        reason = f"the others hold {held} of {book.logical_workers} in that time"
    name = f"without {least.worker.place}"
    return _alternative(book, others, name=name, reason=reason)


def _more(book: Book) -> Alternative | None:
    """The best proposal."""
    usual = _usual(book)
    kinds = proposals.kinds_of((row.kind, row.micro_step) for row in book.rows)
    offer = next(
        iter(proposals.propose(kinds, book.logical_workers, present_step=book.work, top=1)), None
    )
    if offer is None:
        return None
    extra = [
        Row(WorkerId("", "", str(i), 0), offer.kind, usual[offer.kind]) for i in range(offer.slots)
    ]
    what = short_kind(offer.kind)
    name = f"one more {what or 'slot'}"
    if offer.slots > 1:
        name = f"{offer.slots} more {what or 'slots'}"
    reason = f"proposed: {100 * (float(offer.score) - 1):.0f} % more for each"
    return _alternative(book, (*book.rows, *extra), name=name, reason=reason)


def _recovered(book: Book, slow: Row | None) -> Alternative | None:
    """The plan if the slow slot had the speed of its kind again."""
    if slow is None:
        return None
    usual = _usual(book)[slow.kind]
    rows = [
        replace(row, micro_step=usual) if row.worker == slow.worker else row for row in book.rows
    ]
    moved = len(plan([row.place for row in rows], logical_workers=book.logical_workers).moved)
    reason = f"{words.count(moved, 'rank')} would move" if moved else "no move needed"
    return _alternative(book, rows, name=f"{slow.worker.place} recovers", reason=reason)
