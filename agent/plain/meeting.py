"""Where the nodes of a plain or packed job meet: the seam, and the meeting of one node with itself.

Every method returns at once; what has changed is posted as `Seen`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from easyscale.agent.plain import events
from easyscale.agent.plain.actions import Write
from easyscale.agent.plain.values import Offer, Outcome, Report, RoundPhase, Sight


class Meeting(Protocol):
    """What the driver asks of it."""

    def start(self) -> None:
        """Open it; Met and Seen follow."""

    def offer(self, offer: Offer) -> None:
        """Take part, or take part with other places."""

    def write(self, decision: Write) -> None:
        """As the leader: put it down, if what it rests on still stands."""

    def publish(self, report: Report) -> None:
        """Say what became of this node's workers."""

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

    def write(self, decision: Write) -> None:
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

    def close(self) -> None:
        """Nobody else is there."""

    def _show(self, sight: Sight) -> None:
        self._sight = sight
        self._post(events.Seen(sight=sight, leads=True))
