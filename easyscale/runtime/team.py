"""Who completes this job's operations: one process alone, or the members of a generation together.

A step, an evaluation and the end of training are each a `Work`: logical ranks to go through here,
then one result that all hold. A team hands the ranks out and brings the result in.
"""

from collections.abc import Iterable
from typing import Protocol

from easyscale.model import Span
from easyscale.runtime.training import Training


class Work(Protocol):
    """One operation as this process does its share of it."""

    #: Logical ranks still to be computed here, ascending.
    todo: list[int]

    def finish_alone(self) -> None:
        """Make the result of what is held, which is everything."""

    @property
    def held(self) -> tuple[Span, ...]:
        """What has been computed here, as subtrees."""

    def drop(self, spans: Iterable[Span]) -> None:
        """Forget what another process counts."""


class Team(Protocol):
    """The seam between the user's loop and the layout of the job."""

    @property
    def is_main(self) -> bool:
        """Whether this process does the once-only work."""

    @property
    def launched(self) -> bool:
        """Whether others may hold a part of what is computed."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The logical ranks of this process as planned from the next operation on."""

    def enter(self, override: Iterable[str]) -> None:
        """Called once, by `register`: returns with the state that training goes on from."""

    def boundary(self) -> None:
        """The safe point before a step: changes of the layout and snapshots happen here."""

    def next_rank(self, work: Work) -> int | None:
        """Give the next logical rank to compute, or None once the operation's result is held."""

    def end(self) -> None:
        """Complete the last operation."""


class Alone:
    """One process without a launcher; it computes every logical rank."""

    launched = False
    is_main = True

    def __init__(self, training: Training) -> None:
        self._training = training
        self.ranks = tuple(range(training.settings.logical_workers))

    def enter(self, override: Iterable[str]) -> None:
        """Nothing to restore: the state is the one that the script built."""

    def boundary(self) -> None:
        """Nothing changes for a process alone."""

    def next_rank(self, work: Work) -> int | None:
        if work.todo:
            return work.todo.pop(0)
        work.finish_alone()
        self._training.count_operation()
        return None

    def end(self) -> None:
        self._training.count_operation(finished=True)
