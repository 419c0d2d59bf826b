"""What an agent tells of its job to whoever may ask: status, events, logs; nothing changes.

Everything is read from values that do not change. Who watches the job gets the agent's last word
before it ends.
"""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.doors.view import AgentView
from easyscale.job_status import Closing, Glance
from easyscale.reports import Summary

#: Who asked for the status so lately is watching, and gets the end too, if they ask in time.
_WATCHING_S = 3.0
_LAST_WORD_S = 3.0


class Teller:
    """Answers what every kind of agent is asked; any thread may ask."""

    def __init__(self, view: AgentView, chronicle: Chronicle) -> None:
        self._view = view
        self._chronicle = chronicle
        #: Who watches -> when they asked last.
        self._watchers: dict[str, float] = {}
        self._asked = threading.Condition()
        self._closing: Closing | None = None

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """The questions that are answered, by name."""
        return {
            "here": self._answer_here,
            "status": self._answer_status,
            "slots": self._answer_slots,
            "events": self._answer_events,
            "logs": self._answer_logs,
            "log": self._answer_log,
            **self._view.told,
        }

    def say_last_word(self, *, code: int, reason: str) -> None:
        """Tell who watches the job how it ended here; those who left do not come."""
        told = self._chronicle.told
        self._view.settle()
        self._closing = Closing(
            exit_code=code, reason=reason, summary=_sayable(told.summary), cause=told.cause
        )
        since_s = time.monotonic() - _WATCHING_S
        with self._asked:
            watching = {who for who, at_s in self._watchers.items() if at_s >= since_s}
            self._watchers.clear()
            self._asked.wait_for(lambda: self._watchers.keys() >= watching, _LAST_WORD_S)

    def _answer_here(self, arguments: Mapping[str, Any]) -> object:
        """That this agent can be asked."""
        del arguments
        return {"node": self._view.node, "leads": self._view.leads}

    def _answer_status(self, arguments: Mapping[str, Any]) -> object:
        closing = self._closing
        status = self._view.status()
        self._note_watcher(str(arguments.get("watcher", "")))
        return Glance(status=status, closing=closing)

    def _answer_slots(self, arguments: Mapping[str, Any]) -> object:
        del arguments
        return list(self._view.own_slots())

    def _note_watcher(self, who: str) -> None:
        if who:
            with self._asked:
                self._watchers[who] = time.monotonic()
                self._asked.notify_all()

    def _answer_events(self, arguments: Mapping[str, Any]) -> object:
        """Those from number `after` on, and the number of the next."""
        is_closing, told = self._closing is not None, self._chronicle.told
        skipped = max(0, int(arguments.get("after", 0)) - told.dropped)
        self._note_watcher(str(arguments.get("watcher", "")))
        return {
            "events": told.events[skipped:],
            "next": told.dropped + len(told.events),
            "closing": is_closing,
        }

    def _answer_logs(self, arguments: Mapping[str, Any]) -> object:
        """The logs that this agent has.

        Who follows them is waited for at the end until they say that they have all.
        """
        is_closing = self._closing is not None
        files = list(self._view.logs())
        if arguments.get("has_all") or not is_closing:
            self._note_watcher(str(arguments.get("watcher", "")))
        return {"files": files, "closing": is_closing}

    def _answer_log(self, arguments: Mapping[str, Any]) -> object:
        """A piece of one of them."""
        since = arguments.get("since_s")
        return self._view.log(
            str(arguments["node"]),
            str(arguments["name"]),
            offset=max(0, int(arguments.get("offset", 0))),
            since_s=None if since is None else float(since),
        )


def _sayable(summary: Summary | None) -> Summary | None:
    """JSON has no nan: points that are none are left out of the drawing."""
    if summary is None:
        return None
    history = tuple(value for value in summary.history if math.isfinite(value))
    return msgspec.structs.replace(summary, history=history)
