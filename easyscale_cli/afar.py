"""The agents of a job asked over the network: the one that answered before, else the next."""

import secrets
from collections.abc import Callable, Sequence

import msgspec

from easyscale.agent.doors.dialogue import AgentSilent
from easyscale.job_status import Glance
from easyscale_cli.connection import (
    AgentEnded,
    Events,
    Listening,
    OnlyAtTheAgent,
    Story,
    story_of,
    with_own_slots,
)
from easyscale_cli.roads import Road, reached


class Afar:
    """What only agents know of a job that an etcd has the records of."""

    def __init__(
        self,
        job: str,
        *,
        roads: Callable[[], Sequence[Road]],
        nodes: Callable[[], Sequence[str]],
    ) -> None:
        """`roads` looks where the agents are; `nodes` are those that were seen then."""
        self._job = job
        self._roads = roads
        self._nodes = nodes
        self._me = secrets.token_hex(4)
        self._listening = Listening(self._look)
        #: The agent that answered for the job last.
        self._spoke: Road | None = None
        self._known: Sequence[Road] = ()

    def _look(self) -> Sequence[Road]:
        self._known = self._roads()
        return self._known

    def closely(self, *, watches: bool) -> Glance | None:
        """By an agent that can be reached; None where none can."""
        if self._spoke is not None:
            try:
                return self._seen_by(self._spoke, watches=watches)
            except AgentSilent:
                self._spoke = None
        for road in reached(self._look()):
            try:
                glance = self._seen_by(road, watches=watches)
            except AgentSilent:
                continue
            self._spoke = road
            return glance
        return None

    def _seen_by(self, road: Road, *, watches: bool) -> Glance:
        arguments = {"watcher": self._me} if watches else {}
        glance = msgspec.convert(road.ask("status", arguments), Glance)
        if glance.closing is not None or len({slot.node for slot in glance.status.slots}) <= 1:
            return glance
        return with_own_slots(glance, [each for each in self._known if each.node != road.node])

    def events(self, after: int, *, watches: bool) -> Events:
        try:
            return self._listening.events(after, watches=watches)
        except AgentSilent as error:
            if self._listening.has_heard and not self._nodes():
                raise AgentEnded(f"the agents of job {self._job!r} have ended") from error
            raise self._only_there("events", error) from error

    def story(self, *, node: str | None, rank: int | None) -> Story:
        try:
            return story_of(self._job, self._look(), node=node, rank=rank)
        except AgentSilent as error:
            raise self._only_there("status --story", error) from error

    def _only_there(self, command: str, silence: AgentSilent) -> OnlyAtTheAgent:
        nodes = sorted(self._nodes())
        if not nodes:
            return OnlyAtTheAgent(
                f"what happened in job {self._job!r} is told by its agents, and all have ended",
                hint=f"easyscale status {self._job} --once, and the logs on its nodes",
            )
        return OnlyAtTheAgent(
            f"what happened in job {self._job!r} is told by its agents; {silence.message}",
            hint=f"on {nodes[0]}: easyscale {command} {self._job}",
        )
