"""What the members of a generation tell one another beside their collectives, and how long to wait.

Each listener answers with what its worker knows: the newest commit, where it is, what it waits for.
A wait is given up only for a reason: somebody is gone, or all wait and nothing moves.
"""

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

import msgspec

from easyscale.errors import GenerationBroken
from easyscale.model import Commit, GenerationNumber, WorkerId
from easyscale.runtime.group import Membership, Probe, probe
from easyscale.runtime.session import Session

#: How long a peer may take to say what it knows.
ASK_TIMEOUT_S = 0.5
#: Between two rounds of asking, at first and at most.
ASK_INTERVAL_S = 0.2
ASK_INTERVAL_MAX_S = 2.0
_LINGER_INTERVAL_S = 0.05


class Knowledge(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's answer to a peer that asks."""

    #: The newest commit it knows.
    commit: Commit | None = None
    position: int = 0
    #: The wait that its main thread is in, by name; empty while it computes.
    waits_for: str = ""
    #: The newest generation that it has entered.
    entered: GenerationNumber | None = None
    #: It has completed the end of training.
    finished: bool = False
    #: It left its group in order, for this generation.
    left_for: GenerationNumber | None = None
    #: It was to keep the state before it left, and its disk did not take it.
    has_failed: bool = False
    #: In the wait that it is in, a member gave no answer when it asked last.
    misses_somebody: bool = False

    def has_entered(self, generation: GenerationNumber) -> bool:
        """It goes on by this generation or a later one."""
        return self.finished or (self.entered is not None and self.entered >= generation)

    def has_left_behind(self, generation: GenerationNumber) -> bool:
        """It needs nothing of what was before this generation: it entered it, or left for it."""
        has_left = self.left_for is not None and self.left_for >= generation
        return has_left or self.has_entered(generation)


def read_knowledge(text: str) -> Knowledge | None:
    """Read a peer's answer; None when it is not of that form."""
    try:
        return msgspec.json.decode(text, type=Knowledge)
    except msgspec.DecodeError:
        return None


def ask_all(
    membership: Membership, session: Session, *, timeout_s: float = ASK_TIMEOUT_S
) -> tuple[Probe, dict[int, Knowledge]]:
    """Ask all other members what they know; newer commits are kept at once."""
    found = probe(membership, timeout_s=timeout_s)
    session.misses_somebody = bool(found.silent)
    known = {rank: read_knowledge(text) for rank, text in found.answers.items()}
    answers = {rank: knowledge for rank, knowledge in known.items() if knowledge is not None}
    offer_all(session, answers.values())
    return found, answers


def offer_all(session: Session, answers: Iterable[Knowledge]) -> None:
    """Keep the newest of the commits that peers told."""
    for knowledge in answers:
        if knowledge.commit is not None:
            session.offer(knowledge.commit, by_peer=True)


def linger(
    membership: Membership, session: Session, needs_nothing: Callable[[Knowledge], bool]
) -> None:
    """Wait, answering, until no peer can need this process: `linger_timeout` at most."""
    if len(membership.commit.members) == 1:
        return
    deadline_s = time.monotonic() + session.settings.linger_timeout_s
    while time.monotonic() < deadline_s:
        found, answers = ask_all(membership, session)
        if not found.silent and all(needs_nothing(known) for known in answers.values()):
            return
        time.sleep(_LINGER_INTERVAL_S)


def await_taker(
    membership: Membership,
    session: Session,
    takers: Collection[WorkerId],
    *,
    has_passed: Callable[[Knowledge], bool],
    superseded: Callable[[], bool],
) -> bool:
    """Wait until one of those that go on holds the state without this process; False if none does.

    Who answers may take its time, since it hands the state to others first; if it hangs in that,
    its agent ends it. Once none has answered for `linger_timeout`, nobody calls this process back
    either.
    """
    ranks = {rank for rank, worker in enumerate(membership.commit.workers) if worker in takers}
    heard_s = time.monotonic()
    while not superseded():
        _, answers = ask_all(membership, session)
        going_on = [known for rank, known in answers.items() if rank in ranks]
        if any(map(has_passed, going_on)):
            return True
        now = time.monotonic()
        if going_on:
            heard_s = now
            session.pulse.end_wait()
        elif now - heard_s >= session.settings.linger_timeout_s:
            return False
        time.sleep(_LINGER_INTERVAL_S)
    return True


def await_writer(
    membership: Membership,
    session: Session,
    writer: int,
    *,
    position: int,
    has_kept: Callable[[Knowledge], bool],
    superseded: Callable[[], bool],
) -> bool:
    """Wait until a peer has kept the state; False once it is this process that has to.

    `writer` does it, else the first in the order of the ranks that lives and can. It may take its
    time while it answers from this `position`, `linger_timeout` at most while it does not.
    """
    workers, me = membership.commit.workers, membership.rank
    before = {rank for rank in range(membership.size) if rank < me or rank == writer} - {me}
    heard_s = time.monotonic()
    while me != writer:
        found, answers = ask_all(membership, session)
        failed = {rank for rank, known in answers.items() if known.has_failed}
        if superseded() or any(
            has_kept(known) for rank, known in answers.items() if rank not in failed
        ):
            return True
        now = time.monotonic()
        able = {rank for rank, known in answers.items() if known.position >= position}
        if before & able - failed:
            heard_s = now
            session.pulse.end_wait()
        lost = {rank for rank, worker in enumerate(workers) if worker in session.lost}
        gone = before & {*found.refused, *lost, *failed}
        if before == gone or now - heard_s >= session.settings.linger_timeout_s:
            return False
        time.sleep(_LINGER_INTERVAL_S)
    return False


@dataclass(slots=True)
class Patience:
    """Decides, while a wait lasts, whether it may go on; polled by the waiting thread.

    The clock runs only while all others wait for the same, or do not answer: a member that writes
    a checkpoint for a minute breaks nobody.
    """

    membership: Membership
    session: Session
    name: str
    deadline_s: float
    #: Says of an answer that this member still has to come.
    is_coming: Callable[[Knowledge], bool]
    #: Ends the wait early: a commit that does not wait for a boundary.
    superseded: Callable[[], str | None]
    #: The first round of asking, where somebody may be gone from the beginning.
    first_ask_s: float | None = None
    _since_s: float = 0.0
    _asked_s: float = 0.0

    def __post_init__(self) -> None:
        self._since_s = self._asked_s = time.monotonic()

    def __call__(self) -> str | None:
        """Return why to give up, None to wait on; raises GenerationBroken with suspects."""
        if (reason := self.superseded()) is not None:
            return reason
        self._refuse_lost()
        now = time.monotonic()
        # All ask all, so rarely: who has ended is told sooner by the sockets and by the agent.
        usual_s = max(self.deadline_s / 4, ASK_INTERVAL_MAX_S)
        interval_s = usual_s if self.first_ask_s is None else self.first_ask_s
        if now - self._asked_s >= interval_s:
            self._asked_s, self.first_ask_s = now, None
            self._ask(now)
        return None

    def _refuse_lost(self) -> None:
        lost = self.session.lost
        if not lost:
            return
        workers = self.membership.commit.workers
        suspects = [rank for rank, worker in enumerate(workers) if worker in lost]
        if suspects:
            places = ", ".join(self.membership.place(rank) for rank in suspects)
            raise GenerationBroken(f"{self.name}: {places} has ended", suspects=suspects)

    def _ask(self, now: float) -> None:
        found, answers = ask_all(self.membership, self.session)
        if found.refused:
            raise GenerationBroken(f"{self.name}: nobody answers there", suspects=found.refused)
        if any(self.is_coming(knowledge) for knowledge in answers.values()) and not found.silent:
            self._since_s = now
        elif now - self._since_s >= self.deadline_s:
            waited = f"{now - self._since_s:.1f} s"
            if found.silent:
                raise GenerationBroken(f"{self.name}: silent for {waited}", suspects=found.silent)
            misses = any(knowledge.misses_somebody for knowledge in answers.values())
            if misses and now - self._since_s < 2 * self.deadline_s:
                return  # it gives up as well, and says whom; this member could not
            raise GenerationBroken(f"{self.name}: all wait for it, nothing moved for {waited}")
