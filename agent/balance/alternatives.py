"""The plans that a plan is not: what the obvious other one costs, and what would help. Pure."""

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from statistics import median_low

from easyscale.agent import words
from easyscale.agent.balance import proposals
from easyscale.agent.balance.book import Book, Row
from easyscale.agent.balance.planner import Layout, Place
from easyscale.agent.balance.trials import BROKE_PROMISE
from easyscale.kinds import short_kind
from easyscale.model import WorkerId
from easyscale.plan_facts import Alternative

#: Other plans that are shown at most.
MOST_ALTERNATIVES = 4
#: A slot this much slower than its kind is the first that a person would do without.
SLOWER = 1.2
#: and no noise, beyond so many times the spread of its steps; or the leader calls it slow.
NOISE = 4


def slow_slot(book: Book, told: frozenset[WorkerId]) -> Row | None:
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


def other_plans(book: Book, *, slow: Row | None) -> tuple[Alternative, ...]:
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
    what_these_could = _best(book) or _undone(book)
    candidates = (what_these_could, _without(book, slow), _more(book), _recovered(book, slow))
    found = [present, *(each for each in candidates if each is not None)]
    return tuple(found[:MOST_ALTERNATIVES])


def _alternative(book: Book, layout: Layout, *, name: str, reason: str) -> Alternative:
    counts = sorted((len(held) for held in layout.ranks.values()), reverse=True)
    return Alternative(
        name=name,
        per_slot=tuple(counts),
        busy_s=book.seconds(layout.step),
        against_now_share=float(Fraction(layout.step, book.work) - 1),
        reason=reason,
    )


def _best(book: Book) -> Alternative | None:
    """The least step of these slots, where the present plan is not it."""
    if not book.able:
        return None
    layout = book.lay_out([row.place for row in book.able])
    if layout.step >= book.work:
        return None
    return _alternative(book, layout, name="best of these slots", reason=_why_not(book, layout))


def _why_not(book: Book, layout: Layout) -> str:
    """Why the better plan is not the present one."""
    if not all(row.is_measured for row in book.rows if row.ranks):
        return "measured too little to know"
    counts = {worker: len(held) for worker, held in layout.ranks.items() if held}
    if any(dict(tried.counts) == counts for tried in book.tried):
        return BROKE_PROMISE
    if book.stays:
        return book.stays
    gain = (r.worker for r in book.able if counts.get(r.worker, 0) > len(r.ranks))
    waits = next((book.held_back[each] for each in gain if each in book.held_back), "")
    if waits:
        return waits
    joins = [row.worker for row in book.able if not row.is_member and row.worker in layout.ranks]
    if joins:
        return f"with {words.places(joins)}, once that earns the pause of a join"
    return "not yet worth a change, beyond noise"


def _undone(book: Book) -> Alternative | None:
    """The newest map of these slots that was taken back: what it would take by what is believed."""
    able = {row.worker: row for row in book.able}
    present = {row.worker: len(row.ranks) for row in book.rows if row.ranks}
    for tried in book.tried:
        held = dict(tried.counts)
        if held != present and held.keys() <= able.keys():
            step = max(count * able[worker].micro_step for worker, count in held.items())
            return Alternative(
                name="undone before",
                per_slot=tuple(sorted(held.values(), reverse=True)),
                busy_s=book.seconds(step),
                against_now_share=float(Fraction(step, book.work) - 1),
                reason=BROKE_PROMISE,
            )
    return None


def _without(book: Book, slow: Row | None) -> Alternative | None:
    """The plan without the slow slot, else without the one that sets the step."""
    used = [row for row in book.rows if row.ranks]
    least = slow or max(used, key=lambda row: (row.micro_step, row.busy))
    others = [row for row in book.able if row.worker != least.worker]
    if not others or not least.ranks:
        return None
    held = sum(_room(row, book) for row in others)
    if held >= book.logical_workers:
        reason = "the others hold all of it in the same time"
    else:
        reason = f"the others hold {held} of {book.logical_workers} in that time"
    layout = book.lay_out([row.place for row in others])
    return _alternative(book, layout, name=f"without {least.worker.place}", reason=reason)


def _room(row: Row, book: Book) -> int:
    each = book.work // row.micro_step
    return each if row.most is None else min(each, row.most)


def _more(book: Book) -> Alternative | None:
    """The best proposal."""
    usual = _usual(book)
    idle = [(kind, usual[kind]) for kind in book.spares if kind in usual]
    kinds = proposals.kinds_of([*((row.kind, row.micro_step) for row in book.able), *idle])
    offers = proposals.propose(kinds, book.logical_workers, present_step=book.work, top=1)
    offer = next(iter(offers), None)
    if offer is None:
        return None
    extra = [Place(WorkerId("", "", str(i), 0), usual[offer.kind]) for i in range(offer.slots)]
    what = short_kind(offer.kind)
    name = f"one more {what or 'slot'}"
    if offer.slots > 1:
        name = f"{offer.slots} more {what or 'slots'}"
    reason = f"proposed: {100 * (float(offer.score) - 1):.0f} % more for each"
    extra += [Place(WorkerId("", "", f"s{i}", 0), step) for i, (_, step) in enumerate(idle)]
    layout = book.lay_out([*(row.place for row in book.able), *extra])
    return _alternative(book, layout, name=name, reason=reason)


def _recovered(book: Book, slow: Row | None) -> Alternative | None:
    """The plan if the slow slot had the speed of its kind again."""
    if slow is None or not slow.may_hold:
        return None
    usual = _usual(book)[slow.kind]
    layout = book.lay_out(
        [
            replace(row.place, micro_step=usual) if row.worker == slow.worker else row.place
            for row in book.able
        ]
    )
    moved = len(layout.moved)
    reason = f"{words.count(moved, 'rank')} would move" if moved else "no move needed"
    return _alternative(book, layout, name=f"{slow.worker.place} recovers", reason=reason)
