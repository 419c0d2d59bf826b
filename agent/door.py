"""What an agent answers to the command line on its machine: status, events, story, wishes.

Everything is read from values that do not change; what is asked for becomes an event of the loop.
A person who watches the job gets the agent's last word before it ends.
"""

import getpass
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from easyscale.agent import events
from easyscale.agent.actions import Exit, FindSlots
from easyscale.agent.chronicle import Chronicle
from easyscale.agent.control import ControlServer, run_folder
from easyscale.agent.devices import Machine, Offer, parse_devices, resolve
from easyscale.agent.link import Opened
from easyscale.agent.meter import Meter, Reading
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import Now, Stage, State
from easyscale.agent.status import Own, newest_snapshot, status_of
from easyscale.errors import EasyScaleError, StoreError, UsageError
from easyscale.job_status import Closing, Glance
from easyscale.model import Wish
from easyscale.rendezvous.election import boottime_s
from easyscale.rendezvous.view import JobView
from easyscale.reports import Summary, stamp

log = logging.getLogger(__name__)

_READ_TIMEOUT_S = 1.0
#: Who asked for the status so lately is watching, and gets the end too, if they ask in time.
_WATCHING_S = 3.0
_LAST_WORD_S = 3.0


class Door:
    """The control socket of one agent and what stands behind it."""

    def __init__(
        self,
        settings: LaunchSettings,
        chronicle: Chronicle,
        *,
        state: Callable[[], State],
        store: Callable[[], Opened | None],
        post: Callable[[events.AgentEvent], None],
    ) -> None:
        self._settings = settings
        self._chronicle = chronicle
        self._state = state
        self._store = store
        self._post = post
        self._server: ControlServer | None = None
        self._lock = threading.Lock()
        self._meter: Meter | None = None
        self._metered: tuple[events.Slot, ...] = ()
        self._parsed: JobView | None = None
        #: Who watches -> when they asked last.
        self._watchers: dict[str, float] = {}
        self._asked = threading.Condition()
        self._closing: Closing | None = None

    def open(self, node: str) -> None:
        """Begin to answer; a machine without a place for sockets is no reason not to train."""
        handlers = {
            "status": self._answer_status,
            "events": self._answer_events,
            "story": self._answer_story,
            "store": self._answer_store,
            "wish": self._take_wish,
            "wishes": self._answer_wishes,
            "devices": self._take_devices,
            "snapshots": self._answer_snapshots,
        }
        try:
            folder = run_folder(self._settings.environment)
            self._server = ControlServer(
                folder, job=self._settings.job_id, node=node, handlers=handlers
            )
        except (EasyScaleError, OSError) as error:
            log.warning("the command line will not find this agent by itself: %s", error)

    def close(self, ending: Exit | None) -> None:
        """Answer no more; who watches the job is told first how it ended."""
        if self._server is None:
            return
        if ending is not None:
            told = self._chronicle.told
            self._closing = Closing(
                exit_code=ending.code,
                reason=ending.reason,
                summary=_sayable(told.summary),
                cause=told.cause,
            )
            self._await_watchers()
        server, self._server = self._server, None
        server.close()
        with self._lock:
            if self._meter is not None:
                self._meter.close()

    def _await_watchers(self) -> None:
        """Give those who watch the time to ask once more; those who left do not come."""
        since_s = time.monotonic() - _WATCHING_S
        with self._asked:
            watching = {who for who, at_s in self._watchers.items() if at_s >= since_s}
            self._watchers.clear()
            self._asked.wait_for(lambda: self._watchers.keys() >= watching, _LAST_WORD_S)

    # --- what is asked -------------------------------------------------------------------------

    def _answer_status(self, arguments: Mapping[str, Any]) -> object:
        closing, state = self._closing, self._state()
        view = self._whole_view(state)
        now = Now(boottime_s(), time.time())
        own = Own(
            state=state,
            now=now,
            told=self._chronicle.told,
            user=_user(),
            readings=self._readings(state),
        )
        newest = newest_snapshot(view, own)
        if newest is not None:
            own = replace(own, snapshot_age_s=_age_s(newest.path, now.wall_s))
        status = status_of(self._settings.job_id, view, wall_s=now.wall_s, own=own)
        self._note_watcher(str(arguments.get("watcher", "")))
        return Glance(status=status, closing=closing)

    def _note_watcher(self, who: str) -> None:
        if who:
            with self._asked:
                self._watchers[who] = time.monotonic()
                self._asked.notify_all()

    def _answer_events(self, arguments: Mapping[str, Any]) -> object:
        """Those from number `after` on, and the number of the next."""
        told = self._chronicle.told
        skipped = max(0, int(arguments.get("after", 0)) - told.dropped)
        return {
            "events": told.events[skipped:],
            "next": told.dropped + len(told.events),
            "closing": self._closing is not None,
        }

    def _answer_story(self, arguments: Mapping[str, Any]) -> object:
        del arguments
        began_s = time.time() - boottime_s()
        return [
            {
                "at": stamp(began_s + line.at_s),
                "event": line.event,
                "decision": line.decision,
                "reason": line.reason,
            }
            for line in self._state().story
        ]

    def _answer_store(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's records are, which nobody else can know of an etcd of our own."""
        del arguments
        opened = self._store()
        assert opened is not None, "the door opens after the store"
        return {"endpoints": str(opened.etcd), "embedded": opened.server is not None}

    def _answer_snapshots(self, arguments: Mapping[str, Any]) -> object:
        """Where this node's snapshots lie, and what all nodes have recorded of theirs."""
        del arguments
        settings = self._settings
        return {
            "folder": str(Path(settings.working_directory) / settings.snapshot_dir),
            "keep": settings.snapshot_keep,
            "every_steps": settings.snapshot_every_steps,
            "records": list(self._whole_view(self._state()).snapshots.values()),
        }

    def _take_wish(self, arguments: Mapping[str, Any]) -> object:
        wish = msgspec.convert(arguments, Wish)
        wish_id = secrets.token_hex(8)
        self._post(events.Asked(wish_id=wish_id, wish=wish))
        return {"wish": wish_id}

    def _take_devices(self, arguments: Mapping[str, Any]) -> object:
        """Offer other slots from now on; refused at once where this node cannot grant them."""
        word, by = str(arguments["devices"]), str(arguments.get("by", ""))
        if self._state().stage is not Stage.RUNNING:
            raise UsageError(
                f"node {self._settings.node_name} is leaving; its slots stay withdrawn"
            )
        offer = self._resolve(word, option="--set")
        self._post(events.SlotsFound(slots=offer.slots, reason=by))
        return {"slots": [slot.name for slot in offer.slots], "notes": offer.notes}

    def find_slots(self, asked: FindSlots) -> None:
        """The same for whoever asked from elsewhere; a driver in trouble keeps nobody waiting."""
        thread = threading.Thread(target=self._answer_wish, args=(asked,), daemon=True)
        thread.start()

    def _answer_wish(self, asked: FindSlots) -> None:
        try:
            offer = self._resolve(asked.devices, option="--set")
        except EasyScaleError as error:
            self._post(events.SlotsRefused(wish_id=asked.wish_id, reason=error.message))
            return
        found = events.SlotsFound(slots=offer.slots, reason=asked.by, wish_id=asked.wish_id)
        self._post(found)

    def _resolve(self, word: str, *, option: str) -> Offer:
        return resolve(
            parse_devices(word, option=option),
            Machine(visible=self._settings.environment.get("CUDA_VISIBLE_DEVICES")),
            threads_per_worker=self._settings.threads_per_worker,
        )

    def _answer_wishes(self, arguments: Mapping[str, Any]) -> object:
        """What somebody asked of the job and has not had yet."""
        del arguments
        return self._state().view.wishes

    # --- what is known -------------------------------------------------------------------------

    def _whole_view(self, state: State) -> JobView:
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
