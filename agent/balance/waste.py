"""What a plan leaves unused of its slots, in the two terms of the paper (EasyScale, section 3).

Idle: a slot is done before the slowest, since whole ranks fit its speed badly. Padding: room for
ranks that do not exist, where a slot holds fewer than its equals.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Load:
    """One slot: its kind, how long a micro-step takes there, and how many ranks it holds."""

    kind: str
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
    """Where the capability of these slots goes; some of them must hold something."""
    slots = Counter(loads)
    step = max(load.micro_step * load.count for load in slots)
    most: dict[str, int] = defaultdict(int)
    for load in slots:
        most[load.kind] = max(most[load.kind], load.count)
    capability = padding = Fraction(0)
    for load, number in slots.items():
        speed = Fraction(1, load.micro_step)
        capability += number * speed
        # A slow slot of a kind has not the room that its fellows have.
        room = min(Fraction(most[load.kind], step), speed)
        padding += number * (room - Fraction(load.count, step))
    throughput = Fraction(sum(load.count * number for load, number in slots.items()), step)
    return Unused(capability, throughput, capability - throughput - padding, padding)
