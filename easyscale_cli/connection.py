"""A job as a command reaches it, and the road through an agent on this machine.

An agent knows more than etcd: pulses, devices, what it has told; etcd is there from anywhere.
"""

import math
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from easyscale.agent.doors.control import LocalAgent, local_agents, run_folder
from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.balance import ProfileRecord
from easyscale.errors import EasyScaleError
from easyscale.job_status import Glance, SlotFacts
from easyscale.model import GenerationNumber, Wish
from easyscale.plan_facts import PlanFacts
from easyscale.reports import JobEvent
from easyscale_cli.closely import seen_closely
from easyscale_cli.roads import LocalRoad, Road, ask_all, ask_first, nobody, reached, remote_roads

Story = Sequence[Mapping[str, str]]

#: A status waits so long for what the agents of other nodes know.
_SLOTS_TIMEOUT_S = 0.8
#: Who watches asks so often where the agents are.
_ROADS_EVERY_S = 5.0
#: A driver in trouble takes its time to say what there is.
_DEVICES_TIMEOUT_S = 10.0


class OnlyAtTheAgent(EasyScaleError):
    """Raised when only an agent knows the answer and none of the job is on this machine."""

    code = "only_at_the_agent"


class AgentEnded(EasyScaleError):
    """Raised when the last agent of a job on this machine is no more."""

    code = "agent_ended"


class NodeUnknown(EasyScaleError):
    """Raised when a job has no such node, slot or rank."""

    code = "node_unknown"


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

    def closely(self, *, watches: bool = False) -> Glance:
        """The same, with what the agents of all nodes know of their own slots."""

    def wish(self, wish: Wish) -> str:
        """Ask for something; returns the wish's id."""

    def wishes(self) -> Mapping[str, Wish]:
        """All that wait or stand refused, in the order in which they were asked."""

    def standing(self, wish_id: str) -> Wish | None:
        """The wish while it waits or stands refused; None once it has come true."""

    def withdraw(self, wish_id: str) -> None:
        """Have the wish stand no longer; what has begun of it ends as it will."""

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        """What a newer generation cost, by its members' records; None: not known here, or yet."""

    def events(self, after: int, *, watches: bool = False) -> Events:
        """What one of its agents has told since it began; who watches hears its last event too."""

    def story(self, *, node: str | None = None, rank: int | None = None) -> Story:
        """What was decided and why: by the leader, by one node's agent, or about one rank."""

    def roads(self) -> Sequence[Road]:
        """To the agents of all its nodes, as far as their addresses are known."""

    def plan(self) -> PlanFacts:
        """Who computes what, and why."""

    def profile(self) -> ProfileRecord | None:
        """The newest measured profile, if one was asked for."""

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        """Have a node here offer these slots from now on; None: it is elsewhere, so wish for it."""


class LocalJob:
    """A job with an agent of this user on this machine."""

    def __init__(self, agents: Sequence[LocalAgent], *, apart_from: str = "") -> None:
        self.id = agents[0].job
        #: Whoever shall leave is the last to be asked how it went.
        self._near = [
            LocalRoad(agent) for agent in sorted(agents, key=lambda each: each.node == apart_from)
        ]
        self._me = secrets.token_hex(4)
        self._listening = Listening(self.roads)
        self._known: Sequence[Road] = ()
        self._known_s = -math.inf

    def glance(self, *, watches: bool = False) -> Glance:
        arguments = {"watcher": self._me} if watches else {}
        return msgspec.convert(self._ask("status", arguments), Glance)

    def closely(self, *, watches: bool = False) -> Glance:
        glance = self.glance(watches=watches)
        if glance.closing is not None or len({slot.node for slot in glance.status.slots}) <= 1:
            return glance
        asked = self._near[0].node
        if time.monotonic() - self._known_s > _ROADS_EVERY_S:
            self._known, self._known_s = self.roads(), time.monotonic()
        return with_own_slots(glance, [road for road in self._known if road.node != asked])

    def wish(self, wish: Wish) -> str:
        wish_id: str = self._ask("wish", msgspec.to_builtins(wish))["wish"]
        return wish_id

    def wishes(self) -> Mapping[str, Wish]:
        return msgspec.convert(self._ask("wishes", {}), dict[str, Wish])

    def standing(self, wish_id: str) -> Wish | None:
        return self.wishes().get(wish_id)

    def withdraw(self, wish_id: str) -> None:
        self._ask("withdraw", {"wish": wish_id})

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        del after  # the events have it
        return None

    def events(self, after: int, *, watches: bool = False) -> Events:
        try:
            return self._listening.events(after, watches=watches)
        except AgentSilent as error:
            raise self._ended() from error

    def story(self, *, node: str | None = None, rank: int | None = None) -> Story:
        return story_of(self.id, self.roads(), node=node, rank=rank)

    def roads(self) -> Sequence[Road]:
        answer = self._ask("peers", {})
        near = {road.node for road in self._near}
        far = remote_roads([(n, a) for n, a in answer["nodes"] if n not in near], answer["token"])
        return [*self._near, *far]

    def plan(self) -> PlanFacts:
        return msgspec.convert(self._ask("plan", {}), PlanFacts)

    def profile(self) -> ProfileRecord | None:
        return msgspec.convert(self._ask("profile", {}), ProfileRecord | None)

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        road = next((road for road in self._near if road.node == node), None)
        if road is None:
            return None
        asked = {"devices": word, "by": by}
        answer = road.ask("devices", asked, timeout_s=_DEVICES_TIMEOUT_S)
        return msgspec.convert(answer, Offered)

    def _ask(self, request: str, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """Ask the first agent that is still there."""
        while True:
            try:
                return self._near[0].ask(request, arguments)
            except AgentSilent as error:
                if len(self._near) > 1:
                    del self._near[0]
                elif isinstance(error.__cause__, FileNotFoundError | ConnectionRefusedError):
                    raise self._ended() from error
                else:
                    raise

    def _ended(self) -> AgentEnded:
        return AgentEnded(
            f"the agent of job {self.id!r} on this machine has ended; its own output says how",
            hint=f"easyscale status {self.id} --etcd HOST:2379, if the job goes on elsewhere",
        )


class Listening:
    """The events of a job, from one agent as long as it is there, then from another."""

    def __init__(self, roads: Callable[[], Sequence[Road]]) -> None:
        self._roads = roads
        self._me = secrets.token_hex(4)
        self._road: Road | None = None
        self._heard = ""

    @property
    def has_heard(self) -> bool:
        """Whether anything was told before."""
        return bool(self._heard)

    def events(self, after: int, *, watches: bool = False) -> Events:
        """Those from number `after` on; raises AgentSilent where nobody tells them any more."""
        asked = {"after": after, "watcher": self._me if watches else ""}
        if self._road is not None:
            try:
                return self._noted(events_in(self._road.ask("events", asked)))
            except AgentSilent:
                self._road = None
        roads = self._roads()
        silence = nobody(roads)
        for road in reached(roads):
            try:
                told = events_in(road.ask("events", asked | {"after": 0 if self._heard else after}))
            except AgentSilent as error:
                silence = error
                continue
            self._road = road
            # The other one counts anew; both tell of the same changes.
            fresh = tuple(event for event in told.events if event.at > self._heard)
            return self._noted(told._replace(events=fresh))
        raise silence

    def _noted(self, told: Events) -> Events:
        self._heard = max((self._heard, *(event.at for event in told.events)))
        return told


def with_own_slots(glance: Glance, roads: Sequence[Road]) -> Glance:
    """A status with what the agents at these roads know of their own slots."""
    own: dict[tuple[str, str], SlotFacts] = {}
    for _, answer in ask_all(roads, "slots", timeout_s=_SLOTS_TIMEOUT_S):
        slots = msgspec.convert(answer, tuple[SlotFacts, ...])
        own |= {(slot.node, slot.slot): slot for slot in slots}
    return seen_closely(glance, own)


def events_in(answer: Mapping[str, Any]) -> Events:
    """The events of an agent's answer."""
    events = msgspec.convert(answer["events"], tuple[JobEvent, ...])
    return Events(events, answer["next"], answer["closing"])


def story_of(job: str, roads: Sequence[Road], *, node: str | None, rank: int | None) -> Story:
    """The story of a rank, of a node, or of the job, which is that of who leads it."""
    if node is not None:
        here = [road for road in roads if road.node == node]
        if not here:
            known = ", ".join(sorted(road.node for road in roads)) or "none"
            raise NodeUnknown(f"job {job!r} has no node {node!r} that can be asked; it has {known}")
        lines: Story = ask_first(here, "story")["lines"]
    elif rank is not None:
        lines = ask_first(roads, "story", {"rank": rank})["lines"]
        if not lines:
            raise NodeUnknown(f"job {job!r} has no logical rank {rank}, or has not begun")
    else:
        answers = [answer for _, answer in ask_all(roads, "story")]
        if not answers:
            raise nobody(roads)
        lines = next(
            (answer["lines"] for answer in answers if answer["leads"]), answers[0]["lines"]
        )
    return lines


def agents_here() -> dict[str, list[LocalAgent]]:
    """The agents of this user on this machine, by job."""
    found: dict[str, list[LocalAgent]] = {}
    for agent in local_agents(run_folder(os.environ)):
        found.setdefault(agent.job, []).append(agent)
    return dict(sorted(found.items()))
