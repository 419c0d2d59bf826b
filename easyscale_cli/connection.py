"""A job as a command reaches it, and the road through an agent on this machine.

An agent knows more than etcd: pulses, devices, what it has told; etcd is there from anywhere.
"""

import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from easyscale.agent.control import LocalAgent, ask, local_agents, run_folder
from easyscale.agent.dialogue import AgentSilent
from easyscale.errors import EasyScaleError
from easyscale.job_status import Glance
from easyscale.model import GenerationNumber, Wish
from easyscale.reports import JobEvent

_CALL_TIMEOUT_S = 5.0
#: A driver in trouble takes its time to say what there is.
_DEVICES_TIMEOUT_S = 10.0


class OnlyAtTheAgent(EasyScaleError):
    """Raised when only an agent knows the answer and none of the job is on this machine."""

    code = "only_at_the_agent"


class AgentEnded(EasyScaleError):
    """Raised when the last agent of a job on this machine is no more."""

    code = "agent_ended"


class Events(NamedTuple):
    """Events from one number on; the number of the next; whether more can come."""

    events: tuple[JobEvent, ...]
    next: int
    is_over: bool


class Offered(msgspec.Struct, frozen=True):
    """What a node offers from now on, and what a person should know about it."""

    slots: tuple[str, ...]
    notes: tuple[str, ...]


class Job(Protocol):
    """A job that was found."""

    id: str

    def glance(self, *, watches: bool = False) -> Glance:
        """How it is now; `closing` once it has ended, which an agent tells those who watch."""

    def wish(self, wish: Wish) -> str:
        """Ask for something; returns the wish's id."""

    def standing(self, wish_id: str) -> Wish | None:
        """The wish while it waits or stands refused; None once it has come true."""

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        """What a newer generation cost, by its members' records; None: not known here, or yet."""

    def events(self, after: int) -> Events: ...

    def story(self) -> Sequence[Mapping[str, str]]: ...

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        """Have a node here offer these slots from now on; None: it is elsewhere, so wish for it."""


class LocalJob:
    """A job with an agent of this user on this machine."""

    def __init__(self, agents: Sequence[LocalAgent], *, apart_from: str = "") -> None:
        self.id = agents[0].job
        #: Whoever shall leave is the last to be asked how it went.
        self._agents = sorted(agents, key=lambda agent: agent.node == apart_from)
        self._me = secrets.token_hex(4)

    def glance(self, *, watches: bool = False) -> Glance:
        arguments = {"watcher": self._me} if watches else {}
        return msgspec.convert(self._ask("status", arguments), Glance)

    def wish(self, wish: Wish) -> str:
        wish_id: str = self._ask("wish", msgspec.to_builtins(wish))["wish"]
        return wish_id

    def standing(self, wish_id: str) -> Wish | None:
        wishes = msgspec.convert(self._ask("wishes", {}), dict[str, Wish])
        return wishes.get(wish_id)

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        del after  # the events have it
        return None

    def events(self, after: int) -> Events:
        answer = self._ask("events", {"after": after})
        events = msgspec.convert(answer["events"], tuple[JobEvent, ...])
        return Events(events, answer["next"], answer["closing"])

    def story(self) -> Sequence[Mapping[str, str]]:
        answer: Sequence[Mapping[str, str]] = self._ask("story", {})
        return answer

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        agent = next((agent for agent in self._agents if agent.node == node), None)
        if agent is None:
            return None
        asked = {"devices": word, "by": by}
        answer = ask(Path(agent.socket), "devices", asked, timeout_s=_DEVICES_TIMEOUT_S)
        return msgspec.convert(answer, Offered)

    def _ask(self, request: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Ask the first agent that is still there."""
        while True:
            try:
                path = Path(self._agents[0].socket)
                return ask(path, request, arguments, timeout_s=_CALL_TIMEOUT_S)
            except AgentSilent as error:
                if len(self._agents) > 1:
                    del self._agents[0]
                elif isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
                    raise self._ended() from error
                else:
                    raise

    def _ended(self) -> AgentEnded:
        return AgentEnded(
            f"the agent of job {self.id!r} on this machine has ended; its own output says how",
            hint=f"easyscale status {self.id} --etcd HOST:2379, if the job goes on elsewhere",
        )


def agents_here() -> dict[str, list[LocalAgent]]:
    """The agents of this user on this machine, by job."""
    found: dict[str, list[LocalAgent]] = {}
    for agent in local_agents(run_folder(os.environ)):
        found.setdefault(agent.job, []).append(agent)
    return dict(sorted(found.items()))
