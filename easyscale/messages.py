"""What an agent and its workers say to each other: one JSON line a message over a socket pair.

Both unions are closed; readers `match` over them and end in `assert_never`. No message is needed
for a step to make progress: etcd and the agent may be away while training goes on.
"""

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import msgspec

from easyscale.errors import FormatError
from easyscale.model import (
    FORMAT_VERSION,
    Commit,
    Determinism,
    GenerationNumber,
    LogicalRank,
    MetricJson,
    Plan,
    Position,
    WorkerId,
)
from easyscale.recording import Recording

#: Asks a worker for the stacks of all its threads, which it writes to its stderr. A real-time
#: signal: the usual ones belong to the script and to the cluster's scheduler.
STACKS_SIGNAL = signal.SIGRTMIN + 5

#: A line longer than this is refused; a commit of 1,000 members takes about 100 kB.
MAX_LINE_BYTES = 16 * 1024 * 1024


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="message"):
    """Base of all messages; the class name travels as `message`."""


# --- worker -> agent ---------------------------------------------------------------------------


class Initialised(Message, frozen=True, kw_only=True, tag=True):
    """The script called `easyscale.init`."""

    worker: WorkerId
    pid: int
    torch_version: str
    kind: str
    format_version: int = FORMAT_VERSION
    #: Memory that this process could take, before it has taken anything.
    free_bytes: int | None = None


class Registered(Message, frozen=True, kw_only=True, tag=True):
    """The script reached `register`: the worker waits for a plan and answers at `address`."""

    worker: WorkerId
    address: str


class Ready(Message, frozen=True, kw_only=True, tag=True):
    """The worker holds this plan."""

    generation: GenerationNumber


class Entered(Message, frozen=True, kw_only=True, tag=True):
    """The worker formed this generation with all of its members."""

    generation: GenerationNumber
    position: Position
    step: int
    has_state: bool
    #: From leaving the last completed step to entering, seconds; what this change cost.
    pause_s: float


class Broken(Message, frozen=True, kw_only=True, tag=True):
    """A wait of this generation ended without its result; a newer one is needed."""

    generation: GenerationNumber
    position: Position
    suspects: tuple[WorkerId, ...]
    reason: str


class StepReport(Message, frozen=True, kw_only=True, tag=True):
    """Where the worker is, a few times a second at most."""

    position: Position
    step: int
    #: Steps of the whole job, None where the script does not say.
    steps: int | None
    epoch: int
    epochs: int | None
    metrics: Mapping[str, MetricJson]
    #: Medians over a window, seconds; None before the first.
    step_s: float | None
    micro_step_s: float | None
    exchange_wait_s: float | None
    data_wait_s: float | None
    samples_per_step: int | None
    #: How far its micro-steps lie around their median, as a share of it.
    micro_step_spread: float | None = None
    #: How much longer waiting for data makes each micro-step.
    micro_step_data_wait_s: float | None = None
    #: Both together over the last few steps alone.
    recent_rank_s: float | None = None
    #: Memory that this process could still take, and what one partial sum of gradients takes.
    free_bytes: int | None = None
    partial_bytes: int | None = None
    #: And what it has taken since `easyscale.init`.
    taken_bytes: int | None = None

    @property
    def rank_s(self) -> float | None:
        """What a rank takes of a step there, its wait for data included."""
        if not self.micro_step_s:
            return None
        return self.micro_step_s + (self.micro_step_data_wait_s or 0.0)


class SnapshotWritten(Message, frozen=True, kw_only=True, tag=True):
    """A snapshot is durable on this node's disk."""

    name: str
    step: int
    epoch: int
    digest: str
    bytes: int
    generation: GenerationNumber
    pause_s: float
    seconds: float
    #: Written since the job ends or pauses here.
    last: bool


class SnapshotFailed(Message, frozen=True, kw_only=True, tag=True):
    """A snapshot could not be written; training goes on."""

    step: int
    reason: str


class SnapshotRejected(Message, frozen=True, kw_only=True, tag=True):
    """The snapshot that a generation restores from cannot be read here."""

    name: str
    reason: str


class Note(Message, frozen=True, kw_only=True, tag=True):
    """One line for the person, such as an argument of `init` that the command line overrules."""

    text: str


class SourceLine(msgspec.Struct, frozen=True, array_like=True):
    number: int
    text: str


class Failure(Message, frozen=True, kw_only=True, tag=True):
    """The script raised; `file`, `line` and `function` are the innermost of the user's own."""

    type: str
    text: str
    rank: LogicalRank | None
    step: int
    generation: GenerationNumber | None
    file: str
    line: int
    function: str
    caller: str
    excerpt: tuple[SourceLine, ...]
    hidden_frames: int
    traceback: str
    #: A rule of easyscale was broken (ScriptError): the same everywhere, so not tried again.
    refused: bool
    hint: str = ""


class Finished(Message, frozen=True, kw_only=True, tag=True):
    """The end of training is complete; `digest` names the trained state.

    `is_main`: it came to the end as main, whatever was planned since.
    """

    position: Position
    step: int
    digest: str
    is_main: bool
    metrics: Mapping[str, MetricJson]
    epochs: int


class Drained(Message, frozen=True, kw_only=True, tag=True):
    """The worker left its group in order and ends; a newer generation goes on without it."""

    generation: GenerationNumber
    step: int


class FencedOff(Message, frozen=True, kw_only=True, tag=True):
    """A newer generation excludes this worker; it writes nothing more and ends."""

    generation: GenerationNumber


class CommitSeen(Message, frozen=True, kw_only=True, tag=True):
    """A peer passed this commit on; the agent may not know it yet."""

    commit: Commit


FromWorker = (
    Initialised
    | Registered
    | Ready
    | Entered
    | Broken
    | StepReport
    | SnapshotWritten
    | SnapshotFailed
    | SnapshotRejected
    | Note
    | Failure
    | Finished
    | Drained
    | FencedOff
    | CommitSeen
)

# --- agent -> worker ---------------------------------------------------------------------------


class Planned(Message, frozen=True, kw_only=True, tag=True):
    """A plan names this worker; it answers Ready."""

    plan: Plan


class Committed(Message, frozen=True, kw_only=True, tag=True):
    """A generation was agreed; the worker enters or leaves as the commit's mode says."""

    commit: Commit


class Lost(Message, frozen=True, kw_only=True, tag=True):
    """These workers are known to have ended: no exchange with them can complete."""

    workers: tuple[WorkerId, ...]


class Stop(Message, frozen=True, kw_only=True, tag=True):
    """End now, without writing anything."""

    reason: str


ToWorker = Planned | Committed | Lost | Stop


def encode_line(message: Message) -> bytes:
    """One message as one line."""
    return msgspec.json.encode(message) + b"\n"


_FROM_WORKER = msgspec.json.Decoder(FromWorker)
_TO_WORKER = msgspec.json.Decoder(ToWorker)


def decode_from_worker(line: bytes) -> FromWorker:
    """Read a worker's line; raises FormatError."""
    try:
        return _FROM_WORKER.decode(line)
    except msgspec.DecodeError as error:
        raise FormatError(f"a worker's message is not understood: {error}") from error


def decode_to_worker(line: bytes) -> ToWorker:
    """Read the agent's line; raises FormatError."""
    try:
        return _TO_WORKER.decode(line)
    except msgspec.DecodeError as error:
        raise FormatError(f"the agent's message is not understood: {error}") from error


# --- what a worker is born with ----------------------------------------------------------------


class WorkerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All that a worker is told when it is forked; nothing below reads the environment."""

    worker: WorkerId
    job_id: str
    token: str
    #: The address that other workers are told to connect to (its port is the listener's).
    local_host: str
    logical_workers: int
    #: None where neither command line nor environment named it: then the script's own stands.
    seed: int | None
    determinism: Determinism
    threads_per_worker: int
    partials: str
    snapshot_dir: str
    snapshot_every_steps: int | None
    snapshot_every_s: float | None
    forming_timeout_s: float
    exchange_deadline_s: float
    linger_timeout_s: float
    #: Of these the value is the launcher's default: a script that asks for another is refused.
    left_open: tuple[str, ...] = ()
    #: Addresses of members that train while this worker is forked: it has to build what they do.
    members: tuple[str, ...] = ()
    #: Set where runs are compared: what the worker writes down, and where its training ends.
    recording: Recording | None = None


class ScriptTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker runs: a file, or a module as with `python -m`."""

    path: str = ""
    module: str = ""
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.module or Path(self.path).name

    @classmethod
    def of(cls, target: str, *, is_module: bool, arguments: tuple[str, ...]) -> Self:
        if is_module:
            return cls(module=target, arguments=arguments)
        return cls(path=target, arguments=arguments)


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks the zygote for one worker.

    Four file descriptors travel with it: session socket, stdout, stderr, pulse page.
    """

    settings: WorkerSettings
    script: ScriptTarget
    environment: Mapping[str, str]
    working_directory: str


class Forked(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag=True):
    worker: WorkerId
    pid: int


class Exited(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag=True):
    """`status` is what waitpid gave."""

    worker: WorkerId
    pid: int
    status: int


class Imported(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag=True):
    """The zygote has imported torch and can fork."""

    torch_version: str
    #: What its forks will share in bits on a CPU slot (design: kind of a slot).
    cpu_kind: str
    seconds: float


class ForkRefused(msgspec.Struct, frozen=True, kw_only=True, tag_field="reply", tag=True):
    worker: WorkerId
    reason: str


FromZygote = Imported | Forked | Exited | ForkRefused
