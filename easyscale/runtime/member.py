"""A worker's state machine: what it does about a commit, a break, a boundary. Pure.

WAITING -> FORMING -> RUNNING -> FINISHED
^  |       |  |
|  v       v  +--> LEAVING (drain, pause)
+- BROKEN <+
A commit that excludes a worker with state -> FENCED.
"""

from dataclasses import dataclass
from typing import assert_never

from easyscale.model import Commit, GenerationNumber, Mode, WorkerId

# --- states -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """In `register`: registered, holds no state, waits for a commit that names it."""


@dataclass(frozen=True, slots=True)
class Forming:
    """Enters the generation of `commit`, together with all of its members."""

    commit: Commit
    has_state: bool


@dataclass(frozen=True, slots=True)
class Running:
    commit: Commit


@dataclass(frozen=True, slots=True)
class Broken:
    """A wait of this generation ended without its result: computes nothing until a newer one."""

    commit: Commit
    has_state: bool


@dataclass(frozen=True, slots=True)
class Leaving:
    """Left the group in order; lingers until the others need it no more."""

    commit: Commit
    pauses: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of training is complete; the script's tail runs, the listener still answers."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer generation goes on without this worker: it writes nothing more."""

    commit: Commit


State = Waiting | Forming | Running | Broken | Leaving | Finished | Fenced

# --- events -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitKnown:
    """The newest commit that reached this worker, by agent or peer."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class Entered:
    """The handshake of the generation that was being formed is over; state is held."""


@dataclass(frozen=True, slots=True)
class WaitBroke:
    """Forming, an exchange or a transfer ended without its result."""

    suspects: tuple[WorkerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class AtBoundary:
    """The safe point before a step; `headers` are what all members said in the last operation."""

    headers: tuple[GenerationNumber, ...]
    newest: Commit | None


@dataclass(frozen=True, slots=True)
class EndCompleted:
    """The last operation is complete."""


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """Others have passed the boundary to this planned commit, or nobody will: it is due here."""

    commit: Commit


Event = CommitKnown | Entered | WaitBroke | AtBoundary | EndCompleted | LeftBehind

# --- actions ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Form:
    """Leave whatever runs and form this generation."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class SwitchMap:
    """Same processes in the same order: the group is kept, the next step uses the new map."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class SayEntered:
    commit: Commit


@dataclass(frozen=True, slots=True)
class SayBroken:
    commit: Commit
    suspects: tuple[WorkerId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """End in order; `pauses`: the job stops here, so main writes a snapshot first."""

    commit: Commit
    pauses: bool


@dataclass(frozen=True, slots=True)
class Fence:
    commit: Commit


@dataclass(frozen=True, slots=True)
class SayFinished:
    commit: Commit


Action = Form | SwitchMap | SayEntered | SayBroken | Leave | Fence | SayFinished


@dataclass(frozen=True, slots=True)
class Decision:
    state: State
    action: Action | None
    reason: str


def step(state: State, event: Event, *, me: WorkerId) -> Decision:
    """Decide what an event means; anything that changes nothing keeps the state, no action."""
    match event:
        case CommitKnown(commit=commit):
            return _commit_known(state, commit, me)
        case Entered():
            return _entered(state)
        case WaitBroke(suspects=suspects, reason=reason):
            return _broke(state, suspects, reason)
        case AtBoundary(headers=headers, newest=newest):
            return _at_boundary(state, headers, newest, me)
        case EndCompleted():
            if isinstance(state, Running):
                # RUNNING -> FINISHED: the last operation of all is complete
                done = Finished(state.commit)
                return Decision(done, SayFinished(state.commit), "training is complete")
            return _stay(state, "the end counts while running")
        case LeftBehind(commit=commit):
            if isinstance(state, Broken):
                return _newer_while_stuck(
                    state, state.commit, commit, me=me, has_state=state.has_state
                )
            return _stay(state, "only who waits in a broken group is left behind")
        case _:
            assert_never(event)


def _commit_known(state: State, commit: Commit, me: WorkerId) -> Decision:
    match state:
        case Waiting():
            if me in commit.workers:
                # WAITING -> FORMING: the first commit that names this worker
                return _form(commit, has_state=False)
            return _stay(state, f"{commit.generation.label} goes on without this worker")
        case Broken(has_state=True) if commit.mode is Mode.BOUNDARY and me not in commit.workers:
            # Who shall go on may be what broke: this worker may be the last to hold the state.
            return _stay(state, "the boundary to a planned change has not been passed here")
        case Forming(commit=old, has_state=has_state) | Broken(commit=old, has_state=has_state):
            return _newer_while_stuck(state, old, commit, me=me, has_state=has_state)
        case Running(commit=old):
            if commit.generation <= old.generation or commit.mode is Mode.BOUNDARY:
                return _stay(state, "a planned change is entered at a boundary")
            if me in commit.workers:
                # RUNNING -> FORMING: a loss; whatever this worker waits in is abandoned
                return _form(commit, has_state=True)
            return _fence(commit)
        case Leaving(commit=old) if me in commit.workers:
            if commit.generation > old.generation:
                # LEAVING -> FORMING: not all came to where the job was to stop, or who was to go on
                # ended on the way: this worker still has the state
                return _form(commit, has_state=True)
            return _stay(state, f"{commit.generation.label} is not newer")
        case Leaving() | Finished() | Fenced():
            return _stay(state, "this worker has left")
        case _:
            assert_never(state)


def _newer_while_stuck(
    state: State, old: Commit, commit: Commit, *, me: WorkerId, has_state: bool
) -> Decision:
    """FORMING and BROKEN end on any newer commit, also one that excludes the waiter."""
    if commit.generation <= old.generation:
        return _stay(state, f"{commit.generation.label} is not newer")
    if me in commit.workers:
        # FORMING, BROKEN -> FORMING: any mode, by any road
        return _form(commit, has_state=has_state)
    if not has_state:
        # FORMING, BROKEN -> WAITING: a newcomer that was left out may still join later
        return Decision(Waiting(), None, f"{commit.generation.label} leaves this newcomer out")
    if not commit.members:
        # FORMING, BROKEN -> LEAVING: the job pauses before this generation came together
        return Decision(Leaving(commit, pauses=True), Leave(commit, pauses=True), commit.reason)
    return _fence(commit)


def _entered(state: State) -> Decision:
    if isinstance(state, Forming):
        # FORMING -> RUNNING: the handshake gave everybody the same layout
        return Decision(Running(state.commit), SayEntered(state.commit), "all members arrived")
    return _stay(state, "entering counts while forming")


def _broke(state: State, suspects: tuple[WorkerId, ...], reason: str) -> Decision:
    match state:
        case Running(commit=commit):
            # RUNNING -> BROKEN: the exchange ended without its result
            broken = Broken(commit, has_state=True)
        case Forming(commit=commit, has_state=has_state):
            # FORMING -> BROKEN: somebody did not come, or left again
            broken = Broken(commit, has_state=has_state)
        case _:
            return _stay(state, "nothing is waited for")
    return Decision(broken, SayBroken(commit, suspects, reason), reason)


def _at_boundary(
    state: State, headers: tuple[GenerationNumber, ...], newest: Commit | None, me: WorkerId
) -> Decision:
    if not isinstance(state, Running):
        return _stay(state, "a boundary is passed while running")
    old = state.commit
    agreed = set(headers)
    if newest is None or agreed != {newest.generation} or newest.generation <= old.generation:
        return _stay(state, "the headers of all members do not name one newer generation")
    if not newest.members or me not in newest.workers:
        # RUNNING -> LEAVING: everybody knows the generation that goes on without this worker
        pauses = not newest.members
        return Decision(Leaving(newest, pauses), Leave(newest, pauses), newest.reason)
    if newest.workers == old.workers:
        # RUNNING -> RUNNING: only the map is new
        return Decision(Running(newest), SwitchMap(newest), newest.reason)
    # RUNNING -> FORMING: somebody joins or leaves, at the same boundary for all
    return _form(newest, has_state=True)


def _form(commit: Commit, *, has_state: bool) -> Decision:
    return Decision(Forming(commit, has_state), Form(commit), commit.reason)


def _fence(commit: Commit) -> Decision:
    # -> FENCED: a worker with state that a newer generation excludes
    return Decision(Fenced(commit), Fence(commit), f"{commit.generation.label} goes on without it")


def _stay(state: State, reason: str) -> Decision:
    return Decision(state, None, reason)
