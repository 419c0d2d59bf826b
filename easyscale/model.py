"""The words that every part of easyscale shares, as frozen values with JSON forms; no I/O.

Whatever crosses a process or the store is a `Record`: JSON with a version, unknown fields ignored,
nothing executed. `decode` is the only way in, `encode` the only way out.
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Literal, NewType, Self, TypeVar, cast

import msgspec

from easyscale.errors import FormatError

FORMAT_VERSION = 1

#: A fixed share of the job's computation, 0 ... N-1.
LogicalRank = NewType("LogicalRank", int)
#: A worker's place in the group of its generation.
ProcessRank = NewType("ProcessRank", int)
#: Number of completed operations (steps, evaluations, the end of training).
Position = NewType("Position", int)


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what is kept in the store or on disk."""

    version: int = FORMAT_VERSION


#: A metric as JSON can hold it: a number, or the word for one that is not finite.
MetricJson = float | Literal["nan", "inf", "-inf"]


def metrics_as_json(values: Mapping[str, float]) -> dict[str, MetricJson]:
    """JSON has no word for what a diverging loss becomes; `null` would not say which it was."""
    return {
        name: value if math.isfinite(value) else cast("MetricJson", str(value))
        for name, value in values.items()
    }


def metrics_as_numbers(values: Mapping[str, MetricJson]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


R = TypeVar("R")


def encode(value: object) -> str:
    """Write a value as one line of JSON whose keys stand in the order of its fields."""
    return msgspec.json.encode(value).decode()


def decode(text: str | bytes, form: type[R], *, source: str) -> R:
    """Read a value back; raises FormatError that names `source` when it is not of that form."""
    try:
        value = msgspec.json.decode(text, type=form)
    except msgspec.DecodeError as error:
        raise FormatError(f"{source} is not a {form.__name__}: {error}") from error
    if isinstance(value, Record) and value.version > FORMAT_VERSION:
        message = f"{source} has format {value.version}; this easyscale reads {FORMAT_VERSION}"
        raise FormatError(message, hint="pip install -U easyscale-torch")
    return value


class Span(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The logical ranks lo ... hi-1, a subtree of the canonical tree."""

    lo: int
    hi: int

    def __len__(self) -> int:
        return self.hi - self.lo


class WorkerId(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """One OS process of the job: never its slot, so a restarted process is another worker."""

    node: str
    incarnation: str
    slot: str
    spawn: int

    def __str__(self) -> str:
        return f"{self.node}/{self.incarnation}/{self.slot}/{self.spawn}"

    @property
    def place(self) -> str:
        """Where it runs, as people see it: `gpu-4/cuda:0`."""
        return f"{self.node}/{self.slot}"

    @property
    def writer(self) -> str:
        """Ends the names of the snapshots it writes, so that two writers never share one."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:8]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form; a slot may itself hold a slash (`cuda:3/1`)."""
        try:
            node, incarnation, rest = text.split("/", 2)
            slot, spawn = rest.rsplit("/", 1)
            return cls(node, incarnation, slot, int(spawn))
        except ValueError as error:
            raise FormatError(f"{text!r} is not a worker id") from error


class GenerationNumber(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """Orders generations; together with the commit's digest it names one."""

    era: int
    number: int

    def __str__(self) -> str:
        return f"{self.era}.{self.number}"

    @property
    def label(self) -> str:
        """What screens show: `gen 5`, and `gen 2.5` from the second era on."""
        return f"gen {self.number}" if self.era == 1 else f"gen {self.era}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        era, _, number = text.partition(".")
        if not (era.isdecimal() and number.isdecimal()):
            raise FormatError(f"{text!r} is not a generation number")
        return cls(int(era), int(number))


class Mode(StrEnum):
    """How a generation is entered."""

    #: Planned (join, drain, rebalance): when a step begins and all headers of the group agree.
    BOUNDARY = "boundary"
    #: After a loss: at once, by the living holders of state, out of any wait.
    NOW = "now"
    #: Nobody holds state: from the newest snapshot, or from equal initial states.
    RESTORE = "restore"


class Occasion(StrEnum):
    """What a planned change is, where its members alone do not tell."""

    NONE = ""
    REBALANCE = "rebalance"
    MIGRATION = "migration"
    #: A slot that was emptied as slow is given a rank to see how fast it is now.
    PROBE = "probe"
    #: A plan that measured worse than the one before it is taken back.
    UNDO = "undo"
    #: Some of the slots are measured alone, on request.
    PROFILE = "profile"


class Assignment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker and the logical ranks it computes; its index in the plan is its process rank."""

    worker: WorkerId
    ranks: tuple[LogicalRank, ...]


class Plan(Record, frozen=True, kw_only=True):
    """Which logical workers run where from one generation on; immutable."""

    generation: GenerationNumber
    mode: Mode
    assignments: tuple[Assignment, ...]
    main: WorkerId | None
    reason: str
    occasion: Occasion = Occasion.NONE
    #: What a step takes before and after, by the slots' measured speeds; None: not measured.
    step_s: tuple[float, float] | None = None

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(assignment.worker for assignment in self.assignments)


class Member(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker named in a commit, with the address (`host:port`) its listener answers at."""

    worker: WorkerId
    address: str
    ranks: tuple[LogicalRank, ...]


class OpenGeneration(msgspec.Struct, frozen=True):
    """A committed generation that could still run when a newer one was committed."""

    generation: GenerationNumber
    digest: str
    #: Its workers: by the process ranks they have in the newer one, and those that it leaves out.
    kept: tuple[Span, ...]
    dropped: tuple[WorkerId, ...]

    @classmethod
    def of(cls, older: "Commit", *, members: Iterable[WorkerId]) -> Self:
        """Tell who was in `older`, as a commit with these members tells it."""
        left = set(older.workers)
        kept: list[Span] = []
        for rank, worker in enumerate(members):
            if worker not in left:
                continue
            left.remove(worker)
            lo = kept.pop().lo if kept and kept[-1].hi == rank else rank
            kept.append(Span(lo, rank + 1))
        return cls(older.generation, older.digest, tuple(kept), tuple(sorted(left)))

    def workers_in(self, newer: "Commit") -> frozenset[WorkerId]:
        """Its workers; `newer` is the commit that holds this value."""
        kept = (
            newer.members[rank].worker for span in self.kept for rank in range(span.lo, span.hi)
        )
        return frozenset((*kept, *self.dropped))


class SnapshotReference(msgspec.Struct, frozen=True):
    """Which snapshot a restoring generation starts from."""

    name: str
    step: int
    digest: str
    #: Member nodes that find it in their folder; the others take the state from one of these.
    holders: tuple[str, ...] = ()


class Restored(msgspec.Struct, frozen=True):
    """A restore on the way to a generation, and the step that it began from."""

    generation: GenerationNumber
    step: int
    #: Steps after it that had been completed, as far as the store knew, and are done again.
    lost: int = 0


class Commit(Record, frozen=True, kw_only=True):
    """The self-contained record of an agreed generation; whoever holds it can act on it.

    It may arrive by any road (etcd, agent, peer) and the newest wins. A commit without members
    pauses the job: its main writes a snapshot and everybody leaves.
    """

    generation: GenerationNumber
    mode: Mode
    members: tuple[Member, ...]
    main: WorkerId | None
    reason: str
    open: tuple[OpenGeneration, ...] = ()
    snapshot: SnapshotReference | None = None
    occasion: Occasion = Occasion.NONE
    #: As in the plan.
    step_s: tuple[float, float] | None = None
    #: The restores that led here, this one included, as far as they tell which snapshots count.
    restores: tuple[Restored, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the record's JSON, which is the third part of a generation's name."""
        return hashlib.sha256(encode(self).encode()).hexdigest()

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        return tuple(member.worker for member in self.members)

    @property
    def pauses(self) -> bool:
        """The job stops at the next boundary with a snapshot; nobody runs in this generation."""
        return not self.members

    def overtakes(self, snapshot: "SnapshotRecord") -> bool:
        """A restore after the snapshot's generation began from before it: it counts no more.

        Whoever wrote it had been taken over, or was out of reach when the job was restored.
        """
        return any(
            restored.generation > snapshot.generation and restored.step < snapshot.step
            for restored in self.restores
        )

    def process_rank(self, worker: WorkerId) -> ProcessRank | None:
        """The worker's place in the group, or None when this generation goes on without it."""
        workers = self.workers
        return ProcessRank(workers.index(worker)) if worker in workers else None


class Head(Record, frozen=True, kw_only=True):
    """The one key that every write of truth compares."""

    era: int
    planned: int
    committed: int
    digest: str


class Determinism(StrEnum):
    """Between which slots the bits are kept."""

    SAME_KIND = "same-kind"
    HETEROGENEOUS = "heterogeneous"

    @property
    def level(self) -> str:
        """The EasyScale paper's word for it."""
        return "D2" if self is Determinism.HETEROGENEOUS else "D1"


class JobSpec(Record, frozen=True, kw_only=True):
    """What is fixed for a job's life; the token admits its workers and agents to one another."""

    logical_workers: int
    #: None where only the script names it.
    seed: int | None
    determinism: Determinism
    threads_per_worker: int
    token: str
    #: Ranks of each worker in the order of their slots, for whoever compares layouts; it stands as
    #: long as there are just as many workers. Not fixed for life: no layout reaches the bits.
    layout: tuple[tuple[LogicalRank, ...], ...] = ()
    #: What two slots must share to give the same bits; set by the first generation.
    kind: str = ""
    #: Of the easyscale that began the job, for whoever cannot read its records.
    release: str = ""


#: standby: registered and waiting for ranks; draining: shall hold none; in_use: named by a commit.
SlotState = Literal["starting", "standby", "in_use", "draining", "gone"]


class SlotRecord(msgspec.Struct, frozen=True):
    """One device place of a node, as its agent offers it."""

    slot: str
    kind: str
    worker: WorkerId | None = None
    state: SlotState = "starting"
    #: Where the worker's listener answers, from `register` on.
    address: str = ""
    #: Median of its measured micro-steps of this job, seconds, and how far they lie around it.
    micro_step_s: float | None = None
    spread: float | None = None
    #: Memory that its worker could still take, and what one partial sum of the gradients takes.
    free_bytes: int | None = None
    partial_bytes: int | None = None
    #: How much longer waiting for data makes each of them.
    data_wait_s: float | None = None
    #: What a rank took in the last few steps; all slots of a node that say so say it of one moment.
    recent_s: float | None = None
    #: What its worker has taken of its memory for the job.
    taken_bytes: int | None = None
    #: Its worker has formed a generation: it holds the training state, whatever else is recorded.
    has_state: bool = False
    #: Why it shall hold nothing, where its agent has taken it away: other devices, a broken one.
    withdrawn: str = ""

    @property
    def rank_s(self) -> float | None:
        """What a rank takes of a step there: a slow loader slows a slot as a slow device does."""
        if not self.micro_step_s:
            return None
        return self.micro_step_s + (self.data_wait_s or 0.0)


class NodeRecord(Record, frozen=True, kw_only=True):
    """A registration: an agent as seen in etcd, bound to its lease."""

    node: str
    incarnation: str
    boot_id: str
    host: str
    address: str
    slots: tuple[SlotRecord, ...]
    #: The newest commit this agent knows, and the number of the newest its workers entered.
    commit: Commit | None = None
    formed: GenerationNumber | None = None
    #: Goes with the commit into a store that may have forgotten both: its workers run by it.
    spec: JobSpec | None = None
    #: Nodes whose agents do not answer this one, since an exchange with them failed.
    cut: tuple[str, ...] = ()
    #: Which folder its snapshots lie in, and the newest that it brought: a store may not know them.
    folder: str = ""
    found: tuple["SnapshotRecord", ...] = ()
    #: Wishes to empty slots of it that it has taken up: they may go.
    noted: tuple[str, ...] = ()
    #: The time that it was given to leave is half over: nobody waits for a better moment.
    hurries: bool = False


class WorkerFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's own failure, as every agent needs it to judge the script and the device."""

    #: An exception's type, `SIGKILL`, `exit 3` or `hung`.
    type: str
    headline: str
    #: `train.py:41`; empty where no line of the script is to blame.
    place: str
    rank: LogicalRank | None
    step: int
    #: The generation it stood in; None before its first.
    generation: GenerationNumber | None
    pid: int | None
    log: str
    file: str = ""
    line: int = 0
    function: str = ""
    caller: str = ""
    excerpt: tuple[tuple[int, str], ...] = ()
    hidden_frames: int = 0
    #: The same everywhere by its nature: not tried again.
    refused: bool = False
    hint: str = ""
    #: How far the job had come, as its agent knew: whoever fails on its way in has made no step.
    job_step: int = 0
    #: A member on another slot lived when it happened: what was computed is not lost.
    survived: bool = False


class Ending(Record, frozen=True, kw_only=True):
    """Proof that a worker or an agent has ended (`gone/`)."""

    how: str
    exit_code: int | None = None
    signal: int | None = None
    pid: int | None = None
    #: The logical ranks it held when it ended.
    ranks: tuple[LogicalRank, ...] = ()
    step: int = 0
    #: It completed the end of training; `digest` is of the trained state.
    finished: bool = False
    digest: str = ""
    #: It was main when it completed it; None: it did not, or its agent is too old to say.
    is_main: bool | None = None
    #: It left in order, as a newer generation had asked.
    drained: bool = False
    failure: WorkerFailure | None = None


class Entry(Record, frozen=True, kw_only=True):
    """A member formed a generation (`in/`)."""

    position: Position
    has_state: bool
    #: From its last completed step to entering, seconds.
    pause_s: float | None = None


class Readiness(Record, frozen=True, kw_only=True):
    """A worker holds a plan (`ready/`)."""

    address: str


class BrokenReport(Record, frozen=True, kw_only=True):
    """A member's wait ended without its result (`broken/`)."""

    position: Position
    suspects: tuple[WorkerId, ...]
    reason: str


class Wish(Record, frozen=True, kw_only=True):
    """What a person or an agent asks of the leader."""

    kind: str  # drain, devices, migrate, rebalance, profile, stop, fence
    node: str = ""
    #: Which life of that node's agent is meant; empty: whoever has the name.
    incarnation: str = ""
    slots: tuple[str, ...] = ()
    #: For `devices`: the word that says which slots the node shall offer. For `migrate`: the NODE
    #: or NODE/SLOT that takes over. For `profile`: how many steps each size is measured.
    target: str = ""
    by: str = ""
    #: Why the node that it concerns cannot do it; it stands until that node grants another one.
    refused: str = ""


class SnapshotRecord(Record, frozen=True, kw_only=True):
    """A durable snapshot, registered under the head fence."""

    name: str
    step: int
    epoch: int
    digest: str
    bytes: int
    generation: GenerationNumber
    nodes: tuple[str, ...]
    #: Where the folder lies, as the writer's node names it.
    path: str = ""
    #: Which folder it lies in: who has the same one sees it as well. Empty: not known.
    folder: str = ""
    superseded: bool = False
    #: Why it could not be read when a generation wanted to start from it.
    rejected: str = ""


class ProgressRecord(Record, frozen=True, kw_only=True):
    """Where the job is, written by main's agent once a second."""

    position: Position
    step: int
    steps: int | None
    epoch: int
    epochs: int | None
    metrics: Mapping[str, MetricJson]
    steps_per_s: float | None
    samples_per_s: float | None


class JobState(StrEnum):
    """What a job is doing, for screens and JSON."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    RESTORING = "restoring"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """The earliest failure by causality, and what the job's history says about it."""

    worker: WorkerId
    failure: WorkerFailure
    why_ended: str
    #: script, device, budget, node or memory.
    blames: str
    #: Other places where the same failure was seen, `node/slot`.
    also_on: tuple[str, ...]
    #: Workers that ended only because of it, or that we stopped.
    victims: int


class Outcome(Record, frozen=True, kw_only=True):
    """How the job ended; a new start of the job deletes it."""

    state: JobState
    exit_code: int
    reason: str
    digest: str = ""
    step: int = 0
    cause: Cause | None = None

    @classmethod
    def of_finished(cls, main: Ending) -> Self:
        """All training is done and the script has ended, as main did."""
        return cls(
            state=JobState.FINISHED,
            exit_code=0,
            reason="script ended",
            digest=main.digest,
            step=main.step,
        )


class FileDigest(msgspec.Struct, frozen=True):
    """What one file of a snapshot must be: its size and its blake2b (32 bytes, hex)."""

    bytes: int
    blake2b: str
    #: The same of each block of 4 MiB (16 bytes, hex), which tells *where* a file is damaged.
    blocks: tuple[str, ...] = ()


class Manifest(Record, frozen=True, kw_only=True):
    """What a snapshot folder claims about itself (`manifest.json`, written last)."""

    job_id: str
    step: int
    epoch: int
    #: Step within the epoch that comes next.
    index: int
    position: Position
    #: Digest of the training state (SHA-256, hex).
    digest: str
    generation: GenerationNumber
    worker: str
    finished: bool
    logical_workers: int
    seed: int
    determinism: Determinism
    threads_per_worker: int
    torch_version: str
    created: str
    files: Mapping[str, FileDigest]
