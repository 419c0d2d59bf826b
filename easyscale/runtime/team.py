"""Who completes this job's operations: one process alone, or the members of a generation together.

A step, an evaluation and the end of training are each a `Work`: logical ranks to go through here,
then one result that all hold. A team hands the ranks out and brings the result in.
"""

from collections.abc import Iterable
from typing import Protocol

from easyscale.model import GenerationNumber, Span
from easyscale.runtime import tree
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Wait
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.record import Record
from easyscale.runtime.training import Training


class Work(Protocol):
    """One operation as this process does its share of it."""

    kind: OperationKind
    #: Logical ranks still to be computed here, ascending; set by the team.
    todo: list[int]
    #: The result is held and has been put where the script finds it.
    is_complete: bool

    @property
    def held(self) -> tuple[Span, ...]:
        """What has been computed here, as subtrees."""

    def drop(self, spans: Iterable[Span]) -> None:
        """Forget what another process counts."""

    def finish_alone(self) -> None:
        """Make the result of what is held, which is everything."""

    def exchange(
        self, exchange: Exchange, operation: Operation, *, newest: GenerationNumber, wait: Wait
    ) -> Record:
        """Bring everybody's share together; raises GenerationBroken."""

    def adopt(self, record: Record) -> None:
        """Take the result, which others may have computed without this process."""


class Team(Protocol):
    """The seam between the user's loop and the layout of the job."""

    @property
    def is_main(self) -> bool:
        """Whether this process does the once-only work."""

    @property
    def is_launched(self) -> bool:
        """Whether others may hold a part of what is computed."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The logical ranks of this process as planned from the next operation on."""

    def enter(self, override: tuple[str, ...]) -> None:
        """Called once, by `register`: returns with the state that training goes on from."""

    def boundary(self) -> None:
        """The safe point before a step: changes of the layout and snapshots happen here."""

    def begin(self, work: Work) -> None:
        """Open an operation: hand it its ranks."""

    def next_rank(self, work: Work) -> int | None:
        """Give the next logical rank to compute, or None once the operation's result is held."""

    def show_awake(self) -> None:
        """Say that this process is getting on in the share of a rank, however long that takes."""

    def end(self) -> None:
        """Complete the last operation."""


class EndWork:
    """The end of training: nothing is computed, but everybody must have come that far."""

    kind = OperationKind.END

    def __init__(self, n: int, *, steering: bytes = b"") -> None:
        self._n = n
        self._steering = steering
        self._done: set[int] = set()
        self.todo: list[int] = []
        self.is_complete = False

    @property
    def held(self) -> tuple[Span, ...]:
        return tree.maximal_subtrees(self._done, self._n)

    def drop(self, spans: Iterable[Span]) -> None:
        self._done.difference_update(rank for span in spans for rank in range(span.lo, span.hi))

    def compute(self, rank: int) -> None:
        self._done.add(rank)

    def finish_alone(self) -> None:
        self.is_complete = True

    def exchange(
        self, exchange: Exchange, operation: Operation, *, newest: GenerationNumber, wait: Wait
    ) -> Record:
        return exchange.gather(operation, Note(newest=newest, steering=self._steering), wait=wait)

    def adopt(self, record: Record) -> None:  # noqa: ARG002 - everybody has come: that is all
        self.is_complete = True


class Alone:
    """One process without a launcher; it computes every logical rank."""

    is_launched = False
    is_main = True

    def __init__(self, training: Training) -> None:
        self._training = training
        self.ranks = tuple(range(training.settings.logical_workers))

    def enter(self, override: tuple[str, ...]) -> None:
        """Nothing to restore: the state is the one that the script built."""

    def boundary(self) -> None:
        """Nothing changes for a process alone."""

    def begin(self, work: Work) -> None:
        work.todo = list(self.ranks)

    def next_rank(self, work: Work) -> int | None:
        if work.todo:
            return work.todo.pop(0)
        work.finish_alone()
        self._training.count_operation()
        return None

    def show_awake(self) -> None:
        """Nobody watches a process alone."""

    def end(self) -> None:
        training = self._training
        training.count_operation(finished=True)
        training.say(f"finished step {training.place.step:,}, digest {training.capture().digest}")
