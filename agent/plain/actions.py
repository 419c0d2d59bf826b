"""Everything an agent of a plain or packed job can do, as one closed union."""

import msgspec

from easyscale.agent.plain.values import Fault, Member, Outcome, Report, Round
from easyscale.model import Wish
from easyscale.reports import FirstCause, JobEvent, Summary


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Register this node with these places and a fresh port, or again with others."""

    places: tuple[str, ...]


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """As the leader: put this where the nodes meet, if the round there is the one of `revision`."""

    value: Round | Outcome
    revision: int


class Publish(msgspec.Struct, frozen=True, kw_only=True):
    """Say what became of this node's workers."""

    report: Report


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Put what a person asked of the job where its nodes meet."""

    wish_id: str
    wish: Wish


class Settle(msgspec.Struct, frozen=True, kw_only=True):
    """Take a wish away that was done, or say in it why this node cannot do it."""

    wish_id: str
    refused: Wish | None = None


class FindSlots(msgspec.Struct, frozen=True, kw_only=True):
    """See which slots a wish names; answered by SlotsChanged or SlotsRefused."""

    wish_id: str
    wish: Wish


class StartWorkers(msgspec.Struct, frozen=True, kw_only=True):
    round: Round
    member: Member


class SignalWorkers(msgspec.Struct, frozen=True, kw_only=True):
    """Send a signal to the scripts of these workers."""

    local_ranks: tuple[int, ...]
    number: int


class KillWorkers(msgspec.Struct, frozen=True, kw_only=True):
    local_ranks: tuple[int, ...]


class Announce(msgspec.Struct, frozen=True, kw_only=True):
    event: JobEvent


class ReportCause(msgspec.Struct, frozen=True, kw_only=True):
    cause: FirstCause
    fault: Fault


class Conclude(msgspec.Struct, frozen=True, kw_only=True):
    summary: Summary


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    code: int
    reason: str


PlainAction = (
    Offer
    | Write
    | Publish
    | Ask
    | Settle
    | FindSlots
    | StartWorkers
    | SignalWorkers
    | KillWorkers
    | Announce
    | ReportCause
    | Conclude
    | Exit
)
