"""The only loop: gathers events, asks the pure machine, performs its actions.

`easyscale launch` is this node's agent: the loop runs in the main thread of that process, which is
the parent of everything the agent starts.
"""

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from easyscale.agent import actions, events, machine
from easyscale.agent.balance.keeping import keep_profile
from easyscale.agent.code_check import CodeCheck
from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.control import swept_folder
from easyscale.agent.doors.door import Door
from easyscale.agent.doors.elastic import ElasticView
from easyscale.agent.doors.orders import Orders
from easyscale.agent.doors.prober import probe
from easyscale.agent.hardware.devices import Offer
from easyscale.agent.hardware.devices_file import DevicesFile
from easyscale.agent.hardware.gpu_watch import GpuWatch
from easyscale.agent.inbox import Inbox
from easyscale.agent.link import StoreLink
from easyscale.agent.outfit import fork_request, identity_of, local_host, training_members
from easyscale.agent.processes.guard import LeaseGuard
from easyscale.agent.processes.orphans import OrphanReaper, is_init
from easyscale.agent.processes.supervisor import CLOSE_TIMEOUT_S, Supervisor
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.snapshots import Catalogue
from easyscale.balance import ProfileRecord
from easyscale.model import WorkerId
from easyscale.pulse import Beat
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.membership import boottime_s
from easyscale.reports import Audience, EventKind, Fact, JobEvent

if TYPE_CHECKING:
    from easyscale.agent.doors.metrics_server import MetricsServer

log = logging.getLogger(__name__)


class Driver:
    """One launch: the machine's state and everything that carries out its actions."""

    def __init__(
        self,
        settings: LaunchSettings,
        audience: Audience,
        *,
        slots: tuple[events.Slot, ...],
        catalogue: Catalogue,
        inbox: Inbox,
        supervisor: Supervisor,
    ) -> None:
        self._settings = settings
        self._audience = Chronicle(audience)
        self._slots = slots
        self._catalogue = catalogue
        self._inbox = inbox
        self._supervisor = supervisor
        self._workers: dict[WorkerId, None] = {}
        self._exit: actions.Exit | None = None
        self._guard: LeaseGuard | None = None
        self._orders = Orders(
            settings,
            state=lambda: self._state,
            view=lambda: self._view.whole_view(self._state),
            post=self._inbox.put,
        )
        self._view = ElasticView(
            settings,
            self._audience,
            self._orders,
            state=lambda: self._state,
            store=lambda: self._link.opened,
        )
        self._door = Door(self._view, self._audience, environment=settings.environment)
        self._door.bind(local_host(settings))
        self._metrics = self._metrics_server()
        self._identity = identity_of(settings, address=self._door.address)
        self._code = CodeCheck(settings)
        self._told_changes: set[str] = set()
        self._link = StoreLink(
            settings,
            catalogue,
            self._code,
            post=self._inbox.put,
            tell=lambda text: audience.event(_note(settings.job_id, text)),
            fail=self._inbox.fail,
        )
        self._gpus = GpuWatch(self._inbox.put) if any(slot.uuid for slot in slots) else None
        self._state = machine.begin(settings, self._identity, now=_now())
        self._orphans = OrphanReaper() if is_init() else None
        self._devices_file = self._follow_devices() if settings.devices_file else None

    def run(self, *, notes: Sequence[str]) -> int:
        """Loop until the machine says Exit."""
        self._link.start()
        self._open_audience(notes)
        self._handle(events.SlotsFound(slots=self._slots))
        if self._devices_file is not None:
            self._devices_file.start()
        if self._gpus is not None:
            self._gpus.start()
        if self._orphans is not None:
            self._orphans.start()
        while self._exit is None:
            self._handle(self._next_event())
        log.info("agent ends", extra={"code": self._exit.code, "reason": self._exit.reason})
        return self._exit.code

    def close(self) -> None:
        """End everything this agent started; a second call does nothing."""
        if self._exit is not None:
            self._door.say_last_word(code=self._exit.code, reason=self._exit.reason)
        self._door.close()
        if self._metrics is not None:
            self._metrics.close()
        if self._devices_file is not None:
            self._devices_file.close()
        if self._gpus is not None:
            self._gpus.close()
        if self._orphans is not None:
            self._orphans.close()
        self._supervisor.close(deadline_s=CLOSE_TIMEOUT_S)
        self._link.close(within_s=self._exit.farewell_s if self._exit is not None else None)
        if self._guard is not None:
            self._guard.close()

    # --- events --------------------------------------------------------------------------------

    def _next_event(self) -> events.AgentEvent:
        """The next event, or the tick that is due first."""
        wake_s = machine.deadline(self._state, _now())
        return self._inbox.take(self._read_beats, is_busy=bool(self._workers), wake_s=wake_s)

    def _read_beats(self) -> dict[WorkerId, Beat]:
        beats: dict[WorkerId, Beat] = {}
        for worker in self._workers:
            beat = self._supervisor.beat(worker)
            if beat is not None:
                beats[worker] = beat
        return beats

    def _handle(self, event: events.AgentEvent) -> None:
        self._attend(event)
        known = self._state.commit
        self._state, wanted, reason = machine.step(self._state, event, _now())
        if self._state.commit is not None and self._state.commit is not known:
            self._view.follow(self._state.commit, wall_s=time.time())
        if reason:
            log.info("%s", reason, extra={"event": type(event).__name__})
        for action in wanted:
            self._perform(action)

    def _attend(self, event: events.AgentEvent) -> None:
        """Keep what stands beside the machine current: lease guard, local door, own workers."""
        match event:
            case events.JobOpened():
                # The machine has not taken it in yet, and the door opens for who knows its token.
                self._door.open()
                self._start_metrics()
                self._post_guard()
            case events.Enrolled():
                membership = self._link.membership
                if self._guard is not None and membership is not None and membership.lease:
                    self._guard.hold(membership.lease)
            case events.WorkerForked(pid=pid):
                if self._guard is not None:
                    self._guard.watch(pid)
            case events.SlotsFound(slots=slots):
                self._slots = slots
            case events.WorkerExited(worker=worker):
                self._workers.pop(worker, None)
                self._catalogue.forget_writer(worker)
            case _:
                pass

    def _follow_devices(self) -> DevicesFile:
        settings = self._settings

        def offer(found: Offer, reason: str) -> None:
            self._inbox.put(events.SlotsFound(slots=found.slots, reason=reason))

        def refuse(reason: str) -> None:
            self._audience.event(_note(settings.job_id, reason))

        return DevicesFile(
            Path(settings.devices_file),
            threads_per_worker=settings.threads_per_worker,
            workers_per_device=settings.workers_per_device,
            visible=settings.environment.get("CUDA_VISIBLE_DEVICES"),
            offered=lambda: [slot.name for slot in self._slots],
            offer=offer,
            refuse=refuse,
        )

    def _metrics_server(self) -> "MetricsServer | None":
        """Bound before anything else: a port that is taken ends the launch at once."""
        if self._settings.metrics_port is None:
            return None
        from easyscale.agent.doors.metrics_server import MetricsServer  # noqa: PLC0415 - only who asks

        return MetricsServer(self._settings.metrics_port, self._view.seen)

    def _start_metrics(self) -> None:
        if self._metrics is not None:
            self._metrics.start()
            where = f"http://{self._identity.host}:{self._metrics.port}/metrics"
            self._audience.event(_note(self._settings.job_id, f"metrics at {where}"))

    def _post_guard(self) -> None:
        """An etcd of our own ends with us: then nobody is left to be told."""
        opened = self._link.opened
        if opened is None or opened.server is not None:
            return
        self._guard = LeaseGuard.start(
            opened.etcd,
            JobKeys.of(self._settings.job_id),
            node=self._identity.node,
            incarnation=self._identity.incarnation,
            sockets=swept_folder(self._settings.environment),
        )
        if self._supervisor.zygote_pid is not None:
            self._guard.watch(self._supervisor.zygote_pid)

    # --- actions -------------------------------------------------------------------------------

    def _perform(self, action: actions.AgentAction) -> None:
        match action:
            case actions.StartZygote():
                self._start_zygote()
            case actions.Fork(worker=worker):
                self._fork(worker)
            case actions.Tell(worker=worker, message=message):
                self._supervisor.send(worker, message)
            case actions.StopWorker(worker=worker, reason=reason):
                self._supervisor.stop(worker, reason=reason)
            case actions.KillWorker(worker=worker, reason=reason):
                self._supervisor.kill(worker, reason=reason)
            case actions.DumpStacks(worker=worker):
                self._supervisor.dump_stacks(worker)
            case (
                actions.Enrol()
                | actions.Write()
                | actions.Transact()
                | actions.Campaign()
                | actions.Resign()
                | actions.Leave()
            ):
                self._link.take(action)
            case actions.FindSlots():
                self._orders.find_slots(action)
            case actions.Probe():
                self._probe(action)
            case actions.DeleteSnapshots(names=names):
                self._catalogue.delete(names)
            case actions.KeepProfile(record=record):
                self._keep_profile(record)
            case actions.Announce(event=event):
                self._audience.event(event)
            case actions.ShowProgress(progress=progress):
                self._audience.progress(progress)
            case actions.ReportCause(cause=cause):
                self._audience.fail(cause)
            case actions.Conclude(summary=summary):
                self._audience.finish(summary)
            case actions.Exit():
                self._exit = action
            case _:
                assert_never(action)

    def _start_zygote(self) -> None:
        self._supervisor.start()
        if self._guard is not None and self._supervisor.zygote_pid is not None:
            self._guard.watch(self._supervisor.zygote_pid)

    def _probe(self, action: actions.Probe) -> None:
        opened, spec = self._link.opened, self._state.spec
        assert opened is not None
        assert spec is not None
        keys, post = JobKeys.of(self._settings.job_id), self._inbox.put
        probe(action, keys=keys, store=opened.store, token=spec.token, post=post)

    def _fork(self, worker: WorkerId) -> None:
        """A script that was edited since would bring other code into the job."""
        if changed := self._code.changed():
            if changed not in self._told_changes:  # a slot is tried more than once
                self._told_changes.add(changed)
                told = f"no new worker on {worker.place}: {changed}"
                self._audience.event(_note(self._settings.job_id, told))
            self._inbox.put(events.ForkFailed(worker=worker, reason=changed))
            return
        self._workers[worker] = None
        spec = self._state.spec
        assert spec is not None, "workers are forked once the job is open"
        offered = (slot for slot in self._slots if slot.name == worker.slot)
        slot = next(offered, events.Slot(name=worker.slot))  # a standby's slot may be offered later
        members = training_members(self._state)
        self._supervisor.fork(
            fork_request(self._settings, spec, worker, slot=slot, members=members)
        )

    def _keep_profile(self, record: ProfileRecord) -> None:
        try:
            keep_profile(Path(self._settings.snapshot_dir), record)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            text = f"the profile is not kept in {self._settings.snapshot_dir}: {why}"
            self._audience.event(_note(self._settings.job_id, text))

    def _open_audience(self, notes: Sequence[str]) -> None:
        settings = self._settings
        facts: dict[str, Fact] = {
            "node": self._identity.node,
            "logical_workers": settings.logical_workers,
            "determinism": settings.determinism.level,
            "snapshot_dir": settings.snapshot_dir,
            "log_dir": settings.log_dir,
            "mode": "elastic",
        }
        self._audience.open(job=settings.job_id, facts=facts)
        for note in notes:
            self._audience.event(_note(settings.job_id, note))


def _now() -> machine.Now:
    return machine.Now(s=boottime_s(), wall_s=time.time())


def _note(job: str, text: str) -> JobEvent:
    at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return JobEvent(at=at, job=job, event=EventKind.NOTE, step=0, era=0, generation=0, reason=text)
