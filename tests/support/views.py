"""Jobs as a store would hold them, written down in a few words for tests of the leader."""

from collections.abc import Iterable, Mapping

import msgspec

from easyscale.agent.settings import LaunchSettings
from easyscale.messages import ScriptTarget
from easyscale.model import (
    BrokenReport,
    Commit,
    Determinism,
    Ending,
    Entry,
    GenerationNumber,
    Head,
    JobSpec,
    LogicalRank,
    Member,
    Mode,
    NodeRecord,
    Outcome,
    Plan,
    Position,
    ProgressRecord,
    Readiness,
    Record,
    SlotRecord,
    SlotState,
    SnapshotRecord,
    Wish,
    WorkerId,
    decode,
    encode,
)
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Entry as StoredKey
from easyscale.rendezvous.store import LeaseId, View
from easyscale.rendezvous.view import JobView

KEYS = JobKeys.of("job")


def launch_settings(**changes: object) -> LaunchSettings:
    values: dict[str, object] = {
        "job_id": "job",
        "node_name": "a",
        "node_is_chosen": True,
        "script": ScriptTarget(path="train.py"),
        "working_directory": "/w",
        "environment": {},
        "logical_workers": 4,
        "snapshot_dir": "runs/job",
        "log_dir": "runs/job/logs",
    }
    return LaunchSettings(**{**values, **changes})  # type: ignore[arg-type]


def job_spec(*, logical_workers: int = 4, kind: str = "cpu", mixes: bool = False) -> JobSpec:
    return JobSpec(
        logical_workers=logical_workers,
        seed=0,
        determinism=Determinism.HETEROGENEOUS if mixes else Determinism.SAME_KIND,
        threads_per_worker=1,
        token="t",
        kind=kind,
    )


def worker(place: str, spawn: int = 1, life: str = "1") -> WorkerId:
    """`a` is the first slot of node a, `a/1` its second."""
    node, _, slot = place.partition("/")
    return WorkerId(node, f"{node}-boot-{life}", f"cpu:{slot or 0}", spawn)


def number(text: str | int) -> GenerationNumber:
    era, _, rest = str(text).rpartition(".")
    return GenerationNumber(int(era or 1), int(rest))


def commit(
    generation: str | int,
    members: Mapping[WorkerId, Iterable[int]] | Iterable[WorkerId],
    *,
    mode: Mode = Mode.RESTORE,
    main: WorkerId | None = None,
) -> Commit:
    """A commit over these members; without ranks they share four round-robin."""
    if not isinstance(members, Mapping):
        workers = list(members)
        members = {w: range(i, 4, len(workers)) for i, w in enumerate(workers)}
    return Commit(
        generation=number(generation),
        mode=mode,
        members=tuple(
            Member(w, f"{w.place}.{w.spawn}", tuple(LogicalRank(r) for r in ranks))
            for w, ranks in members.items()
        ),
        main=main or next(iter(members), None),
        reason="as told",
    )


class Job:
    """Keys of one job, each with the revision at which it was written."""

    def __init__(self, spec: JobSpec | None = None) -> None:
        self.revision = 1
        self.entries: dict[str, StoredKey] = {}
        self.put(KEYS.job, spec or job_spec())

    def put(self, key: str, value: Record | str, *, leased: bool = False) -> "Job":
        self.revision += 1
        former = self.entries.get(key)
        text = value if isinstance(value, str) else encode(value)
        created = former.create_revision if former else self.revision
        lease = LeaseId(1) if leased else None
        self.entries[key] = StoredKey(key, text, created, self.revision, lease)
        return self

    def drop(self, key: str) -> "Job":
        self.revision += 1
        self.entries.pop(key, None)
        return self

    def leads(self) -> "Job":
        return self.put(KEYS.leader, "a")

    def node(
        self,
        name: str,
        *slots: SlotState | tuple[SlotState, float],
        spawn: int = 1,
        life: str = "1",
        kind: str = "cpu",
        offers: Commit | None = None,
        formed: GenerationNumber | None = None,
        cut: tuple[str, ...] = (),
        folder: str = "",
        found: tuple[SnapshotRecord, ...] = (),
    ) -> "Job":
        """Register a node with slots in these states, each with a worker of this spawn."""
        records = []
        for i, given in enumerate(slots or ("standby",)):
            state, micro_step = given if isinstance(given, tuple) else (given, None)
            own = worker(f"{name}/{i}", spawn, life)
            has = state != "starting"
            address = f"{own.place}.{spawn}" if has else ""
            records.append(SlotRecord(own.slot, kind, own, state, address, micro_step))
        record = NodeRecord(
            node=name,
            incarnation=f"{name}-boot-{life}",
            boot_id="boot",
            host=name,
            address="",
            slots=tuple(records),
            commit=offers,
            formed=formed,
            cut=cut,
            folder=folder,
            found=found,
        )
        return self.put(KEYS.node(name), record)

    def slot(self, who: WorkerId, **facts: int | str | None) -> "Job":
        """The agent of this worker has registered this of its slot, its memory say."""
        key = KEYS.node(who.node)
        record = decode(self.entries[key].value, NodeRecord, source=key)
        slots = tuple(
            msgspec.structs.replace(slot, **facts) if slot.worker == who else slot
            for slot in record.slots
        )
        return self.put(key, msgspec.structs.replace(record, slots=slots), leased=True)

    def head(
        self, generation: str | int, planned: int | None = None, *, digest: str = "d"
    ) -> "Job":
        at = number(generation)
        return self.put(
            KEYS.head,
            Head(era=at.era, planned=planned or at.number, committed=at.number, digest=digest),
        )

    def committed(self, made: Commit, *, entered: bool | Iterable[WorkerId] = True) -> "Job":
        self.put(KEYS.commit(made.generation), made)
        self.head(str(made.generation), digest=made.digest)
        inside = made.workers if entered is True else entered or ()
        for each in inside:
            self.entered(made, each)
        return self

    def entered(self, made: Commit, who: WorkerId, position: int = 0) -> "Job":
        entry = Entry(position=Position(position), has_state=True)
        return self.put(KEYS.entry(made.generation, who), entry)

    def planned(self, made: Plan, *, ready: Iterable[WorkerId] = ()) -> "Job":
        self.put(KEYS.plan(made.generation), made)
        committed = max(
            (commit.generation.number for commit in self.view().commits.values()), default=0
        )
        self.put(
            KEYS.head,
            Head(
                era=made.generation.era,
                planned=made.generation.number,
                committed=committed,
                digest="d",
            ),
        )
        for who in ready:
            self.put(KEYS.ready(made.generation, who), Readiness(address=who.place))
        return self

    def gone(self, who: WorkerId, **how: object) -> "Job":
        ending = Ending(**{"how": "killed by SIGKILL", "signal": 9, **how})  # type: ignore[arg-type]
        return self.put(KEYS.gone_worker(who), ending)

    def broken(self, made: Commit, who: WorkerId, *suspects: WorkerId) -> "Job":
        report = BrokenReport(position=Position(0), suspects=suspects, reason="connection reset")
        return self.put(KEYS.broken(made.generation, who), report)

    def wish(self, kind: str, node: str = "", *slots: str, by: str = "ann") -> "Job":
        return self.put(KEYS.wish(f"{kind}-{node}"), Wish(kind=kind, node=node, slots=slots, by=by))

    def progress(self, position: int, *, steps_per_s: float | None = 10.0) -> "Job":
        record = ProgressRecord(
            position=Position(position),
            step=position,
            steps=None,
            epoch=0,
            epochs=None,
            metrics={},
            steps_per_s=steps_per_s,
            samples_per_s=None,
        )
        return self.put(KEYS.progress, record)

    def snapshot(self, step: int, generation: str | int = 1, **more: object) -> "Job":
        name = f"step-{step:08}"
        values: dict[str, object] = {
            "name": name,
            "step": step,
            "epoch": 0,
            "digest": "d",
            "bytes": 1,
            "generation": number(generation),
            "nodes": ("a",),
        }
        record = SnapshotRecord(**{**values, **more})  # type: ignore[arg-type]
        return self.put(KEYS.snapshot(name), record)

    def outcome(self, outcome: Outcome) -> "Job":
        return self.put(KEYS.outcome, outcome)

    def store_view(self) -> View:
        return View.of(self.revision, self.entries)

    def view(self) -> JobView:
        return JobView.of(self.store_view(), KEYS)
