"""The slots of a plan as sums about it need them: how fast, what they hold, what they may hold.

Pure. The same sums serve slots that run and slots that somebody thinks of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from easyscale.agent.balance.planner import Layout, Place
from easyscale.balance import DoubtedSlot, TriedPlan
from easyscale.model import LogicalRank, WorkerId


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
    doubt: DoubtedSlot | None = None
    #: It may be given ranks; one that is leaving computes what it still holds.
    may_hold: bool = True
    is_member: bool = True

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
    #: How this job's ranks would be laid on other places.
    lay_out: Callable[[Sequence[Place]], Layout]
    #: Maps that were undone and are not tried again now.
    tried: Sequence[TriedPlan] = ()
    #: Why the present plan stays even where another is better.
    stays: str = ""
    #: Why slots are given no more ranks for now.
    held_back: Mapping[WorkerId, str] = field(default_factory=dict)
    #: The kinds of slots without a worker, which the job could use at once.
    spares: Sequence[str] = ()

    @property
    def work(self) -> int:
        """A step's work: how long the slowest slot computes."""
        return max(row.busy for row in self.rows)

    @property
    def able(self) -> tuple[Row, ...]:
        """The slots that another plan could use."""
        return tuple(row for row in self.rows if row.may_hold)

    def seconds(self, units: int) -> float:
        return float(Fraction(units, self.unit))
