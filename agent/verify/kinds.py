"""Fixed runs of one script on each kind of device at hand, and the first operator that differs.

Another kind of processor is played by what the libraries are told to use at most. Operators are
compared from `init` on, in micro-steps and around them (EasyScale, SC'23, section 3).
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from easyscale.agent.events import Slot
from easyscale.agent.verify import comparison
from easyscale.agent.verify.origins import Origin, digest_at, leading_to, origin
from easyscale.agent.verify.rehearsal import Hosts, Rehearsal, RehearsalSettings
from easyscale.agent.verify.scenes import fixed_scene
from easyscale.model import Determinism
from easyscale.recording import Operator, Point, Recording, Run, read_run

#: Told of each run by its name, again and again with the step that it is in.
Tell = Callable[[str, int], None]

#: Ends the names of runs that come on top of those that are planned.
LOOKING = "looking for the operator"

#: The first step also pays for what is made once.
_WARM_STEPS = 2
_FEWEST_TIMES = 4
#: The next lower kind of an x86-64 processor, by what its libraries are told.
_LOWER: Mapping[str, Mapping[str, str]] = {
    "avx2": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41",
             "MKL_CBWR": "COMPATIBLE"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}  # fmt: skip
_LOWER_NAMES = {"avx2": "sse", "avx512": "avx2"}
#: Above the numbers of the runs that were played on the same hosts before.
_FIRST_RUN = 100


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of device to run on: slots of it, or what its libraries are told."""

    name: str
    slots: tuple[Slot, ...]
    #: Played on the slots of another kind by these variables.
    told: Mapping[str, str] = {}
    #: The same one once more: nothing is told that would make it another one.
    is_repeat: bool = False

    @property
    def count(self) -> int:
        return len(self.slots)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One fixed run on one kind of device."""

    kind: str
    run: Run

    @property
    def times(self) -> "Times | None":
        """Of its micro-steps, once warm; None where too few were measured to say anything."""
        times = [
            step.seconds
            for (number, _), step in self.run.micro_steps.items()
            if number >= _WARM_STEPS and step.seconds > 0
        ]
        if len(times) < _FEWEST_TIMES:
            return None
        low, median, high = statistics.quantiles(times, n=4, method="inclusive")
        return Times(low_s=low, median_s=median, high_s=high)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Quartiles of what micro-steps took."""

    low_s: float
    median_s: float
    high_s: float


class BetweenKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The same run on two kinds; `point` None: the same bits on both."""

    kinds: tuple[str, str]
    point: Point | None
    origin: Origin | None = None


def kinds_at_hand(slots: Sequence[Slot], capability: str) -> tuple[Kind, ...]:
    """All of them; the first one, which others are held against, is that of the first slot."""
    if any(slot.name.startswith("cuda") for slot in slots):
        by_kind: dict[str, list[Slot]] = {}
        for slot in slots:
            by_kind.setdefault(slot.kind, []).append(slot)
        return tuple(Kind(name=name, slots=tuple(some)) for name, some in by_kind.items())
    own = Kind(name=capability or "this processor", slots=tuple(slots))
    if capability not in _LOWER:
        return (own,)
    played = Kind(name=_LOWER_NAMES[capability], slots=own.slots, told=_LOWER[capability])
    return (own, played)


def kinds_at_d2(kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """The same at D2, whose pins stand over what a played kind is told: it repeats the first."""
    first = kinds[0]
    again = Kind(name=f"{first.name}, again", slots=first.slots, is_repeat=True)
    return tuple(again if kind.told else kind for kind in kinds)


class OnOneKind:
    """Fixed runs on one kind at one level, on a host that stays open for all of them."""

    def __init__(
        self, hosts: Hosts, kind: str, *, steps: int, tell: Tell, measured: Measured | None = None
    ) -> None:
        self.kind = kind
        self._hosts = hosts
        self._steps = steps
        self._tell = tell
        self._measured = measured
        self._number = _FIRST_RUN

    @property
    def measured(self) -> Measured:
        """The run itself, played once."""
        if self._measured is None:
            run = self._play(f"{self._level} on {self.kind}", self._steps)
            self._measured = Measured(kind=self.kind, run=run)
        return self._measured

    def again(self) -> Measured:
        """The run once more, to be timed beside another one."""
        run = self._play(f"{self._level} on {self.kind}, timed", self._steps)
        return Measured(kind=self.kind, run=run)

    def operators(self, point: Point) -> tuple[Operator, ...]:
        """Those that may have led to this point, from `init` on."""
        name = f"{self._level} on {self.kind}, {LOOKING}"
        # What rank 0's micro-step does to the buffers is kept.
        place = (point.step, max(point.rank, 0))
        run = self._play(name, max(point.step + 1, 1), operators_of=place, operators_outside=True)
        return leading_to(point, run.operators)

    @property
    def _level(self) -> str:
        return self._hosts.settings.determinism.level

    def _play(self, name: str, steps: int, **changes: object) -> Run:
        self._number += 1
        settings = self._hosts.settings
        folder = settings.folder / f"run-{self._number}"
        recording = Recording(folder=str(folder), last_step=steps)
        recording = msgspec.structs.replace(recording, **changes)
        scene = fixed_scene(settings.logical_workers)
        self._tell(name, 0)
        Rehearsal(self._hosts, scene, recording, number=self._number).play(
            lambda step: self._tell(name, step)
        )
        return read_run(folder)


def between(one: OnOneKind, other: OnOneKind) -> BetweenKinds:
    """Compare two kinds, and where they differ the operators that led to it."""
    kinds = (one.kind, other.kind)
    found = comparison.compare(one.measured.run, other.measured.run)
    if found is None:
        return BetweenKinds(kinds=kinds, point=None)
    logs = [host.operators(found.point) for host in (one, other)]
    target = digest_at(found.point, one.measured.run)
    return BetweenKinds(kinds=kinds, point=found.point, origin=origin(*logs, target=target))


def with_kind(
    settings: RehearsalSettings, kind: Kind, determinism: Determinism
) -> RehearsalSettings:
    """Settings of a host of this kind."""
    return msgspec.structs.replace(
        settings,
        folder=settings.folder / f"{determinism.level}-{_as_file_name(kind.name)}",
        determinism=determinism,
        slots=kind.slots,
        environment={**settings.environment, **kind.told},
    )


def _as_file_name(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def capability_of(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What torch would use at most here: `avx512`, `avx2` or nothing that has a lower kind."""
    try:
        lines: Iterable[str] = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else ""
