"""An elastic agent as its doors show it: the job's status, plan, profile, story and logs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from easyscale.agent.balance import explain
from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.dialogue import Handler
from easyscale.agent.doors.metrics import Seen
from easyscale.agent.doors.orders import Orders
from easyscale.agent.doors.placements import Placements
from easyscale.agent.doors.readings import Readings, user_name
from easyscale.agent.doors.status import Own, newest_snapshot, status_of
from easyscale.agent.opening import Opened
from easyscale.agent.processes.log_files import (
    LogFile,
    Piece,
    log_files,
    nodes_with_logs,
    read_piece,
)
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import Now, State
from easyscale.errors import StoreError, UsageError
from easyscale.job_status import JobStatus, SlotFacts
from easyscale.model import Commit, LogicalRank
from easyscale.rendezvous.election import boottime_s
from easyscale.rendezvous.view import JobView
from easyscale.reports import stamp

_READ_TIMEOUT_S = 1.0


class ElasticView:
    """Implements `AgentView` for an agent whose workers call easyscale; any thread may ask."""

    def __init__(
        self,
        settings: LaunchSettings,
        chronicle: Chronicle,
        orders: Orders,
        *,
        state: Callable[[], State],
        store: Callable[[], Opened | None],
    ) -> None:
        self._settings = settings
        self._chronicle = chronicle
        self._orders = orders
        self._state = state
        self._store = store
        self._placements = Placements()
        self._readings = Readings()
        self._parsed: JobView | None = None
        #: What this agent knew as it ended; nothing reaches its own view any more.
        self._settled: JobView | None = None

    @property
    def job(self) -> str:
        return self._settings.job_id

    @property
    def node(self) -> str:
        return self._state().node

    @property
    def leads(self) -> bool:
        return self._state().token is not None

    @property
    def token(self) -> str:
        """As the job has it now: an agent may go on with one that others began."""
        spec = self._state().spec
        return spec.token if spec is not None else ""

    @property
    def told(self) -> Mapping[str, Handler]:
        return {
            "plan": self._answer_plan,
            "profile": self._answer_profile,
            "story": self._answer_story,
        }

    @property
    def obeyed(self) -> Mapping[str, Handler]:
        return {
            "store": self._answer_store,
            "peers": self._answer_peers,
            "snapshots": self._answer_snapshots,
            "wishes": self._answer_wishes,
            **self._orders.handlers,
        }

    def follow(self, commit: Commit, *, wall_s: float) -> None:
        """Take note of a generation: where each logical rank is from now on."""
        self._placements.follow(commit, at=stamp(wall_s))

    def settle(self) -> None:
        self._settled = self.whole_view(self._state())

    def close(self) -> None:
        self._readings.close()

    # --- the job -------------------------------------------------------------------------------

    def status(self) -> JobStatus:
        state = self._state()
        view = self.whole_view(state)
        own = self._own(state)
        newest = newest_snapshot(view, own)
        if newest is not None:
            own = replace(own, snapshot_age_s=_age_s(newest.path, own.now.wall_s))
        return status_of(self.job, view, wall_s=own.now.wall_s, own=own)

    def own_slots(self) -> Sequence[SlotFacts]:
        state = self._state()
        own = self._own(state)
        status = status_of(self.job, state.view, wall_s=own.now.wall_s, own=own)
        return [slot for slot in status.slots if slot.node == state.node]

    def seen(self) -> Seen:
        """What is told to who measures it."""
        return Seen(
            status=self.status(),
            node=self.node,
            version=version("easyscale-torch"),
            leads=self.leads,
            told=self._chronicle.told.counts,
        )

    def whole_view(self, state: State) -> JobView:
        """The leader has it; others, who follow less, read it when somebody asks."""
        if self._settled is not None:
            return self._settled
        is_known = state.token is not None and state.is_complete
        opened = self._store()
        if is_known or opened is None or state.away_s is not None:
            return state.view
        try:
            view = opened.store.read(state.keys.prefix, timeout_s=_READ_TIMEOUT_S)
        except StoreError:
            return state.view
        self._parsed = JobView.of(view, state.keys, before=self._parsed)
        return self._parsed

    def _own(self, state: State) -> Own:
        pids = {slot: w.pid for slot, w in state.workers.items() if w.pid is not None}
        return Own(
            state=state,
            now=Now(boottime_s(), time.time()),
            told=self._chronicle.told,
            user=user_name(),
            readings=self._readings.of(state.slots, pids),
        )

    # --- what is asked -------------------------------------------------------------------------

    def _answer_plan(self, arguments: Mapping[str, Any]) -> object:
        """Who computes what, and why."""
        del arguments
        measured_s = self.status().step_time.measured_s
        return explain.of_job(self.job, self.whole_view(self._state()), measured_s=measured_s)

    def _answer_profile(self, arguments: Mapping[str, Any]) -> object:
        """Throughput against slots, as it was measured last."""
        del arguments
        return self.whole_view(self._state()).profile

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

    def _answer_store(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's records are, which nobody else can know of an etcd of our own."""
        del arguments
        opened = self._store()
        assert opened is not None, "the door opens after the store"
        return {"endpoints": str(opened.etcd), "embedded": opened.server is not None}

    def _answer_peers(self, arguments: Mapping[str, Any]) -> object:
        """Where the job's agents are and how to ask them: for this machine's own user."""
        del arguments
        view = self.whole_view(self._state())
        nodes = sorted(view.nodes.items(), key=lambda item: item[1].create_revision)
        return {
            "token": self.token,
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
            "records": list(self.whole_view(self._state()).snapshots.values()),
        }

    def _answer_wishes(self, arguments: Mapping[str, Any]) -> object:
        """What somebody asked of the job and has not had yet."""
        del arguments
        return self._state().view.wishes

    # --- the logs ------------------------------------------------------------------------------

    @property
    def _log_dir(self) -> Path:
        return Path(self._settings.working_directory) / self._settings.log_dir

    def logs(self) -> Sequence[LogFile]:
        """Those in this node's folder: of its workers, and where it is shared of others too."""
        nodes = nodes_with_logs(self._log_dir)
        return [file for node in nodes for file in log_files(self._log_dir, node)]

    def log(self, node: str, name: str, *, offset: int, since_s: float | None) -> Piece:
        if node not in nodes_with_logs(self._log_dir):
            raise UsageError(f"no logs of node {node!r} are here")
        try:
            return read_piece(self._log_dir / node, name, offset=offset, since_s=since_s)
        except OSError as error:
            raise UsageError(f"the log {name} cannot be read: {error.strerror}") from error


def _age_s(folder: str, wall_s: float) -> float | None:
    try:
        return max(0.0, wall_s - (Path(folder) / "manifest.json").stat().st_mtime)
    except OSError:
        return None  # it lies on another node
