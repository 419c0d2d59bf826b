"""What the nodes of a plain or packed job tell each other, as frozen values with JSON forms."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from easyscale.errors import ExitCode
from easyscale.model import NodeRecord, Record, Wish


class Offer(NodeRecord, frozen=True, kw_only=True):
    """A node that takes part: how many workers it runs, and a port for a store of its own."""

    role: str
    places: tuple[str, ...]
    port: int
    #: Where its agent answers, HOST:PORT; empty: it has no door to other machines.
    door: str = ""


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node's share of a round."""

    node: str
    incarnation: str
    address: str
    role: str
    group_rank: int
    #: Its workers have the ranks from here on; as many as there are places.
    first_rank: int
    #: The same among the workers of its role.
    first_role_rank: int
    role_world_size: int
    #: The slot of each local rank.
    places: tuple[str, ...]
    #: What the node offered: other slots ask for another round.
    offered: tuple[str, ...]

    @property
    def workers(self) -> int:
        return len(self.places)


class RoundPhase(StrEnum):
    RUNNING = "running"
    STOPPING = "stopping"


class Round(Record, frozen=True, kw_only=True):
    """One start of all workers of the job: who they are, and where their store is."""

    number: int
    phase: RoundPhase
    #: Failures charged so far; changes of membership are not.
    restarts: int
    members: tuple[Member, ...]
    world_size: int
    group_world_size: int
    master_addr: str
    master_port: int
    #: Why it began, or why it stops.
    reason: str = ""
    #: Nodes whose coming or going stops it.
    joined: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    #: Nodes that somebody asked to leave.
    drained: tuple[str, ...] = ()

    def member(self, node: str, incarnation: str) -> Member | None:
        return next(
            (m for m in self.members if (m.node, m.incarnation) == (node, incarnation)), None
        )


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """How the first of a node's workers failed by itself."""

    headline: str
    rank: int
    node: str
    pid: int | None
    exit_code: int | None
    signal: int | None
    log: str
    #: What `@record` wrote, on its own node; empty: nothing.
    error_file: str = ""
    file: str = ""
    line: int = 0
    function: str = ""
    caller: str = ""
    excerpt: tuple[tuple[int, str], ...] = ()
    hidden_frames: int = 0
    #: It lost its peers: another worker failed before.
    is_victim: bool = False
    #: The same at every start: not tried again.
    is_hopeless: bool = False


class ReportState(StrEnum):
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class Report(Record, frozen=True, kw_only=True):
    """What became of a node's workers in a round."""

    round: int
    incarnation: str
    state: ReportState
    fault: Fault | None = None
    #: Its workers that failed by themselves before any was stopped.
    failed: int = 0
    #: All of its workers have ended; False: one has failed and others may still run.
    is_over: bool = True


class Outcome(Record, frozen=True, kw_only=True):
    """How the job ended; the same for all nodes."""

    exit_code: int
    reason: str
    fault: Fault | None = None
    restarts: int = 0
    #: Other workers that ended because of it.
    victims: int = 0
    #: Other workers that failed by themselves.
    also_failed: int = 0
    #: A person stopped it before its scripts had ended.
    is_stop: bool = False

    @property
    def is_finished(self) -> bool:
        """All scripts have ended well: there is nothing left to do for who comes later."""
        return self.exit_code == ExitCode.DONE and not self.is_stop


class Terms(Record, frozen=True, kw_only=True):
    """What all nodes of a job have to agree on."""

    min_nodes: int
    max_nodes: int | None
    max_restarts: int
    logical_workers: int | None
    #: Of the job as it was begun this time; whoever knows it is answered by its agents.
    token: str = ""


@dataclass(frozen=True, slots=True)
class Sight:
    """The job as one immutable view of where its nodes meet."""

    #: Who is there now, in the order of arrival.
    offers: tuple[Offer, ...] = ()
    round: Round | None = None
    #: Of the store's key that holds the round: what a decision on it rests on; 0: there is none.
    revision: int = 0
    #: By node, in the order in which they were written; of the present round only.
    reports: Mapping[str, Report] = field(default_factory=dict)
    outcome: Outcome | None = None
    #: What somebody asks of the job, by id.
    wishes: Mapping[str, Wish] = field(default_factory=dict)
    #: None where there is no store that would hold them.
    terms: Terms | None = None

    @property
    def stop(self) -> Wish | None:
        """Somebody asks the job to end."""
        return next((wish for _, wish in sorted(self.wishes.items()) if wish.kind == "stop"), None)

    @property
    def staying(self) -> tuple[Offer, ...]:
        """Who is there and was not asked to leave."""
        return tuple(offer for offer in self.offers if self.leaving(offer.node) is None)

    def leaving(self, node: str) -> Wish | None:
        """What asks the whole node to leave."""
        asked = [wish for wish in self.wishes.values() if wish.kind == "drain" and not wish.slots]
        return next((wish for wish in asked if wish.node == node and not wish.refused), None)

    def offer(self, node: str, incarnation: str) -> Offer | None:
        return next(
            (o for o in self.offers if (o.node, o.incarnation) == (node, incarnation)), None
        )
