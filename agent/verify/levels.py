"""What a script keeps at D0, D1 and D2, and what D2 costs, as lines of a checkup; pure."""

from collections.abc import Sequence
from pathlib import Path

from easyscale.agent.checkup.doctor_report import Check, Level, milliseconds
from easyscale.agent.verify import diagnosis
from easyscale.agent.verify.kinds import BetweenKinds, Kind, Measured
from easyscale.agent.verify.verified import Verdict, Verified

#: A cost below this is not told from noise.
_LEAST_COST = 1.03


def judge_layouts(verified: Verified) -> tuple[Check, ...]:
    """D0 and D1, from runs on one kind."""
    told = verified.diagnosis
    cure = f"easyscale verify {verified.script}   says where and why"
    match verified.verdict:
        case Verdict.SAME_BITS if not verified.steps:
            facts = f"{Path(verified.script).name} trains no step: there were no bits to compare"
            cure = "give it something to train: its epochs or its data are none"
            return (Check(name="bits", level=Level.WARNING, facts=facts, cure=cure),)
        case Verdict.SAME_BITS:
            runs = f"{len(verified.runs)} runs of {verified.steps} steps"
            # A job of one step has no time for more.
            what = "layouts, a kill and a restore" if verified.steps > 1 else "layouts"
            return (
                _good("bits at D0", "a repeated run has the same bits"),
                _good("bits at D1", f"{what} have the same bits in {runs}"),
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
    """Why D1 mixes no kinds, by the first operator that differs."""
    one, other = unpinned.kinds
    if unpinned.point is None:
        return _good("kinds", f"{one} and {other} give this script the same bits, even unpinned")
    return _good("kinds", f"{_difference(unpinned)}: D1 keeps to one kind")


def judge_pinned(pinned: BetweenKinds, cost: str) -> Check:
    """What D2 keeps between two kinds."""
    one, other = pinned.kinds
    if pinned.point is not None:
        cure = "one kind of device for this job: --determinism same-kind"
        facts = f"{_difference(pinned)}; {cost}"
        return Check(name="bits at D2", level=Level.WARNING, facts=facts, cure=cure)
    return _good("bits at D2", f"the same bits on {one} and on {other}, {cost}")


def judge_repeated(pinned: BetweenKinds, cost: str) -> Check:
    """What two runs with the pins of D2 show where no processor is there to hold one against."""
    if pinned.point is not None:
        facts = f"pinned to the baseline, a repeated run has other bits: {_difference(pinned)}"
        cure = "the same kernels in each run: --determinism same-kind"
        return Check(name="bits at D2", level=Level.WARNING, facts=f"{facts}; {cost}", cure=cure)
    facts = "pinned to the baseline, a repeated run has the same bits"
    return _good("bits at D2", f"{facts}, {cost}; another processor is not at hand to compare with")


def judge_alone(kind: Kind, cost: str) -> Check:
    """D2 where there is nothing to hold it against."""
    facts = f"not compared: one kind of device is at hand ({kind.name}); {cost}"
    return _good("bits at D2", facts)


def cost_of(unpinned: Measured, pinned: Measured) -> str:
    """What D2 costs in time on one kind; no claim where nothing was measured."""
    before, after = unpinned.times, pinned.times
    if before is None or after is None:
        return "what it costs was not measured: too few micro-steps once warm"
    ratio = after.median_s / before.median_s
    times = f"{milliseconds(after.median_s)}, unpinned {milliseconds(before.median_s)}"
    # Quartiles that overlap: as much apart as micro-steps of one run are.
    if ratio < _LEAST_COST or after.low_s <= before.high_s:
        return f"at no cost that could be measured on {pinned.kind} (a micro-step {times})"
    return f"on {pinned.kind} a micro-step takes {ratio:.2f} x its time ({times})"


def judge_devices(
    kinds: Sequence[Kind], pinned: Sequence[BetweenKinds], *, is_baseline: bool
) -> Check:
    """Which devices at hand are one kind at each level."""
    own = [kind for kind in kinds if not kind.told]
    apart = "; apart from ".join(_counted(kind) for kind in own)
    if all(slot.name.startswith("cpu") for kind in own for slot in kind.slots):
        more = "as at D1: nothing is pinned on this architecture"
        if is_baseline:
            more = "by what it pins every x86-64 slot with AVX2 and this torch, not compared here"
        return _good("one kind", f"at D0 and D1 {apart}; at D2 {more}")
    equal = {pair.kinds[1] for pair in pinned if pair.point is None}
    first, *others = own
    together = " + ".join(_counted(kind) for kind in (first, *others) if _is_in(kind, first, equal))
    rest = [kind for kind in others if kind.name not in equal]
    at_d2 = "; apart from ".join((together, *map(_counted, rest)))
    note = "; a job trains on one of these kinds at a time" if len(own) > 1 else ""
    return _good("one kind", f"at D0 and D1 {apart}. Equal at D2: {at_d2}{note}")


def _is_in(kind: Kind, first: Kind, equal: set[str]) -> bool:
    return kind is first or kind.name in equal


def _counted(kind: Kind) -> str:
    device = "CPU slot" if kind.slots[0].name.startswith("cpu") else "GPU"
    return f"{kind.count} {device}{'s' if kind.count > 1 else ''} ({kind.name})"


def _difference(found: BetweenKinds) -> str:
    """`avx2 and sse differ first at model.w, step 0, in aten.mm.default (train.py:31)`."""
    assert found.point is not None
    one, other = found.kinds
    where = f"{one} and {other} differ first at {diagnosis.describe(found.point)}"
    if found.point.step >= 0:
        where += f", step {found.point.step:,}"
    if found.origin is None:
        return f"{where}, by nothing that an operator of torch shows"
    operator = found.origin.operator
    place = diagnosis.short_place(operator.place)
    name = operator.name + (f" ({place})" if place else "")
    if found.origin.is_maker:
        return f"{where}, in {name}"
    return (
        f"{where}, in what {name} is given: no operator of torch after init made it, so NumPy, a "
        "loader worker, a file or what stands before init did"
    )


def _good(name: str, facts: str) -> Check:
    return Check(name=name, level=Level.GOOD, facts=facts)
