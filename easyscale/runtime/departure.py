"""How a worker leaves its group: not before somebody else holds the state that it holds.

For whom it waits, and what follows where nobody comes, stands with its reasons in
docs/decisions/0023-who-shall-leave-holds-the-state.md.
"""

from collections.abc import Callable, Iterable

from easyscale.model import Commit, GenerationNumber
from easyscale.runtime.group import Membership
from easyscale.runtime.neighbours import Knowledge, await_taker, await_writer, linger
from easyscale.runtime.session import Session
from easyscale.runtime.training import Training


class Departure:
    """The waits of one worker that leaves, or that a planned change leaves out."""

    def __init__(
        self, training: Training, session: Session, *, keep_boundary: Callable[[], bool]
    ) -> None:
        self._training = training
        self._session = session
        #: Writes the state at the boundary; False where it could not.
        self._keep_boundary = keep_boundary
        self._group: Membership | None = None
        #: The generation for which this worker left its group in order.
        self.left_for: GenerationNumber | None = None
        #: The state was to be kept here before that, and was not.
        self.has_failed = False

    def enter(self, commit: Commit) -> None:
        """From now on this is the group that would be left."""
        self._group = Membership(commit, self._session.worker, self._session.settings.token)
        self.has_failed = False

    # --- in order, at a boundary -----------------------------------------------------------------

    def hand_over(self, commit: Commit) -> None:
        """Stay until one that goes on has entered: alone with the state, it may end on the way."""
        assert self._group is not None
        if not await_taker(
            self._group,
            self._session,
            commit.workers,
            has_passed=lambda known: known.has_entered(commit.generation),
            superseded=lambda: self._is_asked_back(commit.generation),
        ):
            self._keep_boundary()

    def keep_state(self, pause: GenerationNumber) -> None:
        """Where the job stops one of its members writes a snapshot: main, as long as it lives."""
        assert self._group is not None
        commit = self._group.commit
        main = commit.process_rank(commit.main) if commit.main is not None else None
        if not await_writer(
            self._group,
            self._session,
            main or 0,
            position=self._training.place.position,
            has_kept=lambda known: known.has_left_behind(pause),
            superseded=lambda: self._is_asked_back(pause),
        ):
            self.has_failed |= not self._keep_boundary()

    def _is_asked_back(self, generation: GenerationNumber) -> bool:
        """Survivors of a loss go on, this worker among them, though it left for `generation`."""
        newest = self._session.newest
        return (
            newest is not None
            and newest.generation > generation
            and self._session.worker in newest.workers
        )

    def linger(self, needs_nothing: Callable[[Knowledge], bool]) -> None:
        """Answer peers until none of them can need this process, `linger_timeout` at most."""
        if self._group is not None:
            linger(self._group, self._session, needs_nothing)

    # --- out of a broken group -------------------------------------------------------------------

    def may_be_last(self, group: Commit, *, waited_s: float) -> bool:
        """Neither those that were to go on without this worker are heard, nor does anybody call it.

        If they are silent for good, its agent ends it before anybody may take over.
        """
        newest = self._session.newest
        if newest is None or newest.generation <= group.generation or newest.pauses:
            return False
        return waited_s >= self._session.settings.linger_timeout_s

    def is_left_behind(
        self, group: Commit, answers: Iterable[Knowledge], *, waited_s: float, has_boundary: bool
    ) -> bool:
        """Others go on by the planned change that is known here, or have stopped for it.

        Where nobody can tell, and no generation of survivors comes, the job stops all the same.
        """
        newest = self._session.newest
        if newest is None or newest.generation <= group.generation:
            return False
        if not newest.pauses:
            return any(known.has_entered(newest.generation) for known in answers)
        able = (known for known in answers if not known.has_failed)
        if any(known.has_left_behind(newest.generation) for known in able):
            return True
        return has_boundary and waited_s >= self._session.settings.linger_timeout_s
