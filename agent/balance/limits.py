"""What memory allows each slot to hold: by what is free there, and by where it ran out. Pure.

What is free is an estimate: a plan may go beyond it rather than stop a job, by as little as it
can. What was learned from running out stands for as long as the job is known.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sized
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final

from easyscale.agent import words
from easyscale.agent.balance.sharing import device_of
from easyscale.model import Commit, SlotRecord, WorkerFailure, WorkerId
from easyscale.rendezvous.view import JobView

#: What Python, NumPy and torch call it.
_TYPES: Final = ("OutOfMemoryError", "MemoryError", "_ArrayMemoryError")
#: How torch's allocators, the system and the kernel say it. `can't allocate memory` is torch's word
#: on a CPU, in a RuntimeError like any other.
_WORDS: Final = ("out of memory", "can't allocate memory", "cannot allocate memory")
#: More partial sums than any job's ranks would make.
_MOST_DOUBLINGS: Final = 62
#: So many slots are named of those that hold too little.
_NAMED: Final = 4

Slots = Mapping[WorkerId, SlotRecord]
#: What a plan gives each worker.
Held = Mapping[WorkerId, Sized]


@dataclass(frozen=True, slots=True)
class Limits:
    """Ranks that workers can hold: by the free memory of their slots, and by where it ran out."""

    free: Mapping[WorkerId, int] = field(default_factory=dict)
    learned: Mapping[WorkerId, int] = field(default_factory=dict)

    def most(self, worker: WorkerId) -> int | None:
        known = [each[worker] for each in (self.free, self.learned) if worker in each]
        return min(known, default=None)


def limits_of(view: JobView, slots: Slots) -> Limits:
    """What is known of these slots, whoever is planned with."""
    ran_out = fits_after_running_out(view)
    return Limits(
        free=_by_free_memory(view, slots),
        learned={worker: ran_out[worker.place] for worker in slots if worker.place in ran_out},
    )


def bounds(view: JobView, slots: Slots, workers: Collection[WorkerId]) -> dict[WorkerId, int]:
    """The most ranks of each of these workers that something bounds; together they hold the job.

    Where they could not, what is estimated gives way first, by as few partial sums as can be; then
    what was learned. Whoever may not go that far asks for the `shortage`.
    """
    assert view.spec is not None
    n = view.spec.logical_workers
    known = limits_of(view, slots)
    caps = {w: min(n, known.learned.get(w, n)) for w in workers}
    free = {w: min(known.free[w], caps[w]) for w in workers if w in known.free}
    most = _stretched({w: free.get(w, caps[w]) for w in workers}, caps, n)
    if sum(most.values()) < n:
        most = stretched(most, n)
    return {w: count for w, count in most.items() if w in known.free or w in known.learned}


def stretched(most: Mapping[WorkerId, int], n: int) -> dict[WorkerId, int]:
    """Bounds that together hold all ranks, beyond those given by as little as can be."""
    return _stretched(most, dict.fromkeys(most, n), n)


def _stretched(
    most: Mapping[WorkerId, int], caps: Mapping[WorkerId, int], n: int
) -> dict[WorkerId, int]:
    """Let slots take one partial sum more, in turn, until together they hold all ranks."""
    given = dict(most)
    short = n - sum(given.values())
    turns = [(0, -given[w], w) for w in given if given[w] < caps[w]]
    heapify(turns)
    while short > 0 and turns:
        times, _, worker = heappop(turns)
        more = min(2 * given[worker] + 1, caps[worker])
        short -= more - given[worker]
        given[worker] = more
        if more < caps[worker]:
            heappush(turns, (times + 1, -more, worker))
    return given


# --- by what is free ----------------------------------------------------------------------------


def _by_free_memory(view: JobView, slots: Slots) -> dict[WorkerId, int]:
    """Ranks share the weights: twice as many take one partial sum of gradients more."""
    held = _held(view.base)
    shares = _shares(view, slots)
    partial = max((slot.partial_bytes or 0 for slot in slots.values()), default=0)
    found: dict[WorkerId, int] = {}
    for worker, slot in slots.items():
        if worker not in shares or not partial:
            continue
        free, count = shares[worker], held.get(worker, 0)
        if slot.partial_bytes is None:  # it has computed nothing yet, and needs all that others do
            free -= _needed(worker, slots, held, partial)
        doublings = count.bit_length() + max(0, free) // partial
        if doublings <= _MOST_DOUBLINGS:
            found[worker] = (1 << doublings) - 1
    return found


def _held(commit: Commit | None) -> dict[WorkerId, int]:
    return {m.worker: len(m.ranks) for m in commit.members} if commit is not None else {}


def _shares(view: JobView, slots: Slots) -> dict[WorkerId, int]:
    """What each slot may take of the memory that it has together with others.

    Whoever computes has measured it just now, a newcomer when it began.
    """
    at_work: dict[str, list[int]] = defaultdict(list)
    at_first: dict[str, list[int]] = defaultdict(list)
    pools = {worker: _pool(view, worker, slot) for worker, slot in slots.items()}
    for worker, slot in slots.items():
        if slot.free_bytes is not None:
            told = at_first if slot.partial_bytes is None else at_work
            told[pools[worker]].append(slot.free_bytes)
    sharers = Counter(pools[worker] for worker, slot in slots.items() if slot.state != "gone")
    return {
        worker: min(measured) // max(1, sharers[pool])
        for worker, pool in pools.items()
        if (measured := at_work[pool] or at_first[pool])
    }


def _pool(view: JobView, worker: WorkerId, slot: SlotRecord) -> str:
    """Whose memory it is: the host's for CPU slots, else the device's; a MIG slice has its own."""
    if worker.slot.startswith("cpu"):
        node = view.nodes.get(worker.node)
        return f"host {node.record.host or worker.node}" if node is not None else worker.node
    is_slice = " MIG " in slot.kind
    whole = worker.slot.count("/") > 1 if is_slice else True
    return (device_of(worker.place) if whole else None) or worker.place


def _needed(
    worker: WorkerId,
    slots: Slots,
    held: Mapping[WorkerId, int],
    partial: int,
) -> int:
    """What a worker of the job takes beside partial sums, by those on devices like this one."""
    device = worker.slot.partition(":")[0]
    taken = (
        slot.taken_bytes - held.get(other, 0).bit_length() * partial
        for other, slot in slots.items()
        if slot.taken_bytes is not None and other.slot.partition(":")[0] == device
    )
    return max(0, max(taken, default=0))


# --- by where it ran out -------------------------------------------------------------------------


def fits_after_running_out(view: JobView) -> dict[str, int]:
    """Place -> half of the fewest ranks with which a worker there ran out of memory."""
    return {place: len(view.gone[worker].ranks) // 2 for place, worker in _teachers(view).items()}


def teachers(view: JobView) -> tuple[WorkerId, ...]:
    """The ended workers from whom that was learned: their records must not be tidied away."""
    return tuple(_teachers(view).values())


def _teachers(view: JobView) -> dict[str, WorkerId]:
    found: dict[str, WorkerId] = {}
    for worker in view.gone_order:
        ending = view.gone[worker]
        # Before it held ranks it says nothing of how many fit: the restart budget judges that.
        if not ending.ranks or ending.failure is None or not is_out_of_memory(ending.failure):
            continue
        known = found.get(worker.place)
        if known is None or len(ending.ranks) <= len(view.gone[known].ranks):
            found[worker.place] = worker
    return found


def shortage(view: JobView, workers: Collection[WorkerId]) -> str:
    """Why the job does not fit on these workers' slots, by where memory ran out; else empty."""
    assert view.spec is not None
    n = view.spec.logical_workers
    ran_out = fits_after_running_out(view)
    if sum(min(n, ran_out.get(worker.place, n)) for worker in workers) >= n:
        return ""
    fits = {worker.place: ran_out[worker.place] for worker in sorted(workers)}
    return f"{words.count(n, 'logical worker')} do not fit: {_takes(fits)}; {REMEDY}"


#: What to do about it.
REMEDY: Final = "add a slot or make the batch smaller"


def _takes(fits: Mapping[str, int]) -> str:
    told = [f"{place} takes {count or 'none'}" for place, count in fits.items()]
    more = len(told) - _NAMED
    return ", ".join(told if more < 2 else [*told[:_NAMED], f"{more} more as little"])  # noqa: PLR2004


def beyond_learned(view: JobView, slots: Slots, held: Held) -> str:
    """Which slots a plan gives more than fits since they ran out, and more than they hold now."""
    known = limits_of(view, slots)
    told = [
        f"{worker.place} would be given {count} and takes {known.learned[worker] or 'none'}"
        " since it ran out of memory"
        for worker, count in _given(view, held)
        if count > known.learned.get(worker, count)
    ]
    return "; ".join([*told[:_NAMED], REMEDY]) if told else ""


def beyond_free(view: JobView, slots: Slots, held: Held) -> str:
    """Which slots a plan gives more than their free memory seems to hold, for want of others."""
    known = limits_of(view, slots)
    told = [
        f"{worker.place} has {count} and memory for {known.most(worker) or 'none'}, as it seems"
        for worker, count in _given(view, held)
        if (most := known.most(worker)) is not None and count > most
    ]
    return "; ".join(told[:_NAMED])


def _given(view: JobView, held: Held) -> list[tuple[WorkerId, int]]:
    """Whoever a plan gives more than it holds now."""
    present = _held(view.base)
    counts = {worker: len(ranks) for worker, ranks in sorted(held.items())}
    return [(w, count) for w, count in counts.items() if count > present.get(w, 0)]


def what_fits(failure: WorkerFailure | None, place: str, held: int) -> str:
    """Behind how a worker ended: that memory ran out, and what its slot is given from then on."""
    if failure is None or not is_out_of_memory(failure):
        return ""
    if not held:
        return f": out of memory on {place} before it held a rank"
    fits = held // 2
    planned = f"{place} takes at most {fits} from now on" if fits else f"none fits on {place}"
    return f": out of memory with {words.count(held, 'logical rank')}; {planned}"


def is_out_of_memory(failure: WorkerFailure) -> bool:
    said = failure.headline.lower()
    return failure.type.rpartition(".")[2] in _TYPES or any(each in said for each in _WORDS)


def last_to_run_out(view: JobView, places: Iterable[str]) -> WorkerId | None:
    """Of the workers from whom it was learned at these places, the last that ended."""
    found = _teachers(view)
    those = {found[place] for place in places if place in found}
    return next((worker for worker in reversed(view.gone_order) if worker in those), None)
