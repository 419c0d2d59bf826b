"""Plays a planned run with real workers on this machine: forks them, commits layouts, ends them.

It stands in for an agent and its leader where every change is known beforehand, so that two runs
differ in nothing but their layout: no etcd, no planner, changes before the step they are meant for.
"""

import queue
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from easyscale.agent import events
from easyscale.agent.events import Event, Slot
from easyscale.agent.hardware.devices import slot_environment
from easyscale.agent.processes.supervisor import Supervisor, SupervisorSettings
from easyscale.agent.processes.zygote_link import ZygoteSettings
from easyscale.agent.verify.scenes import Scene, Shares
from easyscale.errors import EasyScaleError
from easyscale.messages import (
    Committed,
    Entered,
    Failure,
    Finished,
    ForkRequest,
    Message,
    Note,
    Registered,
    ScriptTarget,
    SnapshotWritten,
    WorkerSettings,
)
from easyscale.model import (
    Commit,
    Determinism,
    GenerationNumber,
    LogicalRank,
    Member,
    Mode,
    SnapshotReference,
    WorkerId,
)
from easyscale.pulse import Phase
from easyscale.recording import Gate, Recording

#: Two hosts, since sets of text have another order in each process that python starts.
HOSTS = ("a", "b")
#: A run in which nothing moves for so long does not come to its end; scripts may load for long.
SILENCE_S = 600.0
_CLOSE_S = 10.0
_LOOK_S = 0.01
_LIMITS_S = {"forming": 30.0, "exchange": 60.0, "linger": 10.0}


class RunFailed(EasyScaleError):
    """Raised when a run did not come to its end; `failure` is the script's own, if it was that."""

    code = "run_failed"

    def __init__(self, message: str, *, failure: Failure | None = None, log: str = "") -> None:
        super().__init__(message)
        self.failure = failure
        self.log = log


class RehearsalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all runs share."""

    script: ScriptTarget
    python: str
    environment: Mapping[str, str]
    working_directory: Path
    folder: Path
    logical_workers: int
    seed: int | None
    determinism: Determinism
    threads_per_worker: int
    partials: str
    preload: tuple[str, ...]
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class Hand:
    """One worker of a run."""

    id: WorkerId
    number: int
    address: str = ""
    #: The number of the newest generation that it has entered.
    entered: int = 0
    ended: events.WorkerExited | None = None
    finished: Finished | None = None
    failure: Failure | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A run that came to its end."""

    #: More than one where the workers of the run do not even agree with one another.
    digests: tuple[str, ...]
    step: int
    seconds: float
    folder: Path
    notes: tuple[str, ...]


#: Told where a run is, a few times a second.
Told = Callable[[int], None]


class Hosts:
    """The zygotes of all runs: torch is imported once in each, not once a worker."""

    def __init__(self, settings: RehearsalSettings, *, names: tuple[str, ...] = HOSTS) -> None:
        self.settings = settings
        self.names = names
        self.inbox: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._supervisors = {
            host: Supervisor(self._supervisor_settings(host, number), self.inbox.put, _discard)
            for number, host in enumerate(names, start=1)
        }

    def start(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.start()

    def close(self) -> None:
        for supervisor in self._supervisors.values():
            supervisor.close(deadline_s=_CLOSE_S)

    def of(self, worker: WorkerId) -> Supervisor:
        return self._supervisors[worker.node]

    def _supervisor_settings(self, host: str, number: int) -> SupervisorSettings:
        settings = self.settings
        log_dir = settings.folder / "logs"
        return SupervisorSettings(
            log_dir=log_dir,
            zygote=ZygoteSettings(
                python=settings.python,
                environment={"PYTHONHASHSEED": str(number), **settings.environment},
                log_file=log_dir / host / "zygote.log",
                threads_per_worker=settings.threads_per_worker,
                determinism=settings.determinism,
                workers=len(self.names) * 8,
                preload=settings.preload,
            ),
        )


def _discard(*_: object) -> None:
    """What workers print lies in their log files."""


class Rehearsal:
    """One run of one scene."""

    def __init__(self, hosts: Hosts, scene: Scene, recording: Recording, *, number: int) -> None:
        self._hosts = hosts
        self._settings = hosts.settings
        self._scene = scene
        self._recording = recording
        self._number = number
        self._hands: dict[WorkerId, Hand] = {}
        self._generation = 0
        self._main: WorkerId | None = None
        self._snapshot: SnapshotWritten | None = None
        self._notes: list[str] = []
        self._moved_s = time.monotonic()
        self._seen: dict[WorkerId, tuple[int, int]] = {}
        self._told: Told = _nobody
        self._spawned = 0

    def play(self, told: Told) -> Outcome:
        """Run it to its end; raises RunFailed. Nothing of it is left when this returns."""
        began_s = time.monotonic()
        self._told = told
        Path(self._recording.folder).mkdir(parents=True, exist_ok=True)
        try:
            last = self._play()
        finally:
            self._end_all()
        digests = sorted({hand.finished.digest for hand in last if hand.finished is not None})
        if not digests:
            raise RunFailed("the script ended before its training did")
        return Outcome(
            digests=tuple(digests),
            step=max(hand.finished.step for hand in last if hand.finished is not None),
            seconds=time.monotonic() - began_s,
            folder=Path(self._recording.folder),
            notes=tuple(dict.fromkeys(self._notes)),
        )

    # --- the course of a run ---------------------------------------------------------------------

    def _play(self) -> list[Hand]:
        scene = self._scene
        hands = self._start(scene.workers, gates=self._gates())
        self._commit(Mode.RESTORE, hands, scene.shares)
        for change in scene.changes:
            self._await_gate(hands, change.step - 1)
            self._commit(Mode.BOUNDARY, hands, change.shares)
        if scene.killed is not None:
            victim, change = scene.killed
            self._until(lambda: hands[victim].ended is not None)
            self._commit(Mode.NOW, hands, change.shares)
        if scene.restored is not None:
            self._await_gate(hands, scene.restored.step - 1)
            self._commit(Mode.BOUNDARY, hands, ())
            self._until(lambda: all(hand.ended is not None for hand in hands))
            hands = self._start(len(scene.restored.shares), gates=())
            self._commit(Mode.RESTORE, hands, scene.restored.shares, snapshot=self._reference())
        self._until(lambda: all(hand.ended is not None for hand in hands))
        return hands

    def _gates(self) -> tuple[Gate, ...]:
        """Before the step in which the headers are to agree on a change."""
        scene = self._scene
        steps = [change.step for change in scene.changes]
        if scene.restored is not None:
            steps.append(scene.restored.step)
        return tuple(Gate(step - 1, number) for number, step in enumerate(steps, start=2))

    def _start(self, count: int, *, gates: tuple[Gate, ...]) -> list[Hand]:
        hands = []
        for number in range(count):
            hand = Hand(self._worker_id(number), number)
            self._hands[hand.id] = hand
            hands.append(hand)
            self._hosts.of(hand.id).fork(self._request(hand, gates))
        self._until(lambda: all(hand.address for hand in hands))
        return hands

    def _commit(
        self,
        mode: Mode,
        hands: list[Hand],
        shares: Shares,
        *,
        snapshot: SnapshotReference | None = None,
    ) -> None:
        self._generation += 1
        members = tuple(
            Member(hand.id, hand.address, tuple(LogicalRank(rank) for rank in share))
            for hand, share in zip(hands, shares, strict=False)
            if share is not None
        )
        workers = [member.worker for member in members]
        if members and self._main not in workers:
            self._main = next(one.worker for one in members if 0 in one.ranks)
        commit = Commit(
            generation=GenerationNumber(1, self._generation),
            mode=mode,
            members=members,
            main=self._main,
            reason=f"planned: {self._scene.name}",
            snapshot=snapshot,
        )
        for hand in hands:
            if hand.ended is None:
                self._send(hand, Committed(commit=commit))

    def _reference(self) -> SnapshotReference:
        written = self._snapshot
        if written is None:
            raise RunFailed("the run paused and no snapshot of it was written")
        return SnapshotReference(written.name, written.step, written.digest)

    def _await_gate(self, hands: list[Hand], step: int) -> None:
        """Until every worker that runs stands before this step and waits for what is due there."""

        def stands_there(hand: Hand) -> bool:
            beat = self._hosts.of(hand.id).beat(hand.id)
            return beat is not None and beat.phase is Phase.WAITING and beat.step == step

        # One change after the other; who waits at the start of its script stands nowhere yet.
        members = [hand for hand in hands if hand.ended is None and self._is_member(hand)]
        self._until(lambda: all(hand.entered == self._generation for hand in members))
        self._until(lambda: all(stands_there(hand) for hand in members))

    def _is_member(self, hand: Hand) -> bool:
        """A standby waits as well, but at the start of its script."""
        scene = self._scene
        past = [scene.shares, *(change.shares for change in scene.changes)]
        shares = past[min(self._generation - 1, len(past) - 1)]
        return shares[hand.number] is not None

    # --- its workers -----------------------------------------------------------------------------

    def _worker_id(self, number: int) -> WorkerId:
        slots = self._settings.slots
        names = self._hosts.names
        host = names[(number + self._scene.on_other_host) % len(names)]
        self._spawned += 1
        slot = slots[number % len(slots)].name
        return WorkerId(host, f"run-{self._number}", slot, 1000 * self._number + self._spawned)

    def _request(self, hand: Hand, gates: tuple[Gate, ...]) -> ForkRequest:
        settings, scene = self._settings, self._scene
        killed_at = None
        if scene.killed is not None and scene.killed[0] == hand.number:
            killed_at = scene.killed[1].step
        recording = msgspec.structs.replace(
            self._recording,
            gates=gates,
            killed_at=killed_at,
            other_loader_workers=scene.other_loader_workers,
        )
        slot = settings.slots[hand.number % len(settings.slots)]
        return ForkRequest(
            settings=WorkerSettings(
                worker=hand.id,
                job_id=f"verify-{self._number}",
                token=f"verify-{self._number}",
                local_host="127.0.0.1",
                logical_workers=settings.logical_workers,
                seed=settings.seed,
                determinism=settings.determinism,
                threads_per_worker=settings.threads_per_worker,
                partials=settings.partials,
                snapshot_dir=str(settings.folder / f"snapshots-{self._number}"),
                snapshot_every_steps=None,
                snapshot_every_s=None,
                forming_timeout_s=_LIMITS_S["forming"],
                exchange_deadline_s=_LIMITS_S["exchange"],
                linger_timeout_s=_LIMITS_S["linger"],
                recording=recording,
            ),
            script=settings.script,
            environment={**settings.environment, **slot_environment(slot)},
            working_directory=str(settings.working_directory),
        )

    def _send(self, hand: Hand, message: Committed) -> None:
        self._hosts.of(hand.id).send(hand.id, message)

    def _end_all(self) -> None:
        left = [hand for hand in self._hands.values() if hand.ended is None]
        for hand in left:
            self._hosts.of(hand.id).kill(hand.id, reason="the run is over")
        deadline_s = time.monotonic() + _CLOSE_S
        while any(hand.ended is None for hand in left) and time.monotonic() < deadline_s:
            self._hear(_LOOK_S)

    # --- what is heard ---------------------------------------------------------------------------

    def _until(self, condition: Callable[[], bool]) -> None:
        """Hear the workers until it holds; raises RunFailed where it never will."""
        self._moved_s = time.monotonic()
        while not condition():
            self._hear(_LOOK_S)
            self._refuse_failures()
            self._look_for_movement()

    def _hear(self, wait_s: float) -> None:
        try:
            event = self._hosts.inbox.get(timeout=wait_s)
        except queue.Empty:
            return
        self._moved_s = time.monotonic()
        match event:
            case events.WorkerSaid(worker=worker, message=message) if worker in self._hands:
                self._take(self._hands[worker], message)
            case events.WorkerExited(worker=worker) if worker in self._hands:
                self._hands[worker].ended = event
            case events.ForkFailed(reason=reason) | events.ZygoteLost(reason=reason):
                raise RunFailed(f"no worker could be started: {reason}")
            case _:
                pass

    def _take(self, hand: Hand, message: Message) -> None:
        match message:
            case Registered(address=address):
                hand.address = address
            case Entered(generation=generation):
                hand.entered = generation.number
            case Finished():
                hand.finished = message
            case Failure():
                hand.failure = message
            case SnapshotWritten():
                self._snapshot = message
            case Note(text=text):
                self._notes.append(text)
            case _:
                pass

    def _refuse_failures(self) -> None:
        for hand in self._hands.values():
            if hand.failure is not None:
                failure = hand.failure
                raise RunFailed(
                    f"{failure.type}: {failure.text}", failure=failure, log=failure.traceback
                )
            ended = hand.ended
            if ended is not None and ended.exit_code != 0 and not self._is_killed(hand):
                how = (
                    f"exit {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
                )
                raise RunFailed(f"a worker ended by {how}: {ended.last_words}")
            if ended is not None and hand.finished is None and not self._may_leave(hand):
                raise RunFailed("the script ended before its training did")

    def _is_killed(self, hand: Hand) -> bool:
        killed = self._scene.killed
        return killed is not None and killed[0] == hand.number

    def _may_leave(self, hand: Hand) -> bool:
        """It was drained, paused or killed, as planned."""
        scene = self._scene
        if scene.restored is not None or self._is_killed(hand):
            return True
        return any(change.shares[hand.number] is None for change in scene.changes)

    def _look_for_movement(self) -> None:
        now_s = time.monotonic()
        steps = []
        for hand in self._hands.values():
            beat = self._hosts.of(hand.id).beat(hand.id) if hand.ended is None else None
            if beat is None:
                continue
            steps.append(beat.step)
            if self._seen.get(hand.id) != (beat.position, beat.micro_steps):
                self._seen[hand.id] = (beat.position, beat.micro_steps)
                self._moved_s = now_s
        self._told(max(steps, default=0))
        if now_s - self._moved_s > SILENCE_S:
            raise RunFailed(f"nothing has moved for {SILENCE_S:.0f} s")


def _nobody(step: int) -> None:
    del step


@contextmanager
def opened(settings: RehearsalSettings, *, names: tuple[str, ...] = HOSTS) -> Iterator[Hosts]:
    """The hosts of a comparison; all their processes are gone afterwards."""
    hosts = Hosts(settings, names=names)
    try:
        hosts.start()
        yield hosts
    finally:
        hosts.close()
