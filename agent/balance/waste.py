"""What a plan leaves unused of its slots, in the two terms of the paper (EasyScale, section 3).

Idle: a slot is done before the slowest, since whole ranks fit its speed badly. Padding: room for
ranks that do not exist, where a slot holds fewer than another that is no faster.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Load:
    """One slot: how long a micro-step takes there, and how many ranks it holds."""

    micro_step: int
    count: int


@dataclass(frozen=True, slots=True)
class Unused:
    """All in micro-steps per unit of time; throughput, idle and padding make up capability."""

    capability: Fraction
    throughput: Fraction
    idle: Fraction
    padding: Fraction

    @property
    def share(self) -> Fraction:
        return (self.idle + self.padding) / self.capability


def unused(loads: Iterable[Load]) -> Unused:
    """Where the capability of these slots goes; some of them must hold something.

    The paper counts by kind; here slots of one speed are one kind, whatever they are called, so
    that a kind that is split in two wastes what it wasted as one.
    """
    slots = Counter(loads)
    step = max(load.micro_step * load.count for load in slots)
    capability = padding = Fraction(0)
    most = 0
    for load in sorted(slots, key=lambda load: (-load.micro_step, -load.count)):
        number = slots[load]
        most = max(most, load.count)
        capability += Fraction(number, load.micro_step)
        padding += Fraction(number * (most - load.count), step)
    throughput = Fraction(sum(load.count * number for load, number in slots.items()), step)
    return Unused(capability, throughput, capability - throughput - padding, padding)
