"""Slots that share a device take speed from each other: which to use, and how fast they then are.

Pure. The interference factor of EasyScale (SC'23, section 3) for each number of slots at work, as
a profile has measured it; where none has, sharers are believed to leave each other alone.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from statistics import median, median_low

from easyscale.agent.balance import profile
from easyscale.agent.balance.planner import Place
from easyscale.balance import ProfileRecord
from easyscale.model import SlotRecord, WorkerId
from easyscale.rendezvous.view import JobView

#: What `WorkerId.place` has before its last slash where a device has several slots: `a/cuda:3`.
Device = str


def device_of(place: str) -> Device | None:
    """`a/cuda:3` of `a/cuda:3/0`; None for a slot that has its device for itself."""
    device, slash, _ = place.rpartition("/")
    return device if slash and ":" in device else None


def paces(record: ProfileRecord) -> dict[Device, dict[int, float]]:
    """Seconds of a micro-step on each shared device, by how many of its slots were at work."""
    found: dict[Device, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for point in record.points:
        at_work: dict[Device, list[float]] = defaultdict(list)
        for place, seconds in point.micro_steps.items():
            if (device := device_of(place)) is not None:
                at_work[device].append(seconds)
        for device, times in at_work.items():
            found[device][len(times)].append(median(times))
    return {
        device: {count: median(times) for count, times in sorted(by_count.items())}
        for device, by_count in sorted(found.items())
    }


def interference(record: ProfileRecord) -> dict[Device, float]:
    """How fast each slot of a device is with the most of them at work, against one alone."""
    return {
        device: by_count[1] / by_count[max(by_count)]
        for device, by_count in paces(record).items()
        if 1 in by_count and len(by_count) > 1
    }


@dataclass(frozen=True)  # no slots: what is derived is computed once, when first asked for
class Sharing:
    """What is known of devices that several slots share."""

    #: The kind of each slot that is known of, and what each of them holds now, by place.
    kinds: Mapping[str, str] = field(default_factory=dict)
    held: Mapping[str, int] = field(default_factory=dict)
    measured: frozenset[str] = frozenset()
    paces: Mapping[Device, Mapping[int, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: JobView, slots: Mapping[WorkerId, SlotRecord]) -> "Sharing":
        measured = paces(view.profile) if view.profile is not None else {}
        if not measured:
            return cls()
        base = view.base
        return cls(
            kinds={worker.place: slot.kind for worker, slot in slots.items()},
            held={m.worker.place: len(m.ranks) for m in base.members} if base is not None else {},
            measured=frozenset(w.place for w, slot in slots.items() if slot.rank_s),
            paces=measured,
        )

    @property
    def is_known(self) -> bool:
        return bool(self._by_kind)

    @cached_property
    def _by_kind(self) -> dict[str, dict[int, Fraction]]:
        """Kind -> slots at work -> how many times as long as with the fewest that were measured.

        Exact, of nanoseconds: no plan shall depend on how a quotient of floats was rounded.
        """
        found: dict[str, dict[int, list[Fraction]]] = defaultdict(lambda: defaultdict(list))
        kinds = {
            device: kind
            for place, kind in self.kinds.items()
            if (device := device_of(place)) is not None
        }
        for device, by_count in self.paces.items():
            if device in kinds and len(by_count) > 1:
                first = profile.nanoseconds(by_count[min(by_count)])
                for count, seconds in by_count.items():
                    ratio = Fraction(profile.nanoseconds(seconds), first)
                    found[kinds[device]][count].append(ratio)
        return {
            kind: {count: median(ratios) for count, ratios in sorted(by_count.items())}
            for kind, by_count in found.items()
        }

    @cached_property
    def _at_work(self) -> Counter[Device]:
        devices = (device_of(place) for place, ranks in self.held.items() if ranks)
        return Counter(device for device in devices if device is not None)

    @cached_property
    def _usually_at_work(self) -> dict[str, int]:
        """How many of a device's slots work where a kind was measured: what stands in was, too."""
        counts: dict[str, list[int]] = defaultdict(list)
        for place in self.measured:
            if (device := device_of(place)) is not None and self._at_work[device]:
                counts[self.kinds.get(place, "")].append(self._at_work[device])
        return {kind: median_low(values) for kind, values in counts.items()}

    def knows(self, kind: str) -> bool:
        """Whether what slots of one device take from each other was measured for this kind."""
        return kind in self._by_kind

    def slowed(self, where: str) -> float:
        """How many times as long a micro-step took there as with the fewest at work beside it."""
        by_count = self._by_kind.get(self.kinds.get(where, ""), {})
        return float(_ratio(by_count, self._measured_beside(where))) if device_of(where) else 1.0

    def micro_step(self, place: Place, at_work: int) -> int:
        """What a micro-step takes there when so many slots of its device are at work."""
        where = place.worker.place
        by_count = self._by_kind.get(self.kinds.get(where, ""), {})
        ratio = _ratio(by_count, at_work) / _ratio(by_count, self._measured_beside(where))
        return max(1, round(place.micro_step * ratio))

    def _measured_beside(self, where: str) -> int:
        """How many were at work when it was measured, itself among them."""
        at_work = self._at_work[device_of(where) or ""]
        if where not in self.measured:
            return self._usually_at_work.get(self.kinds.get(where, ""), 1)
        return at_work if self.held.get(where) else at_work + 1


NOT_SHARED = Sharing()


def _ratio(by_count: Mapping[int, Fraction], at_work: int) -> Fraction:
    """Of a number that was not measured: that of the next more, else of the most."""
    more = [count for count in by_count if count >= at_work]
    return by_count[min(more) if more else max(by_count)] if by_count else Fraction(1)


# --- which slots of each device ----------------------------------------------------------------


def arrange(
    places: Sequence[Place], shared: Sharing, *, logical_workers: int, use_all: bool = False
) -> list[Place]:
    """The places to plan with, each as fast as it is when all of them are at work.

    Of a device so many slots are left as together do most in the least step that can be reached.
    """
    if not shared.is_known:
        return list(places)
    alone = [place for place in places if device_of(place.worker.place) is None]
    by_device: dict[Device, list[Place]] = defaultdict(list)
    for place in places:
        if (device := device_of(place.worker.place)) is not None:
            by_device[device].append(place)
    choices = [_choices(by_device[device], shared) for device in sorted(by_device)]
    if use_all:
        return alone + [place for choice in choices for place in choice[-1]]
    step = _least_step(alone, choices, logical_workers)
    # Of choices that do as much in that step, the one with the fewest slots.
    return alone + [p for choice in choices for p in max(choice, key=lambda c: _room(c, step))]


def _choices(places: Sequence[Place], shared: Sharing) -> list[list[Place]]:
    """One slot of the device at work, two, and so on; those that hold most now come first."""
    ordered = sorted(places, key=lambda place: (-len(place.ranks), place.micro_step, place.worker))
    return [
        [replace(p, micro_step=shared.micro_step(p, count)) for p in ordered[:count]]
        for count in range(1, len(ordered) + 1)
    ]


def _room(places: Sequence[Place], step: int) -> int:
    each = ((step // place.micro_step, place.most) for place in places)
    return sum(ranks if most is None else min(ranks, most) for ranks, most in each)


def _least_step(
    alone: Sequence[Place], choices: Sequence[Sequence[Sequence[Place]]], n: int
) -> int:
    """By bisection: what fits into a step only grows with it."""

    def fits(step: int) -> bool:
        most = sum(max(_room(choice, step) for choice in device) for device in choices)
        return _room(alone, step) + most >= n

    slowest = [place.micro_step for device in choices for places in device for place in places]
    low, high = 0, max([*slowest, *(place.micro_step for place in alone)]) * n
    if not fits(high):
        return high  # memory bounds it: the planner says so
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
