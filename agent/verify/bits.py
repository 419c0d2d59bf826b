"""Between which devices a script keeps its bits: measured at D0, D1 and D2 on what is at hand.

The runs of a short `verify` come first. One of them is held against the same run on every other
kind, unpinned and pinned; its host stays open, since a host pays for one import of torch.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress

import msgspec

from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale.agent.verify.kinds import (
    BetweenKinds,
    Kind,
    Measured,
    OnOneKind,
    Tell,
    between,
    capability_of,
    kinds_at_d2,
    kinds_at_hand,
    with_kind,
)
from easyscale.agent.verify.levels import (
    cost_of,
    judge_alone,
    judge_devices,
    judge_kinds,
    judge_layouts,
    judge_pinned,
    judge_repeated,
)
from easyscale.agent.verify.rehearsal import RehearsalSettings, RunFailed, opened
from easyscale.agent.verify.verification import (
    Verification,
    VerificationSettings,
    planned_rows,
)
from easyscale.agent.verify.verified import RunRow, Verdict
from easyscale.baseline import baseline
from easyscale.model import Determinism

_D1, _D2 = Determinism.SAME_KIND, Determinism.HETEROGENEOUS


def planned_runs(settings: RehearsalSettings, *, steps: int) -> int:
    """How many there will be, beside those that look for an operator."""
    kinds = kinds_at_hand(settings.slots, capability_of())
    # Each kind at D1 and at D2; the first one at D1 is among the rows, and once more to be timed.
    return len(planned_rows(settings.logical_workers, _what(steps))) + 2 * len(kinds)


def examine(
    settings: RehearsalSettings, tell: Tell, *, steps: int, guessed: tuple[str, ...] = ()
) -> tuple[Check, ...]:
    """Run the script on every kind at hand and say what it keeps; leaves nothing behind.

    Guessed modules are imported before workers are forked; where no run comes to its end so, all
    is done again without them.
    """
    kinds = kinds_at_hand(settings.slots, capability_of())
    if guessed:
        preload = settings.preload + guessed
        folder = settings.folder / "preloaded"
        warm = msgspec.structs.replace(settings, folder=folder, preload=preload)
        with suppress(RunFailed), ExitStack() as stack:
            if checks := _examine(warm, kinds, tell, steps=steps, stack=stack, is_guess=True):
                return checks
    try:
        with ExitStack() as stack:
            return _examine(settings, kinds, tell, steps=steps, stack=stack)
    except RunFailed as failed:
        cure = "run it alone: easyscale launch"
        return (Check(name="bits", level=Level.FAULT, facts=failed.message, cure=cure),)


def _examine(
    settings: RehearsalSettings,
    kinds: Sequence[Kind],
    tell: Tell,
    *,
    steps: int,
    stack: ExitStack,
    is_guess: bool = False,
) -> tuple[Check, ...]:
    first, *others = kinds

    def watch(row: RunRow) -> None:
        if row.seconds is None and row.same is None:
            tell(f"{_D1.level}, {row.name}", row.step or 0)

    hosts = stack.enter_context(opened(with_kind(settings, first, _D1)))
    verification = Verification(hosts, _what(steps), watch)
    verified = verification.answer()
    if is_guess and verified.verdict is Verdict.NOT_FINISHED:
        return ()
    checks = judge_layouts(verified)
    if verified.verdict is not Verdict.SAME_BITS or not verified.steps:
        return checks
    assert verification.fixed is not None, "it is what all others are equal to"

    # All at once: each imports torch while another one trains.
    def on(kind: Kind, level: Determinism) -> OnOneKind:
        its_hosts = stack.enter_context(opened(with_kind(settings, kind, level), names=("a",)))
        return OnOneKind(its_hosts, kind.name, steps=steps, tell=tell)

    measured = Measured(kind=first.name, run=verification.fixed.run)
    plain = OnOneKind(hosts, first.name, steps=steps, tell=tell, measured=measured)
    unpinned = [on(kind, _D1) for kind in others]
    pinned, *pinned_others = [on(kind, _D2) for kind in kinds_at_d2(kinds)]
    apart = [judge_kinds(between(plain, other)) for other in unpinned]
    for other in pinned_others:  # the last import of torch is over when these are
        _ = other.measured
    cost = cost_of(plain.again(), pinned.measured)
    pairs = [between(pinned, other) for other in pinned_others]
    return (*checks, *apart, *_judge_d2(kinds, pairs, cost), _devices(kinds, pairs))


def _judge_d2(kinds: Sequence[Kind], pairs: Sequence[BetweenKinds], cost: str) -> tuple[Check, ...]:
    if len(kinds) == 1:
        return (judge_alone(kinds[0], cost),)
    return tuple(
        judge_repeated(pair, cost) if kind.is_repeat else judge_pinned(pair, cost)
        for kind, pair in zip(kinds_at_d2(kinds)[1:], pairs, strict=True)
    )


def _devices(kinds: Sequence[Kind], pairs: Sequence[BetweenKinds]) -> Check:
    return judge_devices(kinds, pairs, is_baseline=bool(baseline()))


def _what(steps: int) -> VerificationSettings:
    return VerificationSettings(steps=steps, width=2, keep_going=False, brief=True)
