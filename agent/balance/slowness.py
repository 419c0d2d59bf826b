"""Which slots are slow: clearly slower than their kind, for long enough, at a cost. Pure.

Clearly is beyond what noise explains, and the less noise explains the longer it lasts. Slots of one
machine that slow together are its weather and no news, but may be looked at again when emptied.
Slots of one device are held against others by what they take when they are alone there.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from statistics import median, median_low

from easyscale.agent import drafts
from easyscale.agent.balance import planner, profile
from easyscale.agent.balance.planner import Place, step_of
from easyscale.agent.balance.sharing import Sharing, device_of
from easyscale.agent.memory import Memory, Relapse, Slowness
from easyscale.agent.settings import Balance
from easyscale.model import Commit, SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView

#: Steps over which noise may pass for slowness up to `slow_noise` times its spread.
_WINDOW = 32
#: Held against nothing but its own past, a slot is watched so many times as long.
_ALONE = 10
#: Who was slow and well again is told again after twice the time, up to so many times the first;
#: forgiven when so many times the steps in which a change has to pay have passed.
_MOST_PATIENCE = 64
FORGIVEN_AFTER = 10


@dataclass(frozen=True)  # no slots: what is derived is computed once, when first asked for
class Speeds:
    """What the members of a generation measure, and what is usual among them."""

    measured: Mapping[WorkerId, SlotRecord]
    #: Those that compute alike: a kind, and how many share the device where that is not counted in.
    kinds: Mapping[WorkerId, str]
    #: Who computes now: what is known of an idle slot is of another time, and no measure of others.
    holding: Collection[WorkerId]
    #: What a rank takes there, as far as that is believed, and of late; alone on its device.
    taken: Mapping[WorkerId, float]
    late: Mapping[WorkerId, float]
    hosts: Mapping[str, str]
    best: Mapping[WorkerId, float]
    #: Who is believed to take longer than it says: a guess, and no measure of others either.
    doubted: Collection[WorkerId] = ()

    @cached_property
    def _of_kind(self) -> dict[str, list[WorkerId]]:
        found: dict[str, list[WorkerId]] = defaultdict(list)
        for worker in self.measured:
            found[self.kinds[worker]].append(worker)
        return found

    @cached_property
    def _of_machine(self) -> dict[tuple[str, str], list[WorkerId]]:
        found: dict[tuple[str, str], list[WorkerId]] = defaultdict(list)
        for worker in self.measured:
            found[self.hosts.get(worker.node, worker.node), self.kinds[worker]].append(worker)
        return found

    @cached_property
    def _usual_of_kind(self) -> dict[str, float]:
        return {kind: self._lower_median(workers) for kind, workers in self._of_kind.items()}

    @cached_property
    def _usual_of_machine(self) -> dict[tuple[str, str], float]:
        return {
            key: self._lower_median(workers)
            for key, workers in self._of_machine.items()
            if len(workers) > 1
        }

    @cached_property
    def _noise_of_kind(self) -> dict[str, float]:
        return {
            kind: median(self.measured[worker].spread or 0.0 for worker in workers)
            for kind, workers in self._of_kind.items()
        }

    def _lower_median(self, workers: list[WorkerId]) -> float:
        return median_low(self.taken[worker] for worker in self._at_work(workers))

    def _at_work(self, workers: list[WorkerId]) -> list[WorkerId]:
        at_work = [worker for worker in workers if worker in self.holding] or workers
        sure = [worker for worker in at_work if worker not in self.doubted]
        return sure if len(sure) > 1 else at_work

    def is_alone(self, worker: WorkerId) -> bool:
        return len(self._of_kind[self.kinds[worker]]) == 1

    def usual_s(self, worker: WorkerId) -> float:
        """The lower median of its kind, of two slots the faster one; alone, its own best."""
        if self.is_alone(worker):
            return self.best[worker]
        return self._usual_of_kind[self.kinds[worker]]

    def usual_there_s(self, worker: WorkerId) -> float:
        """The same, or what its machine makes of its kind just now, if that is slower."""
        host = self.hosts.get(worker.node, worker.node)
        of_machine = self._usual_of_machine.get((host, self.kinds[worker]), 0.0)
        return max(self.usual_s(worker), of_machine)

    def is_well_of_late(self, worker: WorkerId, share: float) -> bool:
        """In the last few steps it was as fast as others then: a median may be of other moments."""
        host, kind = self.hosts.get(worker.node, worker.node), self.kinds[worker]
        others = [self._of_kind[kind], self._of_machine[host, kind]]
        groups = [self._at_work(each) for each in others if len(each) > 1]
        usual_s = max(median_low(self.late[each] for each in group) for group in groups)
        return self.late[worker] < share * usual_s

    def usual_wait_s(self, worker: WorkerId) -> float:
        """How long slots of its kind wait for data as a rule."""
        if self.is_alone(worker):
            return 0.0
        others = self._of_kind[self.kinds[worker]]
        return median_low(self.measured[each].data_wait_s or 0.0 for each in others)

    def noise(self, worker: WorkerId) -> float:
        """How far its steps lie around their median, or those it is held against, as a share."""
        spread = self.measured[worker].spread
        return max(spread or 0.0, self._noise_of_kind[self.kinds[worker]])


def notice(view: JobView, memory: Memory, balance: Balance, now: float) -> Memory:
    """Hold every member's measurement against what is usual."""
    base = view.base
    if base is None:
        return memory
    slots = drafts.slots_of(view)
    shared = Sharing.of(view, slots)
    measured, kinds = _comparable(base, slots, shared, memory)
    doubts = memory.doubts
    slowed = {w: shared.slowed(w.place) for w in measured}
    believed = {w: it for w, slot in measured.items() if (it := profile.believed_s(slot, doubts))}
    taken = {w: it / slowed[w] for w, it in believed.items()}
    of_late = profile.micro_steps(profile.of_late(measured.values()), doubts)
    late = {w: it / slowed[w] for w, it in of_late.items()}
    # What it can do for certain: a lucky window is no measure of it.
    surely = {w: taken[w] * (1 + (slot.spread or 0.0)) for w, slot in measured.items()}
    best = {w: min(memory.best.get(w, each), each) for w, each in surely.items()}
    memory = replace(memory, best=best)
    hosts = {name: node.record.host for name, node in view.nodes.items()}
    holding = {member.worker for member in base.members if member.ranks}
    speeds = Speeds(measured, kinds, holding, taken, late, hosts, best, doubts.keys())
    watch = _Watch(view, base, memory, balance, now, speeds, slowed)
    slow = {worker: found for worker in measured if (found := watch.judge(worker)) is not None}
    told = {w: replace(s, reason=watch.reason(w, s)) for w, s in slow.items() if s.is_told}
    relapses = watch.relapses(well=[w for w, s in memory.slow.items() if s.is_told], still=told)
    return replace(memory, slow={**slow, **told}, relapses=relapses)


def _comparable(
    base: Commit, slots: Mapping[WorkerId, SlotRecord], shared: Sharing, memory: Memory
) -> tuple[dict[WorkerId, SlotRecord], dict[WorkerId, str]]:
    """Whose measurement can be held against others, and against which.

    What slots of one device take from each other may not have been measured: then only those with
    as many beside them are alike. One without any like it is not judged by when it was alone.
    """
    measured = {w: s for w in base.workers if (s := slots.get(w)) is not None and s.rank_s}
    ranks = drafts.ranks_of(base)
    at_work = Counter(device_of(worker.place) for worker, held in ranks.items() if held)
    kinds = {}
    for worker, slot in measured.items():
        device = device_of(worker.place)
        beside = at_work[device] + (not ranks[worker]) if device is not None else 1
        is_counted_in = beside == 1 or shared.knows(slot.kind)
        kinds[worker] = slot.kind if is_counted_in else f"{slot.kind}, {beside} on a device"
    sizes = Counter(kinds.values())
    lone = [w for w, kind in kinds.items() if kind != measured[w].kind and sizes[kind] == 1]
    for worker in lone:
        if worker not in memory.slow:
            del measured[worker], kinds[worker]
    return measured, kinds


@dataclass(frozen=True, slots=True)
class _Watch:
    """One look at all members."""

    view: JobView
    base: Commit
    memory: Memory
    balance: Balance
    now: float
    speeds: Speeds
    #: How many times as long a rank takes beside those at work on the same device.
    slowed: Mapping[WorkerId, float]

    def judge(self, worker: WorkerId) -> Slowness | None:
        memory, balance = self.memory, self.balance
        known, taken_s = memory.slow.get(worker), self.speeds.taken[worker]
        ratio = taken_s / self.speeds.usual_s(worker)
        present_s = taken_s * self.slowed[worker]
        found = replace(
            known or self._first(),
            micro_step_s=present_s,
            data_wait_s=self._data_wait_s(worker, excess_s=present_s * (1 - 1 / ratio)),
            ratio=ratio,
            usual="its best" if self.speeds.is_alone(worker) else "its kind",
        )
        well = 1 + (balance.slow_from - 1) / 2
        is_well = ratio < well
        if found.is_told:
            return self._until_well(found, worker) if is_well else replace(found, well=None)
        if is_well or (known is None and ratio < balance.slow_from):
            return None
        is_weather = not self.speeds.is_alone(worker) and self.speeds.is_well_of_late(worker, well)
        if is_weather or taken_s < balance.slow_from * self.speeds.usual_there_s(worker):
            step = self._step
            return replace(found, since=memory.position, since_s=self.now, since_step=step)
        return replace(found, is_told=self._is_news(worker, found))

    @property
    def _step(self) -> int:
        return self.view.progress.step if self.view.progress else 0

    def _data_wait_s(self, worker: WorkerId, *, excess_s: float) -> float:
        """How long it waits for data, if most of what it takes longer than its kind is that."""
        slot = self.speeds.measured[worker]
        wait_s = slot.data_wait_s or 0.0
        if worker in self.memory.starved:  # believed to wait as it did with more ranks
            present_s = self.speeds.taken[worker] * self.slowed[worker]
            wait_s = present_s - (slot.micro_step_s or 0.0)
        beyond_s = wait_s - self.speeds.usual_wait_s(worker)
        return wait_s if slot.data_wait_s is not None and beyond_s > excess_s / 2 else 0.0

    def _first(self) -> Slowness:
        return Slowness(
            since=self.memory.position,
            since_step=self._step,
            micro_step_s=0.0,
            ratio=1.0,
            usual="",
            is_told=False,
            since_s=self.now,
        )

    def _until_well(self, found: Slowness, worker: WorkerId) -> Slowness | None:
        """As fast as usual, and for as long as it takes to be called slow."""
        well = found.well or (self.memory.position, self.now)
        is_over = self._has_lasted(worker, *well)
        return None if is_over else replace(found, well=well)

    def _has_lasted(self, worker: WorkerId, position: int, at_s: float) -> bool:
        balance, relapse = self.balance, self.memory.relapses.get(worker)
        times = min(1 << (relapse.times if relapse is not None else 0), _MOST_PATIENCE)
        if self.speeds.is_alone(worker):
            times *= _ALONE
        lasted = self.memory.position - position >= balance.slow_steps * times
        return lasted and self.now - at_s >= balance.slow_least_s * times

    def _is_news(self, worker: WorkerId, found: Slowness) -> bool:
        if not self._has_lasted(worker, found.since, found.since_s):
            return False
        if not drafts.ranks_of(self.base)[worker]:
            return True  # it was emptied for it
        steps = self.memory.position - found.since
        noise = self.balance.slow_noise * self.speeds.noise(worker) * sqrt(_WINDOW / max(1, steps))
        least = 1 + max(self.balance.slow_from - 1, noise)
        taken_s = self.speeds.taken[worker]
        stands_out = taken_s >= least * self.speeds.usual_there_s(worker)
        return stands_out and self._costs(worker)

    def _costs(self, worker: WorkerId) -> bool:
        """The step would be clearly shorter if the slot were as fast as usual."""
        places = self._places()
        usual = profile.nanoseconds(self.speeds.usual_s(worker) * self.slowed[worker])
        well = [replace(p, micro_step=usual) if p.worker == worker else p for p in places]
        n = sum(len(place.ranks) for place in places)
        if not n:
            return False
        before, after = step_of(places), planner.least_step(well, n)
        return before - after >= self.balance.least_gain * before

    def _places(self) -> list[Place]:
        present = drafts.ranks_of(self.base)
        times = profile.micro_steps(drafts.slots_of(self.view).values(), self.memory.doubts)
        return [Place(w, times.get(w, 1), present[w]) for w in self.base.workers]

    def relapses(
        self, *, well: list[WorkerId], still: Mapping[WorkerId, Slowness]
    ) -> Mapping[WorkerId, Relapse]:
        """Who was told slow and is not any more, how often lately."""
        position = self.memory.position
        kept = {w: each for w, each in self.memory.relapses.items() if position < each.until}
        until = position + FORGIVEN_AFTER * self.balance.pays_within
        for worker in well:
            if worker not in still:
                times = kept[worker].times if worker in kept else 0
                kept[worker] = Relapse(times + 1, until)
        return kept

    def reason(self, worker: WorkerId, slow: Slowness) -> str:
        """How slow, and what else could be: `...; holds 1, without it 152 ms (4+4+4+4)`."""
        view, base = self.view, self.base
        speed = f"{_ms(slow.micro_step_s)}, {slow.ratio:.2g} × {slow.usual}"  # noqa: RUF001
        if slow.data_wait_s:
            speed += f", {_ms(slow.data_wait_s)} of it waiting for data"
        held = len(drafts.ranks_of(base)[worker])
        if not held:
            if slow.micro_step_s < profile.seconds(step_of(self._places())):
                return f"{speed}: emptied, the step is as short without it"
            return f"{speed}: emptied, a rank there would be what all others wait for"
        others = [each for each in base.workers if each != worker]
        if not others:
            return f"{speed}; no other slot computes"
        layout = drafts.lay_out(view, others, present=drafts.ranks_of(base))
        counts = planner.shares(len(ranks) for ranks in layout.ranks.values())
        return f"{speed}; holds {held}, without it {_ms(profile.seconds(layout.step))} ({counts})"


def _ms(seconds: float) -> str:
    milliseconds = seconds * 1000
    return f"{milliseconds:.3g} ms" if milliseconds < 1000 else f"{milliseconds:,.0f} ms"  # noqa: PLR2004
