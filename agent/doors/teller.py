"""What an agent tells of its job to whoever may ask: status, events, story, logs; nothing changes.

Everything is read from values that do not change. Who watches the job gets the agent's last word
before it ends.
"""

import getpass
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from easyscale.agent import events
from easyscale.agent.actions import Exit
from easyscale.agent.balance import explain
from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.doors.metrics import Seen
from easyscale.agent.doors.placements import Placements
from easyscale.agent.doors.status import Own, newest_snapshot, status_of
from easyscale.agent.hardware.meter import Meter, Reading
from easyscale.agent.link import Opened
from easyscale.agent.processes.log_files import log_files, nodes_with_logs, read_piece
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import Now, State
from easyscale.errors import StoreError, UsageError
from easyscale.job_status import Closing, Glance, JobStatus
from easyscale.model import Commit, LogicalRank
from easyscale.rendezvous.election import boottime_s
from easyscale.rendezvous.view import JobView
from easyscale.reports import Summary, stamp

_READ_TIMEOUT_S = 1.0
#: Who asked for the status so lately is watching, and gets the end too, if they ask in time.
_WATCHING_S = 3.0
_LAST_WORD_S = 3.0


class Teller:
    """Answers questions about the job and about this node's part in it; any thread may ask."""

    def __init__(
        self,
        settings: LaunchSettings,
        chronicle: Chronicle,
        *,
        state: Callable[[], State],
        store: Callable[[], Opened | None],
    ) -> None:
        self._settings = settings
        self._chronicle = chronicle
        self._state = state
        self._store = store
        self._placements = Placements()
        self._lock = threading.Lock()
        self._meter: Meter | None = None
        self._metered: tuple[events.Slot, ...] = ()
        self._parsed: JobView | None = None
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
            "plan": self._answer_plan,
            "profile": self._answer_profile,
            "events": self._answer_events,
            "story": self._answer_story,
            "logs": self._answer_logs,
            "log": self._answer_log,
        }

    def follow(self, commit: Commit, *, wall_s: float) -> None:
        """Take note of a generation: where each logical rank is from now on."""
        self._placements.follow(commit, at=stamp(wall_s))

    def say_last_word(self, ending: Exit) -> None:
        """Tell who watches the job how it ended here; those who left do not come."""
        told = self._chronicle.told
        self._closing = Closing(
            exit_code=ending.code,
            reason=ending.reason,
            summary=_sayable(told.summary),
            cause=told.cause,
        )
        since_s = time.monotonic() - _WATCHING_S
        with self._asked:
            watching = {who for who, at_s in self._watchers.items() if at_s >= since_s}
            self._watchers.clear()
            self._asked.wait_for(lambda: self._watchers.keys() >= watching, _LAST_WORD_S)

    def close(self) -> None:
        with self._lock:
            if self._meter is not None:
                self._meter.close()

    # --- the job -------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        """The job as it is now, this node's part known closely."""
        state = self._state()
        view = self.whole_view(state)
        own = self._own(state)
        newest = newest_snapshot(view, own)
        if newest is not None:
            own = replace(own, snapshot_age_s=_age_s(newest.path, own.now.wall_s))
        return status_of(self._settings.job_id, view, wall_s=own.now.wall_s, own=own)

    def seen(self) -> Seen:
        """What is told to who measures it."""
        state = self._state()
        return Seen(
            status=self.status(),
            node=state.node,
            version=version("easyscale-torch"),
            leads=state.token is not None,
            told=self._chronicle.told.counts,
        )

    def whole_view(self, state: State) -> JobView:
        """The leader has it; others, who follow less, read it when somebody asks."""
        is_known = state.token is not None and state.is_complete
        opened = self._store()
        if is_known or opened is None or state.away_s is not None or self._closing is not None:
            return state.view
        try:
            view = opened.store.read(state.keys.prefix, timeout_s=_READ_TIMEOUT_S)
        except StoreError:
            return state.view
        self._parsed = JobView.of(view, state.keys, before=self._parsed)
        return self._parsed

    def _answer_here(self, arguments: Mapping[str, Any]) -> object:
        """That this agent can be asked."""
        del arguments
        state = self._state()
        return {"node": state.node, "leads": state.token is not None}

    def _answer_status(self, arguments: Mapping[str, Any]) -> object:
        closing = self._closing
        status = self.status()
        self._note_watcher(str(arguments.get("watcher", "")))
        return Glance(status=status, closing=closing)

    def _answer_plan(self, arguments: Mapping[str, Any]) -> object:
        """Who computes what, and why."""
        del arguments
        measured_s = self.status().step_time.measured_s
        view = self.whole_view(self._state())
        return explain.of_job(self._settings.job_id, view, measured_s=measured_s)

    def _answer_profile(self, arguments: Mapping[str, Any]) -> object:
        """Throughput against slots, as it was measured last."""
        del arguments
        return self.whole_view(self._state()).profile

    def _answer_slots(self, arguments: Mapping[str, Any]) -> object:
        """The slots of this node alone: whoever asks has the rest, so nothing is read for it."""
        del arguments
        state = self._state()
        own = self._own(state)
        status = status_of(self._settings.job_id, state.view, wall_s=own.now.wall_s, own=own)
        return [slot for slot in status.slots if slot.node == state.node]

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

    def _answer_story(self, arguments: Mapping[str, Any]) -> object:
        """What this agent decided and why, or where one logical rank has been."""
        state = self._state()
        if arguments.get("rank") is not None:
            lines = self._placements.story(LogicalRank(int(arguments["rank"])))
            return {"leads": state.token is not None, "lines": lines}
        began_s = time.time() - boottime_s()
        lines = [
            {
                "at": stamp(began_s + line.at_s),
                "node": state.node,
                "event": line.event,
                "decision": line.decision,
                "reason": line.reason,
            }
            for line in state.story
        ]
        return {"leads": state.token is not None, "lines": lines}

    # --- the logs ------------------------------------------------------------------------------

    @property
    def _log_dir(self) -> Path:
        return Path(self._settings.working_directory) / self._settings.log_dir

    def _answer_logs(self, arguments: Mapping[str, Any]) -> object:
        """The logs in this node's folder: of its workers, and where it is shared of others too.

        Who follows them is waited for at the end until they say that they have all.
        """
        is_closing = self._closing is not None
        files = [
            file
            for node in nodes_with_logs(self._log_dir)
            for file in log_files(self._log_dir, node)
        ]
        if arguments.get("has_all") or not is_closing:
            self._note_watcher(str(arguments.get("watcher", "")))
        return {"files": files, "closing": is_closing}

    def _answer_log(self, arguments: Mapping[str, Any]) -> object:
        """A piece of one of them."""
        since = arguments.get("since_s")
        node, name = str(arguments["node"]), str(arguments["name"])
        if node not in nodes_with_logs(self._log_dir):
            raise UsageError(f"no logs of node {node!r} are here")
        try:
            return read_piece(
                self._log_dir / node,
                name,
                offset=max(0, int(arguments.get("offset", 0))),
                since_s=None if since is None else float(since),
            )
        except OSError as error:
            raise UsageError(f"the log {name} cannot be read: {error.strerror}") from error

    # --- what only this agent knows ------------------------------------------------------------

    def _own(self, state: State) -> Own:
        return Own(
            state=state,
            now=Now(boottime_s(), time.time()),
            told=self._chronicle.told,
            user=_user(),
            readings=self._readings(state),
        )

    def _readings(self, state: State) -> Mapping[str, Reading]:
        pids = {slot: w.pid for slot, w in state.workers.items() if w.pid is not None}
        with self._lock:
            if self._meter is None or self._metered != state.slots:
                if self._meter is not None:
                    self._meter.close()
                self._meter, self._metered = Meter(state.slots), state.slots
            return self._meter.read(pids)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user need not have a name


def _age_s(folder: str, wall_s: float) -> float | None:
    try:
        return max(0.0, wall_s - (Path(folder) / "manifest.json").stat().st_mtime)
    except OSError:
        return None  # it lies on another node


def _sayable(summary: Summary | None) -> Summary | None:
    """JSON has no nan: points that are none are left out of the drawing."""
    if summary is None:
        return None
    history = tuple(value for value in summary.history if math.isfinite(value))
    return msgspec.structs.replace(summary, history=history)
