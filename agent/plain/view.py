"""A plain or packed agent as its doors show it, and what they may ask of it."""

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.plain import events, lead, wishes
from easyscale.agent.plain.kept import KeptLogs
from easyscale.agent.plain.meeting import Meeting
from easyscale.agent.plain.slot_finder import SlotFinder
from easyscale.agent.plain.state import Phase, State
from easyscale.agent.plain.values import Sight
from easyscale.agent.processes.log_files import LogFile, Piece
from easyscale.errors import UsageError
from easyscale.job_status import JobStatus, SlotFacts
from easyscale.model import Wish
from easyscale.reports import stamp

if TYPE_CHECKING:
    from easyscale.agent.plain.status import Own

#: What only jobs with logical workers of our own have.
_ELASTIC = ("plan", "profile", "snapshots")
#: The newest reasons that are kept.
_MOST_REASONS = 200


class Reason(NamedTuple):
    """What happened, and what was decided on it."""

    wall_s: float
    event: str
    decision: str


class PlainView:
    """Implements `doors.view.AgentView`; any thread may ask."""

    def __init__(
        self,
        chronicle: Chronicle,
        logs: KeptLogs,
        meeting: Meeting,
        finder: SlotFinder,
        *,
        state: Callable[[], State],
        post: Callable[[events.PlainEvent], None],
    ) -> None:
        self._chronicle = chronicle
        self._logs = logs
        self._meeting = meeting
        self._finder = finder
        self._state = state
        self._post = post
        self._token = ""
        self._is_settled = False
        self._reasons: deque[Reason] = deque(maxlen=_MOST_REASONS)

    @property
    def job(self) -> str:
        return self._state().settings.job_id

    @property
    def node(self) -> str:
        return self._state().node

    @property
    def leads(self) -> bool:
        return self._state().leads

    @property
    def token(self) -> str:
        return self._token

    def meet(self, token: str) -> None:
        """The nodes of the job know each other by this."""
        self._token = token

    def note(self, event: str, decision: str) -> None:
        """Remember a decision for the story."""
        self._reasons.append(Reason(time.time(), event, decision))

    @property
    def told(self) -> Mapping[str, Handler]:
        return {"story": self._answer_story, **{each: self._refuse(each) for each in _ELASTIC}}

    @property
    def obeyed(self) -> Mapping[str, Handler]:
        return {
            "store": self._answer_store,
            "peers": self._answer_peers,
            "wish": self._take_wish,
            "wishes": self._answer_wishes,
            "devices": self._take_devices,
        }

    def settle(self) -> None:
        self._is_settled = True

    def close(self) -> None:
        """What it reads with is the driver's."""

    # --- the job -------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        from easyscale.agent.plain.status import status_of  # noqa: PLC0415 - loads much

        state = self._state()
        return status_of(
            self.job,
            self._whole(state),
            lead.terms_of(state),
            wall_s=time.time(),
            own=self._own(state),
        )

    def own_slots(self) -> Sequence[SlotFacts]:
        from easyscale.agent.plain.status import slots_of  # noqa: PLC0415 - loads much

        state = self._state()
        return [each for each in slots_of(state.sight, self._own(state)) if each.node == state.node]

    def logs(self) -> Sequence[LogFile]:
        return self._logs.files()

    def log(self, node: str, name: str, *, offset: int, since_s: float | None) -> Piece:
        return self._logs.piece(node, name, offset=offset, since_s=since_s)

    def _whole(self, state: State) -> Sight:
        """The leader has it; others, who follow less, read it when somebody asks."""
        if state.leads or state.away_since_s is not None or self._is_settled:
            return state.sight
        return self._meeting.whole() or state.sight

    def _own(self, state: State) -> "Own":
        from easyscale.agent.doors.readings import user_name  # noqa: PLC0415 - loads much
        from easyscale.agent.plain.status import Own  # noqa: PLC0415 - loads much

        return Own(
            state=state,
            now_s=time.monotonic(),
            told=self._chronicle.told,
            user=user_name(),
            readings=self._finder.readings(state),
        )

    # --- what is asked -------------------------------------------------------------------------

    def _answer_story(self, arguments: Mapping[str, Any]) -> object:
        """What this agent decided."""
        if arguments.get("rank") is not None:
            raise wishes.not_in(self.job, self._mode, "story of a rank")
        lines = [
            {
                "at": stamp(each.wall_s),
                "node": self.node,
                "event": each.event,
                "decision": each.decision,
                "reason": "",
            }
            for each in tuple(self._reasons)
        ]
        return {"leads": self.leads, "lines": lines}

    def _answer_store(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's nodes meet; a job of one node has no such place."""
        del arguments
        where = self._meeting.where()
        if where is None:
            return {"endpoints": "", "embedded": False}
        return {"endpoints": where.endpoints, "embedded": where.is_embedded}

    def _answer_peers(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's agents are and how to ask them: for this machine's own user."""
        del arguments
        offers = self._whole(self._state()).offers
        return {"token": self._token, "nodes": [[offer.node, offer.door] for offer in offers]}

    def _answer_wishes(self, arguments: Mapping[str, Any]) -> object:
        """What somebody asked of the job and has not had yet."""
        del arguments
        return self._state().sight.wishes

    def _take_wish(self, arguments: Mapping[str, Any]) -> object:
        """Refused at once where this job cannot grant it."""
        state = self._state()
        wish = wishes.check(
            msgspec.convert(arguments, Wish),
            self._whole(state),
            job=self.job,
            is_packed=state.settings.is_packed,
            least=state.settings.min_nodes,
            is_whole=state.settings.static is None,
        )
        wish_id = secrets.token_hex(8)
        self._post(events.Asked(wish_id=wish_id, wish=wish))
        return {"wish": wish_id}

    def _take_devices(self, arguments: Mapping[str, Any]) -> object:
        """Offer other slots from now on; refused at once where this node cannot grant them."""
        word, by = str(arguments["devices"]), str(arguments.get("by", ""))
        state = self._state()
        if not state.settings.is_packed:
            raise wishes.fixed_workers(self.job)
        if state.phase is Phase.LEAVING:
            raise UsageError(f"node {self.node} is leaving; its slots stay withdrawn")
        offer = self._finder.find(word)
        self._post(self._finder.changed(offer, reason=by))
        return {"slots": [slot.name for slot in offer.slots], "notes": offer.notes}

    def _refuse(self, what: str) -> Handler:
        def refuse(arguments: Mapping[str, Any]) -> object:
            del arguments
            raise wishes.not_in(self.job, self._mode, what)

        return refuse

    @property
    def _mode(self) -> str:
        return "packed" if self._state().settings.is_packed else "plain"
