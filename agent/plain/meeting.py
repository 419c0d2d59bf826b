"""Where the nodes of a plain or packed job meet: the seam, and the meeting of one node with itself.

Every method returns at once; what has changed is posted as `Seen`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from easyscale.agent.plain import events
from easyscale.agent.plain.actions import Ask, Settle, Write
from easyscale.agent.plain.values import Offer, Outcome, Report, RoundPhase, Sight


class Where(NamedTuple):
    """A store that a job's nodes meet at."""

    endpoints: str
    is_embedded: bool


class Meeting(Protocol):
    """What the driver asks of it."""

    def start(self) -> None:
        """Open it; Met and Seen follow."""

    def offer(self, offer: Offer) -> None:
        """Take part, or take part with other places."""

    def decide(self, decision: Write) -> None:
        """As the leader: put it down, if what it rests on still stands."""

    def publish(self, report: Report) -> None:
        """Say what became of this node's workers."""

    def ask(self, asked: Ask) -> None:
        """Put a person's wish where all nodes see it."""

    def settle(self, settled: Settle) -> None:
        """Say that it was done, or why it cannot be."""

    def where(self) -> Where | None:
        """The store, as people name it; None: nodes do not meet, or have not yet."""

    def whole(self) -> Sight | None:
        """The whole job as it is now, for who asks; None where that cannot be said."""

    def close(self) -> None:
        """Take no part any more."""


class LocalMeeting:
    """A job of one node, which decides alone."""

    def __init__(self, post: Callable[[events.PlainEvent], None], *, node: str) -> None:
        self._post = post
        self._node = node
        self._sight = Sight()

    def start(self) -> None:
        self._post(events.Met(store="", seconds=0.0, address=""))

    def offer(self, offer: Offer) -> None:
        self._show(replace(self._sight, offers=(offer,)))

    def decide(self, decision: Write) -> None:
        value, before = decision.value, self._sight
        if decision.revision != before.revision:
            return
        if isinstance(value, Outcome):
            self._show(replace(before, outcome=value))
        else:
            reports = {} if value.phase is RoundPhase.RUNNING else before.reports
            revision = before.revision + 1
            self._show(replace(before, round=value, reports=reports, revision=revision))

    def publish(self, report: Report) -> None:
        self._show(replace(self._sight, reports={self._node: report}))

    def ask(self, asked: Ask) -> None:
        wishes = {**self._sight.wishes, asked.wish_id: asked.wish}
        self._show(replace(self._sight, wishes=wishes))

    def settle(self, settled: Settle) -> None:
        wishes = {k: w for k, w in self._sight.wishes.items() if k != settled.wish_id}
        if settled.refused is not None:
            wishes[settled.wish_id] = settled.refused
        self._show(replace(self._sight, wishes=wishes))

    def where(self) -> Where | None:
        return None

    def whole(self) -> Sight | None:
        return self._sight

    def close(self) -> None:
        """Nobody else is there."""

    def _show(self, sight: Sight) -> None:
        self._sight = sight
        self._post(events.Seen(sight=sight, leads=True))
