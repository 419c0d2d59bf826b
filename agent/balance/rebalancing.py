"""Ranks move between the members of a running job: for measured speeds, and to measure anew. Pure.

A move must pay: shorten the step clearly, and earn its pause within the steps that count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from easyscale.agent import drafts, gathering, words
from easyscale.agent.balance import profile, swings, trials
from easyscale.agent.balance.planner import Layout, Place, shares, step_of
from easyscale.agent.memory import Memory, Probe
from easyscale.agent.settings import Balance, LaunchSettings
from easyscale.agent.wants import Wanted
from easyscale.model import Commit, GenerationNumber, LogicalRank, Mode, Occasion, Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

#: A probe in vain makes the next one wait twice as long, up to so many times the first wait.
_MOST_PATIENCE = 64
#: A step shows what the slots say when it takes at least this share of it.
_SHOWN = 0.8
#: Steps over which noise may promise a gain of `move_noise` times its spread.
_CALM = 8
#: A slot that was emptied rests at least this long, in steps.
_LEAST_REST = 50


@dataclass(frozen=True)  # no slots: what is derived is computed once, when first asked for
class Scene:
    """What a plan for the members of the running generation is made from."""

    view: JobView
    base: Commit
    ask: Wanted
    memory: Memory
    settings: LaunchSettings
    now: float

    @cached_property
    def generation(self) -> GenerationNumber:
        assert self.view.head is not None
        return GenerationNumber(self.view.head.era, self.view.head.planned + 1)

    @cached_property
    def present(self) -> dict[WorkerId, tuple[LogicalRank, ...]]:
        return drafts.ranks_of(self.base)

    @cached_property
    def times(self) -> dict[WorkerId, int]:
        return profile.micro_steps(drafts.slots_of(self.view).values(), self.memory.doubts)

    @cached_property
    def step_now(self) -> int:
        """What a step takes with the ranks that those who stay hold."""
        return self._step(self.present, self.times)

    def lay_out(self, workers: Sequence[WorkerId]) -> Layout:
        return drafts.lay_out_on(self.view, self._places(workers))

    def _places(self, workers: Sequence[WorkerId]) -> list[Place]:
        places = drafts.places_of(
            self.view, workers, present=self.present, doubts=self.memory.doubts
        )
        waiting = swings.waiting(self.memory, self.settings.balance)
        return [_no_more(place) if place.worker in waiting else place for place in places]

    @cached_property
    def measured_step(self) -> int | None:
        """What a step takes by the clock, in the unit of `step_now`."""
        progress = self.view.progress
        rate = progress.steps_per_s if progress is not None else None
        return profile.nanoseconds(1 / rate) if rate else None

    def pays(self, before: int, after: int, *, pause: float) -> bool:
        """The step becomes shorter, and earns the pause within the steps that count."""
        progress = self.view.progress
        left = self.settings.balance.pays_within
        if progress is not None and progress.steps is not None:
            left = min(left, progress.steps - progress.step)
        return after < before and (before - after) * left >= pause

    @cached_property
    def fresh(self) -> tuple[WorkerId, ...]:
        return tuple(slot.worker for slot in self.ask.fresh if slot.worker is not None)

    @cached_property
    def holding(self) -> tuple[WorkerId, ...]:
        return tuple(worker for worker in self.ask.stay if self.present[worker])

    @cached_property
    def alone(self) -> Layout:
        """The best map of those who stay, without anybody new."""
        return self.lay_out(self.ask.stay)

    @cached_property
    def joined(self) -> Layout | None:
        """The best map with those who wait; None where it pays no joiner, or gives them nothing."""
        if not self.fresh:
            return None
        layout = self.lay_out([*self.ask.stay, *self.fresh])
        if not any(worker in layout.ranks for worker in self.fresh):
            return None
        pause = self.settings.balance.join_pause_s * profile.NS_PER_S
        return layout if self.pays(self._step_alone, layout.step, pause=pause) else None

    @cached_property
    def grows(self) -> bool:
        """More slots make the step shorter by their number alone, whatever each measures."""
        usual = [
            [replace(place, micro_step=profile.NS_PER_S) for place in self._places(workers)]
            for workers in ([*self.ask.stay, *self.fresh], self.ask.stay)
        ]
        after, before = (drafts.lay_out_on(self.view, places).step for places in usual)
        return after < before

    @cached_property
    def best(self) -> Layout:
        """The map to have now: of those who stay, or with some new ones that measure as better."""
        layout = self.joined
        if layout is None:
            return self.alone
        is_clear = self._step_alone - layout.step >= self._least_gain(layout) * self._step_alone
        return layout if is_clear else self.alone

    @cached_property
    def _step_alone(self) -> int:
        return min(self.step_now, self.alone.step)

    def _least_gain(self, layout: Layout) -> float:
        """More, the more has moved lately; who was not measured must take over from a slow slot.

        The map of a probe was never meant to stay: any better one takes its place.
        """
        balance, memory = self.settings.balance, self.memory
        if self.base.occasion is Occasion.PROBE and set(layout.ranks) <= set(self.ask.stay):
            return 0.0
        lately = [at for at in memory.moves if memory.position - at < balance.pays_within]
        least = balance.least_gain * (1 + len(lately))
        slots = drafts.slots_of(self.view)
        known = (slots[w] for w in layout.ranks if w in slots and not self.present.get(w))
        return least if profile.are_measured(known) else max(least, 1 - 1 / balance.slow_from)

    def is_worth_it(self, layout: Layout) -> bool:
        """It pays, and shortens the whole step clearly."""
        before, after = self.step_now, layout.step
        is_clear = self._gain(layout) >= self._least_gain(layout)
        pause = self.settings.balance.rebalance_steps * before
        return is_clear and self.pays(before, after, pause=pause)

    def holds_of_late(self, layout: Layout) -> bool:
        """The last few steps say so, too: they are the same moments for the slots of a machine."""
        late = profile.of_late(drafts.slots_of(self.view).values())
        times = profile.micro_steps(late, self.memory.doubts)
        # The layout knows how fast slots of one device are beside each other: of it, a ratio only.
        ratio = self._step(layout.ranks, times) / max(1, self._step(layout.ranks, self.times))
        return layout.step * ratio < self._step(self.present, times)

    def _step(
        self,
        held: Mapping[WorkerId, tuple[LogicalRank, ...]],
        times: Mapping[WorkerId, int],
    ) -> int:
        workers = (*self.ask.stay, *self.fresh)
        return step_of(Place(w, times.get(w, 1), held.get(w, ())) for w in workers)

    def is_certain(self, layout: Layout) -> bool:
        """The gain is more than noise, which explains the less the longer it promises the same."""
        if self.memory.promised is None:
            return False
        steps = max(1, self.memory.position - self.memory.promised[0])
        slots = drafts.slots_of(self.view)
        noise = profile.noise(slots[w] for w in self.ask.stay if w in slots and self.present[w])
        return self._gain(layout) >= self.settings.balance.move_noise * noise * sqrt(_CALM / steps)

    def _gain(self, layout: Layout) -> float:
        whole = max(self.step_now, self.measured_step or 0)
        return (self.step_now - layout.step) / whole if whole else 0.0

    def draft(
        self, layout: Layout, *, reason: str, occasion: Occasion, step: int | None = None
    ) -> Plan:
        """The members with other ranks, and whoever is new; who holds nothing is still known."""
        promised = step or layout.step
        new = sorted(worker for worker in layout.ranks if worker not in self.base.workers)
        return drafts.draft(
            layout,
            generation=self.generation,
            mode=Mode.BOUNDARY,
            order=(*self.base.workers, *new),
            main=self.base.main,
            reason=reason,
            occasion=occasion,
            step_s=(profile.seconds(self.step_now), profile.seconds(promised)),
        )


def _no_more(place: Place) -> Place:
    held = len(place.ranks)
    return replace(place, most=held if place.most is None else min(held, place.most))


def rebalance(scene: Scene) -> tuple[Plan | None, str]:
    """Move ranks between the members, if measurements promise enough and it was not tried."""
    view, ask, memory = scene.view, scene.ask, scene.memory
    balance = scene.settings.balance
    slots = drafts.slots_of(view)
    own = [slots[worker] for worker in (*ask.stay, *scene.fresh) if worker in slots]
    idle = _why_idle(scene) or swings.why(memory, balance)
    if not own or not profile.are_measured(slots[w] for w in scene.holding if w in slots):
        return None, idle
    layout = scene.best
    if not (ask.rebalance and layout.step < scene.step_now):
        if not scene.is_worth_it(layout):
            return None, idle
        if not scene.is_certain(layout):
            return None, "waits until what slots measure is more than noise"
    if memory.appeal is not None and not ask.rebalance:
        return None, "waits until steps show whether the map before is better"
    if memory.unproven is not None and memory.position - memory.unproven < balance.proof_steps:
        return None, "waits until steps show what the slots say"
    reason = profile.rebalance_reason(
        own,
        before={worker: len(ranks) for worker, ranks in scene.present.items()},
        after={worker: len(ranks) for worker, ranks in layout.ranks.items()},
    )
    drawn = scene.draft(layout, reason=reason, occasion=Occasion.REBALANCE)
    failed = trials.failed_before(drawn, memory, slots, balance)
    if failed is not None and not ask.rebalance:
        counts = shares(len(ranks) for ranks in layout.ranks.values())
        return None, f"{counts} {trials.BROKE_PROMISE}"
    return drawn, ""


def follow_promise(scene: Scene) -> Memory:
    """Since when another map of the same slots would be worth a move, if it is what they say."""
    memory = swings.follow(scene.view, scene.memory, scene.settings.balance)
    scene = replace(scene, memory=memory)
    slots = drafts.slots_of(scene.view)
    own = [slots[w] for w in scene.holding if w in slots]
    is_so = bool(own) and profile.are_measured(own) and scene.is_worth_it(scene.best)
    if not (is_so and scene.holds_of_late(scene.best)):
        return replace(memory, promised=None)
    return replace(memory, promised=memory.promised or (memory.position, scene.now))


def _why_idle(scene: Scene) -> str:
    """Why slots that could join do not, if there are any."""
    view, fresh = scene.view, scene.ask.fresh
    other = gathering.misfits(view, scene.settings)
    if other and view.spec is not None:
        kinds = words.listed(sorted({slot.kind for slot in other}))
        where = words.places(slot.worker for slot in other if slot.worker is not None)
        stays = "stays" if len(other) == 1 else "stay"
        return f"{where} {stays} standby: of kind {kinds}, the job is of kind {view.spec.kind}"
    if not fresh:
        return ""
    stays = "stays" if len(fresh) == 1 else "stay"
    return f"{words.count(len(fresh), 'slot')} {stays} standby: the step would not be shorter"


def follow_proof(scene: Scene) -> Memory:
    """A step cannot be shorter than the work of its slowest slot: then a measurement is old."""
    memory, measured = scene.memory, scene.measured_step
    if measured is None or measured >= _SHOWN * scene.step_now:
        return replace(memory, unproven=None)
    return memory if memory.unproven is not None else replace(memory, unproven=memory.position)


# --- slots that were emptied -------------------------------------------------------------------


def follow_probes(scene: Scene) -> Memory:
    """Know which slow slots hold nothing, and when to look at each of them again."""
    memory, balance = scene.memory, scene.settings.balance
    present, times = scene.present, scene.times
    step = max(1, scene.step_now)
    probes: dict[WorkerId, Probe] = {}
    for worker in scene.ask.stay:
        known = memory.probes.get(worker)
        if present[worker]:
            if known is not None and known.began is None:
                probes[worker] = replace(known, began=memory.position, began_s=scene.now)
            elif known is not None and _is_under_way(known, scene):
                probes[worker] = known
            elif known is not None and worker in memory.slow:
                probes[worker] = known  # it may be emptied again: the wait goes on doubling
        elif worker in memory.slow:
            beyond = max(0.0, times[worker] / step - 1)
            probes[worker] = _rest(known, memory, balance, cost=beyond)
    return replace(memory, probes=probes)


def _is_under_way(probe: Probe, scene: Scene) -> bool:
    """It has not had its steps, or they are too fresh for its agent to have passed them on."""
    balance = scene.settings.balance
    if probe.began is None:
        return False
    steps = scene.memory.position - probe.began
    return steps < balance.probe_steps or scene.now - probe.began_s < balance.probe_least_s


def _rest(known: Probe | None, memory: Memory, balance: Balance, *, cost: float) -> Probe:
    """The first wait is so long that probes cost their share of the time; then it doubles.

    ``cost`` is by what share a step is longer while that slot holds a rank.
    """
    if known is not None and known.began is None:
        return known
    first = max(_LEAST_REST, int(balance.probe_steps * cost / balance.probe_share))
    interval = first if known is None else min(2 * known.interval, _MOST_PATIENCE * first)
    return Probe(due=memory.position + interval, interval=interval)


def measures_a_probe(scene: Scene) -> bool:
    """A slot has just been given a rank to see how fast it is: nothing moves until it is known."""
    return any(
        bool(scene.present.get(worker)) and _is_under_way(known, scene)
        for worker, known in scene.memory.probes.items()
    )


def probe(scene: Scene) -> Plan | None:
    """Give one rank to a slot whose turn it is."""
    memory, present = scene.memory, scene.present
    due = [
        worker
        for worker, known in sorted(memory.probes.items())
        if known.began is None and memory.position >= known.due and not present.get(worker, (0,))
    ]
    if not due:
        return None
    slot, times = due[0], scene.times
    # Where nobody has more than one, somebody does without for these steps.
    giver = max(
        (worker for worker in scene.ask.stay if present[worker]),
        key=lambda worker: (len(present[worker]) > 1, len(present[worker]) * times[worker], worker),
    )
    given = present[giver][-1]
    ranks = {**present, giver: present[giver][:-1], slot: (given,)}
    layout = Layout({w: held for w, held in ranks.items() if held}, scene.step_now, (given,), "")
    reason = f"{slot.place} is given rank {given} for some steps, to see how fast it is now"
    return scene.draft(layout, reason=reason, occasion=Occasion.PROBE)
