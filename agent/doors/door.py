"""Who may ask this agent what: everybody who knows the job's token is told, its own user obeyed.

What is asked for becomes an event of the loop; what is told comes from `teller.py`.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from easyscale.agent import events
from easyscale.agent.actions import Exit, FindSlots
from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.control import ControlServer, run_folder
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.doors.prober import QUESTION
from easyscale.agent.doors.remote_door import RemoteDoor
from easyscale.agent.doors.teller import Teller
from easyscale.agent.hardware.devices import Machine, Offer, parse_devices, resolve
from easyscale.agent.link import Opened
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import Stage, State
from easyscale.errors import EasyScaleError, UsageError
from easyscale.model import Commit, JobSpec, Wish

log = logging.getLogger(__name__)


class Door:
    """The two sockets of one agent, local and remote, and what stands behind them."""

    def __init__(
        self,
        settings: LaunchSettings,
        chronicle: Chronicle,
        *,
        host: str,
        state: Callable[[], State],
        store: Callable[[], Opened | None],
        post: Callable[[events.AgentEvent], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._store = store
        self._post = post
        self._server: ControlServer | None = None
        self._remote = _remote_door(host)
        self.teller = Teller(settings, chronicle, state=state, store=store)

    @property
    def address(self) -> str:
        """Where other machines ask; empty where none can."""
        return self._remote.address if self._remote is not None else ""

    def open(self, node: str, spec: JobSpec) -> None:
        """Begin to answer; a machine without a place for sockets is no reason not to train."""
        handlers: dict[str, Handler] = {
            **self.teller.handlers,
            "store": self._answer_store,
            "peers": self._answer_peers,
            "wish": self._take_wish,
            "wishes": self._answer_wishes,
            "devices": self._take_devices,
            "snapshots": self._answer_snapshots,
        }
        if self._remote is not None:
            heard: dict[str, Handler] = {QUESTION: lambda _: {}}
            self._remote.open(token=spec.token, handlers={**self.teller.handlers, **heard})
        try:
            folder = run_folder(self._settings.environment)
            self._server = ControlServer(
                folder, job=self._settings.job_id, node=node, handlers=handlers
            )
        except (EasyScaleError, OSError) as error:
            log.warning("the command line will not find this agent by itself: %s", error)

    def follow(self, commit: Commit) -> None:
        """Take note of a generation."""
        self.teller.follow(commit, wall_s=time.time())

    def close(self, ending: Exit | None) -> None:
        """Answer no more; who watches the job is told first how it ended."""
        if ending is not None:
            self.teller.say_last_word(ending)
        server, self._server = self._server, None
        if server is not None:
            server.close()
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()
        self.teller.close()

    # --- what is asked -------------------------------------------------------------------------

    def _answer_store(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's records are, which nobody else can know of an etcd of our own."""
        del arguments
        opened = self._store()
        assert opened is not None, "the door opens after the store"
        return {"endpoints": str(opened.etcd), "embedded": opened.server is not None}

    def _answer_peers(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's agents are and how to ask them: for this machine's own user."""
        del arguments
        state = self._state()
        view = self.teller.whole_view(state)
        nodes = sorted(view.nodes.items(), key=lambda item: item[1].create_revision)
        return {
            "token": state.spec.token if state.spec is not None else "",
            "nodes": [[name, node.record.address] for name, node in nodes],
        }

    def _answer_snapshots(self, arguments: Mapping[str, Any]) -> object:
        """Where this node's snapshots lie, and what all nodes have recorded of theirs."""
        del arguments
        settings = self._settings
        return {
            "folder": str(Path(settings.working_directory) / settings.snapshot_dir),
            "keep": settings.snapshot_keep,
            "every_steps": settings.snapshot_every_steps,
            "records": list(self.teller.whole_view(self._state()).snapshots.values()),
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
            workers_per_device=self._settings.workers_per_device,
        )

    def _answer_wishes(self, arguments: Mapping[str, Any]) -> object:
        """What somebody asked of the job and has not had yet."""
        del arguments
        return self._state().view.wishes


def _remote_door(host: str) -> RemoteDoor | None:
    try:
        return RemoteDoor(host)
    except OSError as error:
        log.warning("other machines will not reach this agent at %s: %s", host, error)
        return None
