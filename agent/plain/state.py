"""The state of an agent of a plain or packed job, and the turn in which one event changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec

from easyscale.agent.plain import actions
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.values import Fault, Member, Round, Sight
from easyscale.reports import EventKind, Fact, JobEvent, stamp


class Now(msgspec.Struct, frozen=True):
    """The moment of an event on both clocks; `wall_s` is for screens only."""

    s: float
    wall_s: float


class Phase(StrEnum):
    #: No worker runs; the next round is waited for.
    MEETING = "meeting"
    RUNNING = "running"
    #: The workers of the round are being ended, for another round or for good.
    STOPPING = "stopping"
    #: A signal asked this node to leave: its workers are being ended.
    LEAVING = "leaving"


@dataclass(frozen=True, slots=True)
class Worker:
    pid: int | None = None
    has_ended: bool = False


@dataclass(frozen=True, slots=True)
class State:
    settings: PlainSettings
    incarnation: str
    began_s: float
    phase: Phase = Phase.MEETING
    places: tuple[str, ...] = ()
    #: The round that this node's workers belong to, or belonged to last.
    round: Round | None = None
    member: Member | None = None
    workers: Mapping[int, Worker] = field(default_factory=dict)
    #: Failures of this round's workers that nobody stopped, in the order of their ends.
    faults: tuple[Fault, ...] = ()
    #: The others are stopped then, unless all have ended: who failed first shows within it.
    fault_due_s: float | None = None
    #: Others still run then after one has ended well: people are told, since they may wait for it.
    early_due_s: float | None = None
    #: Workers that have not ended by then are killed.
    kill_s: float | None = None
    #: The stop signal that this agent was sent first.
    signal: int | None = None
    signalled_s: float = -1e9
    sight: Sight = field(default_factory=Sight)
    leads: bool = False
    #: Since when the same nodes are there, and since when they are too few.
    quiet_since_s: float = 0.0
    short_since_s: float = 0.0
    #: What was written last and not seen yet.
    written_s: float | None = None
    #: The wishes that this node has taken up.
    taken: frozenset[str] = frozenset()
    met: bool = False
    told_waiting_s: float = -1e9
    away_since_s: float | None = None
    #: What it answers meanwhile, where it refuses in place of being silent.
    refuses: str = ""
    #: All own workers have ended well, and the word of the others is awaited.
    done_s: float | None = None

    @property
    def node(self) -> str:
        return self.settings.node_name

    @property
    def running(self) -> tuple[int, ...]:
        """The local ranks whose workers have not ended."""
        return tuple(rank for rank, worker in self.workers.items() if not worker.has_ended)


class Turn:
    """One event's work: the state as it becomes, the actions in order, the reasons."""

    def __init__(self, state: State, now: Now) -> None:
        self.state = state
        self.now = now
        self.actions: list[actions.PlainAction] = []
        self.reasons: list[str] = []

    def set(self, **changes: object) -> None:
        self.state = replace(self.state, **changes)  # type: ignore[arg-type]

    def do(self, action: actions.PlainAction) -> None:
        self.actions.append(action)

    def because(self, reason: str) -> None:
        self.reasons.append(reason)

    def tell(self, kind: EventKind, reason: str = "", **facts: Fact) -> None:
        round_ = self.state.round
        event = JobEvent(
            at=stamp(self.now.wall_s),
            job=self.state.settings.job_id,
            event=kind,
            step=None,
            era=1,
            generation=round_.number if round_ else 0,
            reason=reason,
            facts={name: value for name, value in facts.items() if value is not None},
        )
        self.do(actions.Announce(event=event))
