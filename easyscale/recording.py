"""What a worker writes down while runs are compared, and the runs read back, as frozen values.

Off unless `WorkerSettings.recording` asks for it. One file per worker, one JSON line per entry;
tensors stand in it as short digests, a few of them whole beside it as files of raw bytes.
"""

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import msgspec

from easyscale.errors import FormatError

#: Begins the names of what a script keeps in `job.state`.
USER_STATE = "job.state."

#: Ends the names of the files with the entries.
SUFFIX = ".record"


class Stage(IntEnum):
    """Where in a step something was looked at, in the order in which it happens."""

    BATCH = 0
    #: What the script keeps outside of what it registered.
    OUTSIDE = 1
    REPORT = 2
    GRADIENT = 3
    REDUCED = 4
    EVALUATION = 5
    STATE = 6


class Point(msgspec.Struct, frozen=True, order=True):
    """One thing at one moment; rank -1 stands for the process, outside of micro-steps."""

    step: int
    stage: Stage
    rank: int
    name: str


class Gate(msgspec.Struct, frozen=True):
    """Before `step` begins, generation `number` of the first era is known to the worker."""

    step: int
    number: int


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker is to write down, and where its training ends."""

    folder: str
    #: Training ends before this step, in order, as if it were the last.
    last_step: int
    gates: tuple[Gate, ...] = ()
    #: Ends by SIGKILL when its micro-steps of this step are done and its sums are not yet sent.
    killed_at: int | None = None
    #: 0 where the script asks for some loader workers, so many where it asks for none.
    other_loader_workers: int | None = None
    #: The folder of a run to hold this one against: what differs first is kept whole.
    reference: str = ""
    #: What is to be kept whole whether it differs or not.
    wanted: tuple[Point, ...] = ()
    #: The script sees a clock that depends on nothing.
    fixed_clock: bool = False
    #: Generators that the script starts from the machine's entropy start from a number.
    fixed_entropy: bool = False
    #: Writes down the operators of this micro-step.
    operators_of: tuple[int, int] | None = None
    #: Writes down all operators from `init` on that no micro-step asks for.
    operators_outside: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="entry"):
    """Base of all entries."""


class Began(Entry, frozen=True, kw_only=True, tag=True):
    """The script has registered."""

    worker: str
    #: Where the script's own files lie.
    script: str


class Loader(Entry, frozen=True, kw_only=True, tag=True):
    """The script made a loader."""

    asked_workers: int
    used_workers: int


class MicroStep(Entry, frozen=True, kw_only=True, tag=True):
    """One logical worker's share of one step; digests by name."""

    step: int
    rank: int
    batch: str
    #: Numbers as hex text, which loses nothing.
    reports: dict[str, str]
    gradients: dict[str, str]
    #: What has changed since this process last looked, as `kind value`; "" for what is gone.
    outside: dict[str, str]
    #: From the batch in the script's hands to the next one that it asked for.
    seconds: float = 0.0


class Reduced(Entry, frozen=True, kw_only=True, tag=True):
    """The mean gradients of a step as its outer body finds them."""

    step: int
    gradients: dict[str, str]


class Evaluated(Entry, frozen=True, kw_only=True, tag=True):
    """What `job.evaluate` gave to the script in a step or, behind its last line, after it."""

    step: int
    #: Evaluations of this step before it.
    number: int
    #: The registered state that was evaluated.
    state: dict[str, str]
    #: One digest a batch, in sample order.
    results: tuple[str, ...]


class Boundary(Entry, frozen=True, kw_only=True, tag=True):
    """The registered state after so many steps, and the values of `job.state`."""

    step: int
    state: dict[str, str]


class Kept(Entry, frozen=True, kw_only=True, tag=True):
    """A tensor kept whole in `file`, as raw bytes beside the record."""

    point: Point
    dtype: str
    shape: tuple[int, ...]
    file: str


class Operator(Entry, frozen=True, kw_only=True, tag=True):
    """One call of an operator: what went in, what came out, and the line that asked for it."""

    name: str
    #: A digest of each value, as of the tensors of a state.
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    place: str
    #: The logical rank whose micro-step asked for it; -1: the code around micro-steps.
    rank: int = -1


class ClockRead(Entry, frozen=True, kw_only=True, tag=True):
    """The script asked what time it is, or for the machine's entropy."""

    what: str
    place: str


AnyEntry = Began | Loader | MicroStep | Reduced | Evaluated | Boundary | Kept | Operator | ClockRead

_DECODER = msgspec.json.Decoder(AnyEntry)


def state_value(name: str) -> str:
    """How a value of `job.state` is called among the names of a state."""
    return f"{USER_STATE}{name}"


def result_name(number: int, batch: int) -> str:
    """How the result of one batch is called, in the evaluation of that number of a step."""
    return f"evaluate[{number}][{batch}]"


def encode_entry(entry: Entry) -> bytes:
    """One entry as one line."""
    return msgspec.json.encode(entry) + b"\n"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """All that the workers of one run wrote down."""

    micro_steps: dict[tuple[int, int], MicroStep]
    #: What stood outside of the registered, whole, as each micro-step found it.
    outside: dict[tuple[int, int], dict[str, str]]
    reduced: dict[int, Reduced]
    boundaries: dict[int, Boundary]
    #: By step and number.
    evaluations: dict[tuple[int, int], Evaluated] = {}
    kept: dict[Point, Kept]
    operators: tuple[Operator, ...]
    clock_reads: tuple[ClockRead, ...]
    loaders: tuple[Loader, ...]
    scripts: tuple[str, ...]
    #: Points at which two workers of this run differ from one another.
    torn: tuple[Point, ...] = ()

    @property
    def last_step(self) -> int:
        """Steps of which everything was written down."""
        return max(self.boundaries, default=0)


def read_run(folder: Path) -> Run:
    """Read what the workers of a run wrote; a killed one's last line may be missing."""
    run = _Reader()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        run.begin_worker()
        for entry in read_entries(path):
            run.take(entry)
    return run.result()


def read_entries(path: Path) -> Iterator[AnyEntry]:
    """The entries of one worker, in order; raises FormatError for what is none."""
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            if not text.endswith(b"\n"):  # its writer was killed
                return
            try:
                yield _DECODER.decode(text)
            except msgspec.DecodeError as error:
                raise FormatError(f"{path}, line {number}, is no entry: {error}") from error


class _Reader:
    """Brings the files of a run together, and notes where two of its workers disagree."""

    def __init__(self) -> None:
        self._run = Run(
            micro_steps={},
            outside={},
            reduced={},
            boundaries={},
            evaluations={},
            kept={},
            operators=(),
            clock_reads=(),
            loaders=(),
            scripts=(),
        )
        self._outside: dict[str, str] = {}
        self._operators: list[Operator] = []
        self._clock_reads: list[ClockRead] = []
        self._loaders: list[Loader] = []
        self._scripts: set[str] = set()
        self._torn: list[Point] = []

    def begin_worker(self) -> None:
        self._outside = {}

    def result(self) -> Run:
        return msgspec.structs.replace(
            self._run,
            operators=tuple(self._operators),
            clock_reads=tuple(self._clock_reads),
            loaders=tuple(self._loaders),
            scripts=tuple(sorted(self._scripts)),
            torn=tuple(sorted(self._torn)),
        )

    def take(self, entry: AnyEntry) -> None:
        run = self._run
        match entry:
            case Began():
                self._scripts.add(entry.script)
            case Loader():
                self._loaders.append(entry)
            case MicroStep():
                self._outside |= entry.outside
                present = {path: text for path, text in self._outside.items() if text}
                self._outside = present
                key = (entry.step, entry.rank)
                once = run.micro_steps.setdefault(key, entry)
                run.outside.setdefault(key, dict(present))
                self._note_torn_micro_step(once, entry)
            case Reduced():
                first = run.reduced.setdefault(entry.step, entry)
                self._note_torn(entry.step, Stage.REDUCED, first.gradients, entry.gradients)
            case Evaluated():
                self._note_torn_evaluation(
                    run.evaluations.setdefault((entry.step, entry.number), entry), entry
                )
            case Boundary():
                before = run.boundaries.setdefault(entry.step, entry)
                self._note_torn(entry.step - 1, Stage.STATE, before.state, entry.state)
            case Kept():
                run.kept.setdefault(entry.point, entry)
            case Operator():
                self._operators.append(entry)
            case ClockRead():
                self._clock_reads.append(entry)

    def _note_torn_micro_step(self, one: MicroStep, other: MicroStep) -> None:
        """A micro-step that was done again after a loss."""
        rank = one.rank
        if one.batch != other.batch:
            self._torn.append(Point(one.step, Stage.BATCH, rank, "batch"))
        self._note_torn(one.step, Stage.GRADIENT, one.gradients, other.gradients, rank=rank)

    def _note_torn_evaluation(self, one: Evaluated, other: Evaluated) -> None:
        self._note_torn(one.step, Stage.STATE, one.state, other.state)
        names = [result_name(one.number, batch) for batch in range(len(one.results))]
        self._note_torn(
            one.step,
            Stage.EVALUATION,
            dict(zip(names, one.results, strict=False)),
            dict(zip(names, other.results, strict=False)),
        )

    def _note_torn(
        self,
        step: int,
        stage: Stage,
        one: dict[str, str],
        other: dict[str, str],
        *,
        rank: int = -1,
    ) -> None:
        if one != other:
            name = next(name for name in one | other if one.get(name) != other.get(name))
            self._torn.append(Point(step, stage, rank, name))
