"""Between which devices a script keeps its bits: measured at D0, D1 and D2 on what is at hand.

Another kind of processor is played by what the libraries are told to use at most; the operators of
the first micro-step that differs are then compared one by one (EasyScale, SC'23, section 3).
"""

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale.agent.events import Slot
from easyscale.agent.verify import comparison, diagnosis
from easyscale.agent.verify.rehearsal import (
    Hosts,
    Rehearsal,
    RehearsalSettings,
    RunFailed,
    opened,
)
from easyscale.agent.verify.scenes import fixed_scene
from easyscale.agent.verify.verification import Verification, VerificationSettings
from easyscale.agent.verify.verified import RunRow, Verdict, Verified
from easyscale.baseline import baseline
from easyscale.model import Determinism
from easyscale.recording import BEFORE_STEPS, Operator, Point, Recording, Run, Stage, read_run

#: What a run is named while it goes on.
Tell = Callable[[str], None]

_STEPS = 6
#: The first step also pays for what is made once.
_WARM_STEPS = 2
#: A cost below this is not told from noise.
_LEAST_COST = 1.03
#: The next lower kind of an x86-64 processor, by what its libraries are told.
_LOWER: Mapping[str, Mapping[str, str]] = {
    "avx2": {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41",
             "MKL_CBWR": "COMPATIBLE"},
    "avx512": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"},
}  # fmt: skip
_LOWER_NAMES = {"avx2": "sse", "avx512": "avx2"}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One fixed run on one kind of device."""

    kind: str
    run: Run
    digest: str

    @property
    def micro_step_s(self) -> float:
        """The median, once warm."""
        times = [step.seconds for (number, _), step in self.run.micro_steps.items()
                 if number >= _WARM_STEPS]  # fmt: skip
        return statistics.median(times) if times else 0.0


class BetweenKinds(msgspec.Struct, frozen=True, kw_only=True):
    """The same run on two kinds; `point` None: the same bits on both."""

    kinds: tuple[str, str]
    point: Point | None
    operator: Operator | None = None


def examine(settings: RehearsalSettings, tell: Tell) -> tuple[Check, ...]:
    """Run the script on every kind at hand and say what it keeps; leaves nothing behind."""
    same_kind = _with(settings, "same-kind", determinism=Determinism.SAME_KIND)
    try:
        verified = _verify(same_kind, tell)
        checks = judge_layouts(verified)
        if verified.verdict is not Verdict.SAME_BITS:
            return checks
        kinds = sorted({slot.kind for slot in settings.slots if slot.name.startswith("cuda")})
        between = _gpu_kinds if kinds else _cpu_kinds
        return (*checks, *between(same_kind, tell))
    except RunFailed as failed:
        cure = "run it alone: easyscale launch"
        return (Check(name="bits", level=Level.FAULT, facts=failed.message, cure=cure),)


# --- judged ---------------------------------------------------------------------------------------


def judge_layouts(verified: Verified) -> tuple[Check, ...]:
    """D0 and D1, from runs on one kind. Pure."""
    told = verified.diagnosis
    cure = f"easyscale verify {verified.script}   says where and why"
    match verified.verdict:
        case Verdict.SAME_BITS:
            runs = f"{len(verified.runs)} runs of {verified.steps} steps"
            return (
                _good("bits at D0", "a repeated run has the same bits"),
                _good("bits at D1", f"layouts, a kill and a restore have the same bits in {runs}"),
            )
        case Verdict.NOT_FINISHED:
            failed = verified.failed
            reason = "a run did not end" if failed is None else f"{failed.place} {failed.reason}"
            return (Check(name="bits", level=Level.FAULT, facts=reason.strip(), cure=cure),)
        case Verdict.NOT_COMPARABLE:
            facts = "a repeated run has other bits"
            if told is not None:
                facts += f"; likely cause {told.cause.words}: {', '.join(told.evidence)}"
            return (Check(name="bits at D0", level=Level.FAULT, facts=facts, cure=cure),)
        case Verdict.BITS_DIFFER:
            facts = "another layout has other bits"
            if told is not None:
                facts += f"; likely cause {told.cause.words}: {', '.join(told.evidence)}"
            return (
                _good("bits at D0", "a repeated run has the same bits"),
                Check(name="bits at D1", level=Level.FAULT, facts=facts, cure=cure),
            )


def judge_kinds(unpinned: BetweenKinds) -> Check:
    """Why D1 mixes no kinds, by the first operator that differs. Pure."""
    one, other = unpinned.kinds
    if unpinned.point is None:
        return _good("kinds", f"{one} and {other} give this script the same bits, even unpinned")
    where = f"{one} and {other} differ first at {diagnosis.describe(unpinned.point)}"
    if unpinned.point.step >= 0:
        where += f", step {unpinned.point.step:,}"
    if unpinned.operator is not None:
        place = diagnosis.short_place(unpinned.operator.place)
        where += f", in {unpinned.operator.name}" + (f" ({place})" if place else "")
    return _good("kinds", f"{where}: D1 keeps to one kind")


def judge_pinned(pinned: BetweenKinds, *, before_s: float, after_s: float) -> Check:
    """What D2 keeps, and what it costs. Pure."""
    one, other = pinned.kinds
    if pinned.point is not None:
        facts = f"{one} and {other} differ at {diagnosis.describe(pinned.point)}"
        if pinned.operator is not None:
            facts += f", first in {pinned.operator.name}"
        cure = "one kind of device for this job: --determinism same-kind"
        return Check(name="bits at D2", level=Level.WARNING, facts=facts, cure=cure)
    ratio = after_s / before_s if before_s > 0 else 1.0
    cost = f"a micro-step takes {ratio:.2f} x its time"
    if ratio < _LEAST_COST:
        cost = "at no cost that could be measured"
    return _good("bits at D2", f"the same bits on {one} and on {other}, {cost}")


def _good(name: str, facts: str) -> Check:
    return Check(name=name, level=Level.GOOD, facts=facts)


# --- measured -------------------------------------------------------------------------------------


def _verify(settings: RehearsalSettings, tell: Tell) -> Verified:
    def watch(row: RunRow) -> None:
        tell(f"{row.name}, step {row.step or 0}")

    what = VerificationSettings(steps=_STEPS, width=2, keep_going=False)
    with opened(settings) as hosts:
        return Verification(hosts, what, watch).answer()


def _cpu_kinds(settings: RehearsalSettings, tell: Tell) -> tuple[Check, ...]:
    capability = _capability()
    lower = _LOWER.get(capability)
    if lower is None or not baseline():
        facts = "this processor has no lower kind that could be played: not measured"
        return (_good("bits at D2", facts),)
    names = (capability, _LOWER_NAMES[capability])
    told = {**settings.environment, **lower}
    plain = _OnOneHost(_with(settings, f"on-{names[0]}"), names[0], tell)
    other = _OnOneHost(_with(settings, f"on-{names[1]}", environment=told), names[1], tell)
    unpinned = _between(plain, other)
    pinned_here, pinned_there = (
        _OnOneHost(_with(one.settings, f"d2-{one.kind}", determinism=_D2), one.kind, tell)
        for one in (plain, other)
    )
    pinned = _between(pinned_here, pinned_there)
    cost = judge_pinned(
        pinned,
        before_s=plain.measured.micro_step_s,
        after_s=pinned_here.measured.micro_step_s,
    )
    return judge_kinds(unpinned), cost


def _gpu_kinds(settings: RehearsalSettings, tell: Tell) -> tuple[Check, ...]:
    by_kind: dict[str, Slot] = {slot.kind: slot for slot in reversed(settings.slots)}
    if len(by_kind) == 1:
        facts = f"one kind of device is at hand ({next(iter(by_kind))}): D2 was not measured"
        return (_good("bits at D2", facts),)
    kinds = sorted(by_kind)[:2]
    plain, _ = (
        _OnOneHost(_with(settings, f"on-{n}", slots=(by_kind[kind],)), kind, tell)
        for n, kind in enumerate(kinds)
    )
    here, there = (
        _OnOneHost(_with(settings, f"d2-{n}", slots=(by_kind[kind],), determinism=_D2), kind, tell)
        for n, kind in enumerate(kinds)
    )
    pinned = _between(here, there)
    cost = judge_pinned(
        pinned, before_s=plain.measured.micro_step_s, after_s=here.measured.micro_step_s
    )
    return (cost,)


_D2 = Determinism.HETEROGENEOUS


class _OnOneHost:
    """Fixed runs with one environment; each opens its host anew, since torch reads it once."""

    def __init__(self, settings: RehearsalSettings, kind: str, tell: Tell) -> None:
        self.settings = settings
        self.kind = kind
        self._tell = tell
        self._measured: Measured | None = None

    @property
    def measured(self) -> Measured:
        if self._measured is None:
            self._measured = self._play(_STEPS, None, number=1)
        return self._measured

    def operators(self, step: int, rank: int) -> tuple[Operator, ...]:
        return self._play(max(step + 1, 1), (step, rank), number=2).run.operators

    def _play(self, steps: int, operators_of: tuple[int, int] | None, *, number: int) -> Measured:
        folder = self.settings.folder / f"run-{number}"
        recording = Recording(folder=str(folder), last_step=steps, operators_of=operators_of)
        level = self.settings.determinism.level

        def told(step: int) -> None:
            self._tell(f"{level} on {self.kind}, step {step}")

        with opened(self.settings, names=("a",)) as hosts:
            outcome = self._rehearse(hosts, recording, number, told)
        return Measured(kind=self.kind, run=read_run(folder), digest=outcome)

    def _rehearse(
        self, hosts: Hosts, recording: Recording, number: int, told: Callable[[int], None]
    ) -> str:
        scene = fixed_scene(self.settings.logical_workers)
        return Rehearsal(hosts, scene, recording, number=number).play(told).digests[0]


def _between(one: _OnOneHost, other: _OnOneHost) -> BetweenKinds:
    """Compare two kinds, and where they differ the operators of that micro-step."""
    kinds = (one.kind, other.kind)
    found = comparison.compare(one.measured.run, other.measured.run)
    if found is None:
        return BetweenKinds(kinds=kinds, point=None)
    point, operator = found.point, None
    if point.stage is Stage.GRADIENT:
        logs = (host.operators(point.step, point.rank) for host in (one, other))
        operator = diagnosis.first_unequal_operator(*logs)
    elif point.step < 0 or point.stage is Stage.BATCH:
        logs = (host.operators(*BEFORE_STEPS) for host in (one, other))
        operator = diagnosis.first_unequal_operator(*logs)
    return BetweenKinds(kinds=kinds, point=point, operator=operator)


def _with(settings: RehearsalSettings, name: str, **changes: object) -> RehearsalSettings:
    folder = settings.folder / name
    return msgspec.structs.replace(settings, folder=folder, **changes)


def _capability(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What torch would use at most here: `avx512`, `avx2` or nothing that has a lower kind."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    flags = next((set(line.split()) for line in lines if line.startswith("flags")), set())
    if {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= flags:
        return "avx512"
    return "avx2" if {"avx2", "fma"} <= flags else ""
