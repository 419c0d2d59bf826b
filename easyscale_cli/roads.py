"""The roads to the agents of a job: through a socket on this machine, or over the network.

What a node alone knows is asked of its own agent. One that is silent costs its own facts only.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from easyscale.agent.doors.control import LocalAgent, ask
from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.agent.doors.remote_door import ask_at
from easyscale_cli.views.errors import some_of

CALL_TIMEOUT_S = 5.0
#: An agent that does not even say that it is there within this is passed over.
_REACH_S = 2.0
_MOST_AT_ONCE = 32


class Road(Protocol):
    """A way to ask one agent; raises AgentSilent, or AgentRefused with the agent's words."""

    @property
    def node(self) -> str: ...

    def ask(
        self,
        request: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any: ...  # noqa: ANN401 - JSON


@dataclass(frozen=True, slots=True)
class LocalRoad:
    """To an agent of this user on this machine."""

    agent: LocalAgent

    @property
    def node(self) -> str:
        return self.agent.node

    def ask(
        self,
        request: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:  # noqa: ANN401 - JSON
        return ask(Path(self.agent.socket), request, arguments, timeout_s=timeout_s)


@dataclass(frozen=True, slots=True)
class RemoteRoad:
    """To an agent on another machine."""

    node: str
    address: str
    token: str

    def ask(
        self,
        request: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> Any:  # noqa: ANN401 - JSON
        return ask_at(self.address, self.token, request, arguments, timeout_s=timeout_s)


def remote_roads(nodes: Iterable[tuple[str, str]], token: str) -> list[Road]:
    """Roads to nodes by name and address; an agent without an address cannot be asked."""
    return [RemoteRoad(node, address, token) for node, address in nodes if address and token]


def ask_first(
    roads: Sequence[Road], request: str, arguments: Mapping[str, Any] | None = None
) -> Any:  # noqa: ANN401 - JSON
    """The answer of the first that answers; raises AgentSilent where none does."""
    silence = nobody(roads)
    for road in reached(roads):
        try:
            return road.ask(request, arguments)
        except AgentSilent as error:
            silence = error
    raise silence


def nobody(roads: Sequence[Road]) -> AgentSilent:
    """What is said when no agent answers."""
    if not roads:
        return AgentSilent("the job has no agent that can be asked")
    nodes = sorted(road.node for road in roads)
    return AgentSilent(f"no agent answers of {some_of(nodes)}")


def reached(roads: Sequence[Road]) -> list[Road]:
    """The roads without those whose agents are silent; where the first answers it is enough."""
    if ask_all(roads[:1], "here", timeout_s=_REACH_S):
        return list(roads)
    return [road for road, _ in ask_all(roads[1:], "here", timeout_s=_REACH_S)]


def ask_all(
    roads: Sequence[Road],
    request: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout_s: float = CALL_TIMEOUT_S,
) -> list[tuple[Road, Any]]:
    """The answers of all that answer in time, asked at once."""

    def answer(road: Road) -> tuple[Road, Any] | None:
        try:
            return road, road.ask(request, arguments, timeout_s=timeout_s)
        except (AgentSilent, AgentRefused):
            return None

    if len(roads) <= 1:
        return [said for said in map(answer, roads) if said is not None]
    with ThreadPoolExecutor(min(len(roads), _MOST_AT_ONCE)) as pool:
        return [said for said in pool.map(answer, roads) if said is not None]
