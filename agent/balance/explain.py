"""Why a plan is this one: shares, waste and other plans, of a job's records or of slots to come.

Pure. Of a job it counts with the slots, speeds and bounds that its leader plans with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, partial
from math import lcm
from typing import TypedDict

from easyscale.agent import drafts, gathering
from easyscale.agent.balance import doubting, swings, trials
from easyscale.agent.balance.alternatives import other_plans, slow_slot
from easyscale.agent.balance.book import Book, Row
from easyscale.agent.balance.planner import Place, plan
from easyscale.agent.balance.profile import NS_PER_S
from easyscale.agent.balance.spares import spares
from easyscale.agent.balance.waste import Load, unused
from easyscale.agent.memory import Memory
from easyscale.agent.settings import Balance
from easyscale.agent.wants import Wanted, wanted
from easyscale.balance import DoubtedSlot, FormerPlan, SpeedRecord, TriedPlan
from easyscale.errors import UsageError
from easyscale.model import (
    Assignment,
    Commit,
    LogicalRank,
    Mode,
    Occasion,
    Plan,
    SlotRecord,
    WorkerId,
)
from easyscale.plan_facts import (
    PlanFacts,
    PlannedSlot,
    PreviousPlan,
    SlotLeftOut,
    Waste,
)
from easyscale.rendezvous.view import JobView

#: While a plan stands to measure something, no better one is taken.
_MEASURES = {
    Occasion.PROFILE: "a profile measures the slots of this plan",
    Occasion.PROBE: "this plan measures how fast a slot is",
}


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
    lay_out = partial(plan, logical_workers=logical_workers)
    layout = lay_out([row.place for row in rows])
    book = Book(
        tuple(replace(row, ranks=layout.ranks.get(row.worker, ())) for row in rows),
        unit,
        logical_workers,
        lay_out,
    )
    others = other_plans(book, slow=None)
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


@dataclass(frozen=True, slots=True)
class _Limit:
    """What the job's leader goes by, of the settings that it was started with."""

    max_nodes: int | None = None


@dataclass(frozen=True)  # no slots: what is derived is computed once, when first asked for
class _Scene:
    """The slots of a job as its leader counts with them: which may take part, and how fast."""

    view: JobView
    base: Commit
    logical_workers: int
    record: SpeedRecord | None

    @cached_property
    def _limit(self) -> _Limit:
        return _Limit(self.record.max_nodes if self.record is not None else None)

    @cached_property
    def _ask(self) -> Wanted:
        return wanted(self.view, self.base, self._limit)

    @cached_property
    def _may_hold(self) -> frozenset[WorkerId]:
        fresh = (slot.worker for slot in self._ask.fresh)
        return frozenset((*self._ask.stay, *(worker for worker in fresh if worker is not None)))

    @cached_property
    def _position(self) -> int:
        return self.view.progress.position if self.view.progress is not None else -1

    @cached_property
    def slots(self) -> dict[WorkerId, SlotRecord]:
        return drafts.slots_of(self.view)

    def book(self) -> Book:
        present = drafts.ranks_of(self.base)
        doubts = self.record.doubts if self.record is not None else ()
        swinging = self.record.swings if self.record is not None else ()
        places = drafts.places_of(
            self.view,
            sorted(self._may_hold | {worker for worker, held in present.items() if held}),
            present=present,
            doubts=doubting.believed(doubts),
        )
        of_worker = {each.worker: each for each in doubts}
        return Book(
            tuple(self._row(place, of_worker.get(place.worker)) for place in places),
            NS_PER_S,
            self.logical_workers,
            partial(drafts.lay_out_on, self.view),
            tried=self._tried(),
            stays=_MEASURES.get(self.base.occasion, ""),
            held_back=swings.held_back(swinging, position=self._position),
            spares=[slot.kind for slot in spares(self.view)],
        )

    def _row(self, place: Place, doubt: DoubtedSlot | None) -> Row:
        slot = self.slots.get(place.worker)
        return Row(
            place.worker,
            slot.kind if slot is not None else "",
            place.micro_step,
            place.ranks,
            spread=slot.spread if slot is not None else None,
            most=place.most,
            is_measured=slot is not None and bool(slot.micro_step_s),
            data_wait_s=slot.data_wait_s if slot is not None else None,
            doubt=doubt,
            may_hold=place.worker in self._may_hold,
            is_member=place.worker in self.base.workers,
        )

    def _tried(self) -> Sequence[TriedPlan]:
        """Maps that are not tried again now, newest first."""
        if self.record is None:
            return ()
        memory = Memory(tried=self.record.tried, position=self._position)
        found = (
            trials.failed_before(self._plan_of(tried), memory, self.slots, Balance())
            for tried in reversed(memory.tried)
        )
        return [tried for tried in found if tried is not None]

    def _plan_of(self, tried: TriedPlan) -> Plan:
        """A plan with these shares; which ranks they are does not matter."""
        return Plan(
            generation=self.base.generation,
            mode=Mode.BOUNDARY,
            assignments=tuple(
                Assignment(worker, tuple(map(LogicalRank, range(count))))
                for worker, count in tried.counts
            ),
            main=None,
            reason=tried.reason,
        )

    def left_out(self) -> tuple[SlotLeftOut, ...]:
        """Slots that no plan may use now, with the reason; those that are gone are no slots."""
        leaving = [(self.slots.get(worker), "draining") for worker in self._ask.leave]
        leaving += [(self.slots.get(worker), "out of reach") for worker in self._ask.absent]
        others = [
            (slot, hindrance or "shall hold nothing")
            for slot, hindrance in gathering.outside(self.view, self._limit)
            if slot.worker not in self._may_hold and slot.state != "gone"
        ]
        return tuple(
            SlotLeftOut(node=slot.worker.node, slot=slot.slot, kind=slot.kind, reason=reason)
            for slot, reason in (*leaving, *others)
            if slot is not None and slot.worker is not None
        )


def of_job(job: str, view: JobView, *, measured_s: float | None) -> PlanFacts:
    """The running plan of a job, by the speeds that its slots have now."""
    commit, spec, record = view.base, view.spec, view.speed
    if commit is None or spec is None:
        raise UsageError(f"job {job!r} has no plan yet", hint=f"easyscale status {job}")
    scene = _Scene(view, commit, spec.logical_workers, record)
    book = scene.book()
    is_measured = any(row.is_measured for row in book.rows)
    is_of_it = record is not None and record.generation == commit.generation
    former = record.former if record is not None and is_of_it else None
    slow = slow_slot(
        book, frozenset(each.worker for each in record.slow) if record else frozenset()
    )
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
        alternatives=other_plans(book, slow=slow) if is_measured else (),
        slower_since=_slower_since(book, slow, measured_s=measured_s, predicted_s=predicted_s),
        occasion=f"now that {slow.worker.place} is slow" if slow is not None else "",
        left_out=scene.left_out(),
    )


def _slower_since(
    book: Book, slow: Row | None, *, measured_s: float | None, predicted_s: float | None
) -> str | None:
    """The slow slot, where its work is most of what a step takes longer than predicted.

    A plan that was made because it is slow counts with that; the rest is beside micro-steps.
    """
    if slow is None or slow.busy != book.work or measured_s is None or predicted_s is None:
        return None
    late_s = book.seconds(slow.busy) - predicted_s
    is_it = late_s > 0 and 2 * late_s >= measured_s - predicted_s
    return slow.worker.place if is_it else None


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
    sums = unused(Load(row.micro_step, len(row.ranks)) for row in book.rows)
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
            most_ranks=row.most,
            doubt_factor=row.doubt.factor if row.doubt is not None else None,
            doubt=row.doubt.reason if row.doubt is not None else "",
        )
        for row in book.rows
    )
