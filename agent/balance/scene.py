"""What a plan for the running generation is made from: who may hold ranks, how fast each is. Pure.

A move must pay: shorten the step clearly, and earn its pause within the steps that count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt

from easyscale.agent import drafts
from easyscale.agent.balance import profile, swings
from easyscale.agent.balance.planner import Layout, Place, step_of
from easyscale.agent.memory import Memory
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.wants import Wanted
from easyscale.model import Commit, GenerationNumber, LogicalRank, Mode, Occasion, Plan, WorkerId
from easyscale.rendezvous.agreement import JobView

#: Steps over which noise may promise a gain of `move_noise` times its spread.
_CALM = 8


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

    def step_with(self, held: Mapping[WorkerId, tuple[LogicalRank, ...]]) -> int:
        """What a step takes where each holds that."""
        return self._step(held, self.times)

    @cached_property
    def step_now(self) -> int:
        """What a step takes with the ranks that those who stay hold."""
        return self.step_with(self.present)

    def lay_out(self, workers: Sequence[WorkerId]) -> Layout:
        return drafts.lay_out_on(self.view, self._places(workers))

    def _places(self, workers: Sequence[WorkerId]) -> list[Place]:
        places = drafts.places_of(
            self.view, workers, present=self.present, doubts=self.memory.doubts
        )
        waiting = swings.waiting(self.memory, self.settings.balance)
        slow = {worker: self.memory.swings[worker].slow_s for worker in waiting}
        return [_as_slow(p, slow[p.worker]) if p.worker in slow else p for p in places]

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


def _as_slow(place: Place, slow_s: float) -> Place:
    """It is given what it can do even when it is slow."""
    return replace(place, micro_step=max(place.micro_step, profile.nanoseconds(slow_s)))
