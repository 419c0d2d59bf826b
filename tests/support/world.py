"""A small world without processes: machines over one memory store, their workers played.

Everything happens in a fixed order, so a story reads the same every time.
"""

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, assert_never

from easyscale.agent import actions, events, machine, records
from easyscale.agent.settings import Balance, Identity, LaunchSettings, StoreSettings, Timeouts
from easyscale.agent.wishes import addressed
from easyscale.errors import LeaseLost, StoreUnreachable
from easyscale.messages import (
    Broken,
    CommitSeen,
    Committed,
    Drained,
    Entered,
    Failure,
    FencedOff,
    Finished,
    Initialised,
    Lost,
    Planned,
    Ready,
    Registered,
    ScriptTarget,
    SnapshotWritten,
    StepReport,
    Stop,
)
from easyscale.model import (
    Commit,
    Determinism,
    Ending,
    GenerationNumber,
    Head,
    JobSpec,
    LogicalRank,
    Member,
    Mode,
    Position,
    SnapshotRecord,
    Span,
    Wish,
    WorkerId,
    decode,
    encode,
)
from easyscale.pulse import Beat, Phase
from easyscale.rendezvous.agreement import JobView, incarnation_of
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.memory import MemoryServer, MemoryStore
from easyscale.rendezvous.store import Created, LeaseId, Put, View, absent
from easyscale.reports import JobEvent
from easyscale.runtime import entry

TICK_S = 0.25
TTL_S = 5
_T = 1.0
#: After so long nobody answers for a pause any more.
LINGER_S = Timeouts().forming_timeout_s


@dataclass(frozen=True, slots=True)
class Headers:
    """What those of one operation come to: the newest commit, and whether all knew it."""

    newest: Commit | None = None
    switches: bool = False


@dataclass
class Worker:
    """A played worker: it knows commits, forms generations and completes steps with its group."""

    id: WorkerId
    known: Commit | None = None
    entered: Commit | None = None
    forming: bool = False
    broken: bool = False
    position: int = 0
    frozen: bool = False
    registered: bool = False
    #: What admits it to other workers.
    token: str = ""
    #: Ranks whose sums of the running operation it holds, and what it has to compute of it;
    #: None: what its generation says.
    held: tuple[int, ...] = ()
    share: tuple[int, ...] | None = None
    #: It can serve the result of the operation before.
    has_record: bool = False
    #: All have sent what makes the running operation; it has not read it yet, as others have.
    unread: Headers | None = None
    #: It arrives in the generation it knows and does not get through the handshake.
    stuck: bool = False
    #: It has left its group in order for this one, and holds the state until others have entered.
    left_for: Commit | None = None
    #: It waits in a broken group, left out of this one, and has written down the state.
    kept_for: Commit | None = None

    @property
    def duty(self) -> tuple[int, ...]:
        """The ranks whose sums it is to hold when the running operation is complete."""
        if self.share is not None:
            return tuple(sorted({*self.held, *self.share}))
        assert self.entered is not None
        return next(m.ranks for m in self.entered.members if m.worker == self.id)

    def knows(self, commit: Commit) -> bool:
        return self.known is not None and self.known.generation >= commit.generation


@dataclass
class Node:
    name: str
    store: MemoryStore
    state: machine.State
    inbox: deque[events.AgentEvent] = field(default_factory=deque)
    workers: dict[WorkerId, Worker] = field(default_factory=dict)
    frozen: bool = False
    dead: bool = False
    #: News of the store are late: the agent has not heard them yet.
    deaf: bool = False
    holds_transactions: bool = False
    held: list[actions.Transact] = field(default_factory=list)
    lease: LeaseId | None = None
    revision: int | None = None
    record: actions.Enrol | None = None
    writes: dict[str, actions.Write] = field(default_factory=dict)
    stands: bool = False
    token: int | None = None
    away: bool = False
    seen: View | None = None
    seen_complete: bool = False
    parsed: JobView | None = None
    exit_code: int | None = None

    @property
    def acts(self) -> bool:
        return not (self.frozen or self.dead) and self.exit_code is None


class World:
    """N nodes, one store, one clock; `trace` is what happened since it was last taken."""

    def __init__(
        self,
        *,
        logical_workers: int = 4,
        min_nodes: int = 1,
        max_restarts: int = 3,
        takeover_after_s: float | None = 60.0,
        max_nodes: int | None = None,
        is_shared: bool = False,
        shares_folder: bool = True,
        balance: Balance | None = None,
    ) -> None:
        self.balance = balance or Balance()
        self.now = 1000.0
        self.server = MemoryServer(lambda: self.now)
        self.keys = JobKeys.of("job")
        self.nodes: dict[str, Node] = {}
        self.trace: list[str] = []
        self.pid = 100
        self.shape = (logical_workers, min_nodes, max_nodes, max_restarts, takeover_after_s)
        self.auto = True
        self.links: set[frozenset[str]] = set()
        #: Since when workers wait in a broken group.
        self.broken_s: dict[WorkerId, float] = {}
        #: and since when they know there of a pause.
        self.paused_s: dict[tuple[WorkerId, GenerationNumber], float] = {}
        self.said: list[actions.AgentAction] = []
        #: At which position a group was left for another one, in order.
        self.switched: dict[tuple[str, str], int] = {}
        #: Whether every step of a machine is taken twice and must come to the same.
        self.is_doubtful = False
        #: The snapshots in the folder that all nodes share, or on the disks of all.
        self.shares_folder = shares_folder
        self.folder: list[SnapshotRecord] = []
        self.store = StoreSettings(endpoints=("etcd:2379",) if is_shared else ())
        self.events: list[JobEvent] = []
        #: What a worker reports of a step that it has completed.
        self.report_of: Callable[[Worker], StepReport] = lambda worker: step_report(worker.position)

    # --- nodes ---------------------------------------------------------------------------------

    def start(
        self, name: str, *, slots: int = 1, kind: str = "cpu", boot: str = "boot1", life: str = "1"
    ) -> Node:
        n, least, most, restarts, takeover = self.shape
        settings = LaunchSettings(
            job_id="job", node_name=name, node_is_chosen=True,
            script=ScriptTarget(path="train.py"), working_directory="/w", environment={},
            logical_workers=n, min_nodes=least, max_nodes=most, max_restarts=restarts,
            takeover_after_s=takeover, snapshot_dir="runs/job", log_dir="runs/job/logs",
            timeouts=Timeouts(), store=self.store, balance=self.balance,
        )  # fmt: skip
        identity = Identity(
            node=name, incarnation=incarnation_of(host=name, boot_id=boot, chance=life),
            boot_id=boot, host=name, address="", folder="shared" if self.shares_folder else name,
        )  # fmt: skip
        node = Node(
            name, self.server.client(), machine.begin(settings, identity, now=self._clock())
        )
        self.nodes[name] = node
        spec = self._agree_on_job(node, n)
        names = tuple(events.Slot(name=f"cpu:{i}", kind=kind) for i in range(slots))
        self.post(node, events.SlotsFound(slots=names))
        self.post(node, events.JobOpened(spec=spec, store="etcd", seconds=0.0))
        seen = (s for s in self.folder if self.shares_folder or name in s.nodes)
        self.post(node, events.SnapshotsFound(records=tuple(seen)))
        self.post(node, events.ZygoteReady(torch_version="2", cpu_kind=kind, seconds=1.0))
        self.pump()
        return node

    def _agree_on_job(self, node: Node, logical_workers: int) -> JobSpec:
        """What the store says the job is; who comes first says it."""
        spec = JobSpec(
            logical_workers=logical_workers, seed=0, determinism=Determinism.SAME_KIND,
            threads_per_worker=1, token=f"the first was {node.state.identity.incarnation}",
        )  # fmt: skip
        if not self.server.is_running:
            return spec
        put = Put(self.keys.job, encode(spec))
        node.store.transact([absent(self.keys.job)], [put], timeout_s=_T)
        stands = node.store.read(self.keys.job, timeout_s=_T).entries[self.keys.job]
        return decode(stands.value, JobSpec, source="job")

    def post(self, node: Node, event: events.AgentEvent) -> None:
        node.inbox.append(event)

    def _clock(self) -> machine.Now:
        return machine.Now(s=self.now, wall_s=self.now)

    def note(self, line: str) -> None:
        self.trace.append(line)

    def worker(self, place: str) -> Worker:
        """The living worker at `a` (its only slot) or `a/cpu:1`."""
        name, _, slot = place.partition("/")
        for worker in self.nodes[name].workers.values():
            if not slot or worker.id.slot == slot:
                return worker
        raise LookupError(f"no worker at {place}")

    # --- the loop ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Let everything happen that can happen now."""
        for _ in range(500):
            busy = False
            for node in self.nodes.values():
                if not node.acts:
                    continue
                busy |= self._serve_store(node)
                while node.inbox and node.acts:
                    busy = True
                    self._step(node, node.inbox.popleft())
            busy |= self._play_workers()
            if not busy:
                return
        raise RuntimeError("the world does not come to rest: " + "; ".join(self.trace[-20:]))

    def advance(self, seconds: float) -> None:
        """Let time pass: leases are renewed, ticks come."""
        until = self.now + seconds
        while self.now < until - 1e-9:
            self.now = round(min(self.now + TICK_S, until), 6)
            for node in self.nodes.values():
                if node.acts:
                    self._renew(node)
                    beats = {w.id: self._beat(w) for w in node.workers.values()}
                    self.post(node, events.Ticked(beats=beats, monotonic_s=self.now))
            self.pump()

    def _beat(self, worker: Worker) -> Beat:
        if worker.frozen:
            phase = Phase.WAITING if worker.entered is None else Phase.OUTER_BODY
            return Beat(phase=phase, position=worker.position, step=worker.position, rank=None,
                        micro_steps=0, since_s=0.0, is_stopped=True)  # fmt: skip
        if worker.broken and not worker.forming:
            since_s = self.broken_s.setdefault(worker.id, self.now)
            return Beat(phase=Phase.BROKEN, position=worker.position, step=worker.position,
                        rank=None, micro_steps=0, since_s=since_s, polled_s=self.now)  # fmt: skip
        self.broken_s.pop(worker.id, None)
        return Beat(phase=Phase.OUTER_BODY, position=worker.position, step=worker.position,
                    rank=None, micro_steps=0, since_s=self.now)  # fmt: skip

    def _step(self, node: Node, event: events.AgentEvent) -> None:
        before = node.state
        node.state, wanted, reason = machine.step(before, event, self._clock())
        if self.is_doubtful:
            assert machine.step(before, event, self._clock()) == (node.state, wanted, reason)
        if reason:
            self.note(f"{node.name}: {reason}")
        for action in wanted:
            self._perform(node, action)

    # --- the store side of a node --------------------------------------------------------------

    def _renew(self, node: Node) -> None:
        try:
            if node.lease is None:
                node.store.read(self.keys.head, timeout_s=_T)
            elif not node.store.keep_alive(node.lease, timeout_s=_T):
                self._lose_lease(node)
        except StoreUnreachable:
            if not node.away:
                node.away = True
                self.post(node, events.StoreAway(reason="no answer"))
            if node.token is not None:
                node.token = None
                self.post(node, events.Deposed(reason="the lease was not renewed"))
            return
        if node.away:
            node.away = False
            self.post(node, events.StoreBack(silent_s=1.0))

    def _lose_lease(self, node: Node) -> None:
        node.lease = node.revision = node.record = None
        node.writes = {k: w for k, w in node.writes.items() if not w.leased}
        if node.token is not None:
            node.token = None
            self.post(node, events.Deposed(reason="the lease ended"))
        self.post(node, events.LeaseEnded(reason="the store ended it"))

    def _serve_store(self, node: Node) -> bool:
        """Write what waits, stand for election, bring the view if it changed."""
        try:
            return self._flush(node) | self._campaign(node) | self._look(node)
        except StoreUnreachable:
            return False
        except LeaseLost:
            self._lose_lease(node)
            return True

    def _flush(self, node: Node) -> bool:
        done = False
        if node.record is not None:
            record = node.record.record
            key = self.keys.node(node.name)
            lease = node.lease or node.store.grant(TTL_S, timeout_s=_T)
            node.lease = lease
            first = node.revision is None
            compare = absent(key) if node.revision is None else Created(key, node.revision)
            result = node.store.transact([compare], [Put(key, encode(record), lease)], timeout_s=_T)
            if result.succeeded:
                node.record = None
                if first:
                    node.revision = result.revision
                    self.post(node, events.Enrolled(create_revision=result.revision))
                done = True
        for key, write in tuple(node.writes.items()):
            if write.leased and node.revision is None:
                continue
            put = Put(key, write.value, node.lease if write.leased else None)
            node.store.transact([], [put], timeout_s=_T)
            del node.writes[key]
            done = True
        return done

    def _campaign(self, node: Node) -> bool:
        if not node.stands or node.lease is None or node.revision is None:
            return False
        entry = node.store.read(self.keys.leader, timeout_s=_T).get(self.keys.leader)
        if entry is not None and entry.lease == node.lease and node.token is None:
            node.token = entry.create_revision
            self.post(node, events.Elected(token=node.token))
            return True
        if entry is not None and entry.lease != node.lease and node.token is not None:
            node.token = None
            self.post(node, events.Deposed(reason="another leads"))
            return True
        if entry is None:
            result = node.store.transact(
                [absent(self.keys.leader)], [Put(self.keys.leader, node.name, node.lease)],
                timeout_s=_T,
            )  # fmt: skip
            node.token = result.revision
            self.post(node, events.Elected(token=result.revision))
            return True
        return False

    def _look(self, node: Node) -> bool:
        if node.deaf:
            return False
        leads = node.token is not None
        ranges = (self.keys.prefix,) if leads else machine.followed_ranges(self.keys)
        view = node.store.read(*ranges, timeout_s=_T)
        if (
            node.seen is not None
            and node.seen_complete == leads
            and node.seen.entries == view.entries
        ):
            return False
        node.seen, node.seen_complete = view, leads
        node.parsed = JobView.of(view, self.keys, before=node.parsed)
        self.post(node, events.Viewed(view=node.parsed, complete=leads))
        return True

    def transact(self, node: Node, action: actions.Transact) -> None:
        try:
            result = node.store.transact(action.compares, action.operations, timeout_s=_T)
        except StoreUnreachable:
            self.post(node, events.Transacted(name=action.name, succeeded=None))
            return
        if result.succeeded and action.name.startswith((records.PROGRESS, records.SNAPSHOT)):
            self._check_writer(node, action.name)
        done = events.Transacted(
            name=action.name, succeeded=result.succeeded, revision=result.revision
        )
        self.post(node, done)

    def _check_writer(self, node: Node, name: str) -> None:
        """Nobody writes what counts for a group that was left behind."""
        newest = JobView.of(self.server.contents.view(self.keys.prefix), self.keys).newest
        known = node.state.commit
        assert newest is not None
        assert known is not None
        assert known.digest == newest.digest, (node.name, name, self.trace[-40:])

    # --- actions -------------------------------------------------------------------------------

    def _perform(self, node: Node, action: actions.AgentAction) -> None:
        match action:
            case actions.StartZygote():
                kind = node.state.slots[0].kind
                ready = events.ZygoteReady(torch_version="2", cpu_kind=kind, seconds=1.0)
                self.post(node, ready)
            case actions.Fork(worker=worker):
                self._fork(node, worker)
            case actions.Tell(worker=worker, message=message):
                self._tell(node, worker, message)
            case actions.StopWorker(worker=worker) | actions.KillWorker(worker=worker):
                self.end(worker, signal=9)
            case actions.Enrol():
                node.record = action
            case actions.Write():
                node.writes[action.key] = action
            case actions.Transact():
                if node.holds_transactions and action.name.startswith("decision"):
                    node.held.append(action)
                else:
                    self.transact(node, action)
            case actions.Campaign():
                node.stands = True
            case actions.Resign():
                node.stands = False
            case actions.Leave(how=how):
                self.leave(node, how)
            case actions.Announce(event=event):
                self.events.append(event)
                text = f" ({event.reason})" if event.reason else ""
                lost = event.facts.get("steps_lost")
                text += f", {lost} steps lost" if lost else ""
                self.note(f"{node.name} says {event.event}{text}")
            case actions.ReportCause(cause=cause):
                self.note(f"{node.name} first cause: {cause.headline} | {cause.why_ended}")
                self.said.append(action)
            case actions.Conclude(summary=summary):
                self.said.append(action)
                self.note(f"{node.name} concludes: step {summary.step}, exit {summary.exit_code}")
            case actions.Exit(code=code):
                node.exit_code = code
                self.note(f"{node.name} exits {code}")
            case actions.DumpStacks(worker=worker):
                self.note(f"{worker.place} writes its stacks")
            case actions.FindSlots(devices=word, wish_id=wish_id):
                count = int(word.removeprefix("cpu:"))
                slots = tuple(events.Slot(name=f"cpu:{i}", kind="cpu") for i in range(count))
                self.post(node, events.SlotsFound(slots=slots, wish_id=wish_id))
            case actions.Probe(nodes=names):
                self._probe(node, names)
            case actions.DeleteSnapshots(names=names):
                self.note(f"{node.name} deletes {', '.join(names)}")
            case actions.KeepProfile():
                self.note(f"{node.name} keeps the profile")
            case actions.ShowProgress():
                pass
            case _:
                assert_never(action)

    def _probe(self, node: Node, names: tuple[str, ...]) -> None:
        """The agents of these nodes are asked at their doors."""
        there = {name: self.nodes[name] for name in names if name in self.nodes}
        stored = self.server.contents.entries
        reached = [
            name
            for name, other in there.items()
            if other.acts and frozenset((name, node.name)) not in self.links
        ]
        absent = [name for name in names if self.keys.node(name) not in stored]
        self.post(node, events.Probed(asked=names, reached=tuple(reached), absent=tuple(absent)))

    def wish(
        self, kind: str, node: str = "", *slots: str, by: str = "a-person", target: str = ""
    ) -> None:
        """Somebody writes a wish into the store."""
        key = self.keys.wish(f"{kind}-{node}" if node else kind)
        view = JobView.of(self.server.contents.view(self.keys.prefix), self.keys)
        asked = addressed(Wish(kind=kind, node=node, slots=slots, by=by, target=target), view)
        self.server.client().transact([], [Put(key, encode(asked))], timeout_s=_T)

    def give(self, generation: int, mode: Mode, members: dict[WorkerId, tuple[int, ...]]) -> None:
        """Put a commit into the store that no leader of ours would make."""
        commit = Commit(
            generation=GenerationNumber(1, generation),
            mode=mode,
            members=tuple(
                Member(worker, worker.place, tuple(LogicalRank(rank) for rank in ranks))
                for worker, ranks in members.items()
            ),
            main=next(iter(members)),
            reason="given",
        )
        head = Head(era=1, planned=generation, committed=generation, digest=commit.digest)
        self.server.client().transact(
            [],
            [
                Put(self.keys.commit(commit.generation), encode(commit)),
                Put(self.keys.head, encode(head)),
            ],
            timeout_s=_T,
        )

    def record(self, key: str) -> Any:  # noqa: ANN401 - JSON
        """What stands in the store under a key."""
        entry = self.server.client().read(key, timeout_s=_T).get(key)
        assert entry is not None, f"nothing stands under {key}"
        return json.loads(entry.value)

    def leave(self, node: Node, how: str) -> None:
        """Say that the agent has ended, and let its lease go."""

        key = self.keys.gone_agent(node.name, node.state.identity.incarnation)
        try:
            if node.acts:
                self._flush(node)
            node.store.transact([], [Put(key, encode(Ending(how=how)))], timeout_s=_T)
            if node.lease is not None:
                node.store.revoke(node.lease, timeout_s=_T)
        except StoreUnreachable:
            pass

    # --- workers -------------------------------------------------------------------------------

    def _fork(self, node: Node, worker: WorkerId) -> None:
        self.pid += 1
        assert node.state.spec is not None
        node.workers[worker] = Worker(worker, token=node.state.spec.token)
        self.post(node, events.WorkerForked(worker=worker, pid=self.pid))
        if self.auto:
            self.register(worker)

    def register(self, worker: WorkerId) -> None:
        node = self.nodes[worker.node]
        node.workers[worker].registered = True
        hello = Initialised(worker=worker, pid=self.pid, torch_version="2", kind="")
        self.say(worker, hello)
        self.say(worker, Registered(worker=worker, address=f"{worker.place}.{worker.spawn}"))

    def say(self, worker: WorkerId, message: object) -> None:
        node = self.nodes[worker.node]
        self.post(node, events.WorkerSaid(worker=worker, message=message))  # type: ignore[arg-type]

    def _tell(self, node: Node, worker_id: WorkerId, message: object) -> None:
        worker = node.workers.get(worker_id)
        if worker is None or worker.frozen:
            return
        match message:
            case Planned(plan=plan):
                self.say(worker_id, Ready(generation=plan.generation))
            case Committed(commit=commit):
                self._learn(worker, commit)
            case Stop():
                self.end(worker_id, signal=15)
            case Lost():
                pass
            case _:
                raise AssertionError(message)

    def _learn(self, worker: Worker, commit: Commit) -> None:
        if worker.knows(commit):
            return
        worker.known, worker.stuck = commit, False
        if worker.left_for is not None and worker.id not in commit.workers:
            return
        worker.left_for = None
        waits = worker.broken or worker.forming or worker.entered is None
        if commit.mode is not Mode.BOUNDARY or waits:
            worker.forming = not _is_planned_without(worker, commit)

    def end(
        self,
        worker_id: WorkerId,
        *,
        exit_code: int | None = None,
        signal: int | None = None,
        failure: Failure | None = None,
    ) -> None:
        """A worker's process ends; its agent hears of it."""
        node = self.nodes[worker_id.node]
        if node.workers.pop(worker_id, None) is None:
            return
        how = f"signal {signal}" if signal else f"exit {exit_code}"
        self.note(f"{worker_id.place}.{worker_id.spawn} ends, {how}")
        if failure is not None:
            self.say(worker_id, failure)
        self.post(node, events.WorkerExited(worker=worker_id, pid=0, exit_code=exit_code,
                                            signal=signal, last_words=""))  # fmt: skip

    def _all(self) -> list[Worker]:
        return [w for node in self.nodes.values() if not node.dead and not node.frozen
                for w in node.workers.values() if not w.frozen]  # fmt: skip

    def _find(self, worker_id: WorkerId) -> Worker | None:
        return next((w for w in self._all() if w.id == worker_id), None)

    def _play_workers(self) -> bool:
        """Forming ends when all members are there; who is excluded leaves its wait."""
        busy = False
        for worker in self._all():
            commit = worker.known
            if commit is None or not worker.forming:
                continue
            if worker.id not in commit.workers:
                worker.forming = False
                if worker.entered is not None:
                    self.say(worker.id, FencedOff(generation=commit.generation))
                    self.end(worker.id, exit_code=0)
                busy = True
                continue
            members = [self._find(member) for member in commit.workers]
            if self._is_cut(worker, commit):
                others = [w for w in commit.workers if self._cannot_meet(w, worker.id)]
                self.break_(worker.id, others)
                busy = True
                continue
            if any(self._is_cut(m, commit) for m in members if m is not None):
                continue
            if all(m is not None and self._meets(m, commit) for m in members):
                busy |= self._shake_hands([m for m in members if m is not None], commit)
        return busy | self._gossip()

    def _is_cut(self, worker: Worker, commit: Commit) -> bool:
        """A link from this worker to another member of the commit is cut."""
        return any(self._cannot_meet(worker.id, other) for other in commit.workers)

    def _cannot_meet(self, one: WorkerId, other: WorkerId) -> bool:
        tokens = {worker.token for worker in self._all() if worker.id in (one, other)}
        return frozenset((one.node, other.node)) in self.links or len(tokens) > 1

    def _meets(self, worker: Worker, commit: Commit) -> bool:
        is_inside = worker.entered == commit and worker.left_for is None
        return is_inside or (worker.forming and worker.known == commit)

    def _shake_hands(self, members: list[Worker], commit: Commit) -> bool:
        """All are there: the runtime's own rule says who keeps, computes and takes what."""
        arrivals = [_arrival(member) for member in members]
        owners = {rank: at for at, m in enumerate(commit.members) for rank in m.ranks}
        laid_out = entry.arrange(
            arrivals,
            owners=[owners[rank] for rank in sorted(owners)],
            generation=commit.generation,
            mode=commit.mode,
        )
        fresh = [m for m in members if m.entered != commit and not m.stuck]
        if not fresh:
            return False
        match laid_out:
            case entry.FetchCommit() | entry.AwaitCommit():
                return False
            case entry.Restore():
                start = commit.snapshot.step if commit.snapshot else 0
                for member in fresh:
                    self._enter(member, commit, start)
            case entry.EntryLayout() if outdated := self._outdated(members, laid_out):
                for member in outdated:
                    self.note(f"{member.id.place} is one behind, and nobody kept the result")
                    self.say(member.id, FencedOff(generation=commit.generation))
                    self.end(member.id, exit_code=0)
                for member in fresh:
                    if member not in outdated:  # it waits for a group that cannot be formed
                        self.break_(member.id, [one.id for one in outdated])
            case entry.EntryLayout():
                self._tell_layout(members, laid_out)
                for at, member in enumerate(members):
                    if member in fresh:
                        member.has_record = at in (*laid_out.record_to, laid_out.record_from)
                        member.held = _ranks(laid_out.keep[at])
                        member.share = laid_out.compute[at]
                        self._enter(member, commit, laid_out.position)
            case _:
                assert_never(laid_out)
        return True

    def _outdated(self, members: list[Worker], layout: entry.EntryLayout) -> list[Worker]:
        """Who would need the whole state in the midst of a step: the runtime ends them."""
        return [
            members[at]
            for at in layout.state_to
            if members[at].entered is not None and not members[at].stuck
        ]

    def _tell_layout(self, members: list[Worker], layout: entry.EntryLayout) -> None:
        """Note what is not the same in every entry."""
        places = [member.id.place for member in members]
        for at in layout.record_to:
            assert layout.record_from is not None
            self.note(f"{places[at]} takes the last result of {places[layout.record_from]}")
        if any(member.held for member in members):
            for at, place in enumerate(places):
                kept, dropped = _ranks(layout.keep[at]), _ranks(layout.drop[at])
                words = [f"keeps {list(kept)}"] if kept else []
                words += [f"drops {list(dropped)}"] if dropped else []
                words += [f"computes {list(layout.compute[at])}"] if layout.compute[at] else []
                self.note(f"{place} {', '.join(words) or 'has nothing to do'}")

    def _enter(self, worker: Worker, commit: Commit, position: int) -> None:
        worker.entered, worker.forming, worker.broken = commit, False, False
        worker.position, worker.unread = position, None
        self.note(f"{worker.id.place} enters {commit.generation.label} at {worker.position}")
        self.say(worker.id, Entered(generation=commit.generation, position=Position(position),
                                    step=worker.position, has_state=True, pause_s=0.0))  # fmt: skip

    def _gossip(self) -> bool:
        """Who forms or is broken asks the members of its group for newer commits."""
        busy = False
        for worker in self._all():
            if worker.left_for is not None:
                busy |= self._hand_over(worker, worker.left_for)
            if not (worker.broken or worker.forming) or worker.known is None:
                continue
            if self._stops_for(worker, worker.known):
                self._pause(worker, worker.known)
                busy = True
                continue
            if self._may_be_last(worker, worker.known):
                self.snapshot(worker.id, last=True)
                worker.kept_for = worker.known
                busy = True
            if self._is_left_behind(worker, worker.known):
                self.say(worker.id, FencedOff(generation=worker.known.generation))
                self.end(worker.id, exit_code=0)
                busy = True
                continue
            group = worker.known.workers if worker.forming else ()
            entered = worker.entered.workers if worker.entered else ()
            for peer in map(self._find, dict.fromkeys((*group, *entered))):
                if peer is None:
                    continue
                for teller, listener in ((peer, worker), (worker, peer)):
                    if teller.known is not None and not listener.knows(teller.known):
                        self._learn(listener, teller.known)
                        self.say(listener.id, CommitSeen(commit=teller.known))
                        busy = True
        return busy

    def _hand_over(self, worker: Worker, commit: Commit) -> bool:
        """It stays until one that goes on has entered; where nobody is left, for a while."""
        assert worker.entered is not None
        others = [self._find(other) for other in worker.entered.workers if other in commit.workers]
        takers = [one for one in others if one and not self._cannot_meet(worker.id, one.id)]
        if takers:
            self.paused_s.pop((worker.id, commit.generation), None)
        if any(one.entered and one.entered.generation >= commit.generation for one in takers):
            self._drain(worker, commit)
            return True
        if takers or not self._has_lingered(worker, commit):
            return False
        self._pause(worker, commit)
        return True

    def _stops_for(self, worker: Worker, known: Commit) -> bool:
        """It waits in a broken group and knows of a pause, which nobody has called off."""
        if not known.pauses or not _is_planned_without(worker, known):
            return False
        return self._has_lingered(worker, known)

    def _has_lingered(self, worker: Worker, known: Commit) -> bool:
        since_s = self.paused_s.setdefault((worker.id, known.generation), self.now)
        return self.now - since_s >= LINGER_S

    def _may_be_last(self, worker: Worker, known: Commit) -> bool:
        """A planned change leaves it out, and for a while nobody has been heard to go on by it."""
        if known.pauses or known == worker.kept_for or not _is_planned_without(worker, known):
            return False
        return self._has_lingered(worker, known)

    def _is_left_behind(self, worker: Worker, known: Commit) -> bool:
        """Somebody of its group goes on by the planned change that leaves it out."""
        if not _is_planned_without(worker, known) or worker.entered is None:
            return False
        others = [self._find(other) for other in worker.entered.workers]
        return any(
            other is not None
            and other.entered is not None
            and other.entered.generation >= known.generation
            and not self._cannot_meet(worker.id, other.id)
            for other in others
        )

    def train(self, steps: int) -> None:
        """Every group whose members all run completes steps; a dead member breaks the others."""
        for _ in range(steps):
            self.operate()
            self.pump()

    def operate(self, *only: WorkerId, boundary: bool = True) -> None:
        """One operation of every group: complete for `only` these, or for all members."""
        groups = {w.entered.generation: w.entered for w in self._all() if w.entered}
        for commit in groups.values():
            self._operate_group(commit, only, boundary=boundary)

    def compute(self, worker_id: WorkerId) -> None:
        """The worker has computed its share of the running operation."""
        worker = self._find(worker_id)
        assert worker is not None
        if worker.left_for is None:
            worker.held = worker.duty

    def _operate_group(self, commit: Commit, only: tuple[WorkerId, ...], *, boundary: bool) -> None:
        members = [self._find(worker) for worker in commit.workers]
        group = [m for m in members if m is not None and m.entered == commit]
        group = [m for m in group if not (m.forming or m.broken or m.left_for)]
        if len(group) < len(commit.workers):
            if any(self._is_dead(worker) for worker in commit.workers):
                for worker in group:
                    self.break_(worker.id, [w for w in commit.workers if self._is_dead(w)])
            else:
                self._read_late(group)
            return
        if any(worker.unread for worker in group):
            self._read_late(group)
            return
        self._count(group)
        headers = self._headers(commit, group) if boundary else Headers()
        for worker in group:
            worker.unread = headers
        self._read([worker for worker in group if not only or worker.id in only])

    def _read_late(self, group: list[Worker]) -> None:
        """Everything had been sent, also by who has switched since."""
        self._read([worker for worker in group if worker.unread])

    def _read(self, group: list[Worker]) -> None:
        for worker in group:
            headers, worker.unread = worker.unread, None
            assert headers is not None
            worker.position += 1
            worker.held, worker.share, worker.has_record = (), None, True
            self.say(worker.id, self.report_of(worker))
            if headers.newest is not None:
                self._heed(worker, headers.newest, switches=headers.switches)

    def _count(self, group: list[Worker]) -> None:
        """All members have sent what they hold: every rank counts exactly once."""
        assert len({worker.position for worker in group}) == 1, self.trace
        for worker in group:
            worker.held = worker.duty
        counted = sorted(rank for worker in group for rank in worker.held)
        assert counted == list(range(self.shape[0])), (counted, self.trace[-40:])

    def _headers(self, commit: Commit, group: list[Worker]) -> Headers:
        """They decide whether who completes the operation switches."""
        known = {w.known.generation if w.known else GenerationNumber(0, 0) for w in group}
        newest = max((w.known for w in group if w.known), key=lambda c: c.generation)
        return Headers(newest, len(known) == 1 and newest.generation > commit.generation)

    def _heed(self, worker: Worker, newest: Commit, *, switches: bool) -> None:
        if switches:
            self._switch(worker, newest)
        elif not worker.knows(newest):
            self._learn(worker, newest)
            self.say(worker.id, CommitSeen(commit=newest))

    def _is_dead(self, worker_id: WorkerId) -> bool:
        node = self.nodes[worker_id.node]
        return node.dead or worker_id not in node.workers

    def _switch(self, worker: Worker, commit: Commit) -> None:
        assert worker.entered is not None
        boundary = (worker.entered.digest, commit.digest)
        at = self.switched.setdefault(boundary, worker.position)
        assert at == worker.position, (boundary, at, worker, self.trace[-40:])
        if worker.id in commit.workers:
            worker.forming = True
            return
        if not commit.pauses:
            worker.left_for = commit
            return
        if worker.entered.main == worker.id:
            self.snapshot(worker.id, last=True)
        self._drain(worker, commit)

    def _pause(self, worker: Worker, commit: Commit) -> None:
        self.snapshot(worker.id, last=True)
        self._drain(worker, commit)

    def _drain(self, worker: Worker, commit: Commit) -> None:
        step = worker.position
        self.say(worker.id, Drained(generation=commit.generation, step=step))
        self.end(worker.id, exit_code=0)

    def snapshot(self, worker_id: WorkerId, *, last: bool = False) -> None:
        worker = self._find(worker_id)
        assert worker is not None
        assert worker.entered is not None
        step, generation = worker.position, worker.entered.generation
        name = f"step-{step:08}-g{generation}-{worker_id.node}"
        self.say(worker_id, SnapshotWritten(
            name=name, step=step, epoch=0, digest="d", bytes=10, generation=generation,
            pause_s=0.0, seconds=0.1, last=last,
        ))  # fmt: skip
        self.folder.append(SnapshotRecord(
            name=name, step=step, epoch=0, digest="d", bytes=10, generation=generation,
            nodes=(worker_id.node,),
        ))  # fmt: skip

    def break_(self, worker_id: WorkerId, suspects: list[WorkerId]) -> None:
        worker = self._find(worker_id)
        assert worker is not None
        if worker.left_for is not None:
            return  # it waits in no group
        worker.broken, worker.unread = True, None
        commit = worker.known if worker.forming else worker.entered
        assert commit is not None
        worker.forming = False
        self.note(f"{worker_id.place} is broken in {commit.generation.label}")
        said = Broken(
            generation=commit.generation,
            position=Position(worker.position),
            suspects=tuple(suspects),
            reason="connection reset",
        )
        self.say(worker_id, said)
        # BROKEN -> FORMING: what it knows already is newer than what broke
        newer = worker.known is not None and worker.known.generation > commit.generation
        worker.forming = newer and not _is_planned_without(worker, worker.known)

    def finish(self, *places: str) -> None:
        """Training is over: all, or these, say the digest, run their tail and end."""
        named = [self.worker(place).id for place in places]
        for worker in self._all():
            if worker.entered is not None and (worker.id in named or not places):
                self.say(worker.id, Finished(position=Position(worker.position),
                                             step=worker.position, digest="ab" * 32,
                                             is_main=worker.entered.main == worker.id,
                                             metrics={}, epochs=1))  # fmt: skip
                self.end(worker.id, exit_code=0)
        self.pump()


def _is_planned_without(worker: Worker, commit: Commit | None) -> bool:
    """A broken worker holds its state until others have passed the boundary to such a change."""
    if commit is None or not worker.broken or worker.entered is None:
        return False
    return commit.mode is Mode.BOUNDARY and worker.id not in commit.workers


def _arrival(worker: Worker) -> entry.Arrival:
    has_state = worker.entered is not None
    return entry.Arrival(
        worker=worker.id,
        has_state=has_state,
        position=worker.position if has_state else 0,
        held=tuple(Span(rank, rank + 1) for rank in worker.held),
        formed=worker.entered.generation if worker.entered else GenerationNumber(0, 0),
        has_record=worker.has_record,
    )


def _ranks(spans: tuple[Span, ...]) -> tuple[int, ...]:
    return tuple(rank for span in spans for rank in range(span.lo, span.hi))


def step_report(
    step: int,
    *,
    steps: int = 100,
    step_s: float = 0.1,
    micro_step_s: float | None = None,
    spread: float | None = None,
    data_wait_s: float | None = None,
    recent_s: float | None = None,
) -> StepReport:
    return StepReport(
        position=Position(step), step=step, steps=steps, epoch=0, epochs=1, metrics={"loss": 1.0},
        step_s=step_s, micro_step_s=micro_step_s, exchange_wait_s=None, data_wait_s=None,
        samples_per_step=8, micro_step_spread=spread, micro_step_data_wait_s=data_wait_s,
        recent_rank_s=recent_s,
    )  # fmt: skip


def failure(*, rank: int | None, step: int, kind: str = "ValueError", line: int = 41) -> Failure:
    return Failure(
        type=kind,
        text="target 11 is out of bounds",
        rank=None if rank is None else LogicalRank(rank),
        step=step,
        generation=None,
        file="train.py",
        line=line,
        function="check",
        caller="main",
        excerpt=(),
        hidden_frames=0,
        traceback="",
        refused=False,
    )
