"""What `doctor --bits` makes of what it measured."""

from pathlib import Path

import msgspec
import pytest

from easyscale.agent.checkup.doctor_report import Level
from easyscale.agent.verify.bits import (
    BetweenKinds,
    _capability,
    judge_kinds,
    judge_layouts,
    judge_pinned,
)
from easyscale.agent.verify.verified import Verdict
from easyscale.recording import Operator, Point, Stage
from tests.unit.views import verify_states as states

POINT = Point(0, Stage.GRADIENT, 3, "model.0.weight")
OPERATOR = Operator(
    name="aten.addmm.default", inputs="i", outputs="o", place="/home/me/train.py:31"
)
DIFFER = BetweenKinds(kinds=("avx512", "avx2"), point=POINT, operator=OPERATOR)
EQUAL = BetweenKinds(kinds=("avx512", "avx2"), point=None)


def test_equal_runs_are_good_at_d0_and_at_d1() -> None:
    checks = judge_layouts(states.SAME)
    assert [(check.name, check.level) for check in checks] == [
        ("bits at D0", Level.GOOD),
        ("bits at D1", Level.GOOD),
    ]


@pytest.mark.parametrize(
    ("verified", "name"),
    [
        (states.DIFFERS, "bits at D1"),
        (states.NOT_COMPARABLE, "bits at D0"),
        (states.NOT_FINISHED, "bits"),
    ],
)
def test_a_level_that_is_not_kept_is_a_fault_with_its_cure(verified: object, name: str) -> None:
    fault = judge_layouts(verified)[-1]  # type: ignore[arg-type]
    assert (fault.name, fault.level) == (name, Level.FAULT)
    assert fault.cure.startswith("easyscale verify train.py")


def test_the_cause_stands_in_the_fault() -> None:
    assert (
        "the time of day: train.py:40 asks time.time"
        in judge_layouts(states.NOT_COMPARABLE)[0].facts
    )


def test_two_kinds_that_differ_name_the_first_operator_and_its_line() -> None:
    check = judge_kinds(DIFFER)
    assert check.facts == (
        "avx512 and avx2 differ first at the gradient of model.0.weight of rank 3, step 0, in "
        "aten.addmm.default (train.py:31): D1 keeps to one kind"
    )
    assert check.level is Level.GOOD


def test_two_kinds_that_do_not_differ_are_said_not_to() -> None:
    assert "the same bits, even unpinned" in judge_kinds(EQUAL).facts


def test_weights_that_are_built_otherwise_have_no_step() -> None:
    point = Point(-1, Stage.STATE, -1, "model.0.weight")
    told = judge_kinds(msgspec.structs.replace(DIFFER, point=point, operator=None)).facts
    assert "model.0.weight before the first step: D1" in told


@pytest.mark.parametrize(
    ("after_s", "told"),
    [(0.021, "2.10 x its time"), (0.0101, "no cost that could be measured")],
)
def test_what_d2_costs_is_a_ratio_of_medians(after_s: float, told: str) -> None:
    check = judge_pinned(EQUAL, before_s=0.01, after_s=after_s)
    assert check.level is Level.GOOD
    assert told in check.facts


def test_kinds_that_differ_under_d2_are_a_warning_with_a_cure() -> None:
    check = judge_pinned(DIFFER, before_s=0.01, after_s=0.01)
    assert check.level is Level.WARNING
    assert "aten.addmm.default" in check.facts
    assert "--determinism same-kind" in check.cure


@pytest.mark.parametrize(
    ("flags", "capability"),
    [
        ("fma avx2 sse4_1", "avx2"),
        ("fma avx2 avx512f avx512vl avx512bw avx512dq", "avx512"),
        ("fma avx2 avx512f", "avx2"),
        ("sse2", ""),
    ],
)
def test_the_capability_is_read_from_the_flags_of_the_processor(
    tmp_path: Path, flags: str, capability: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\n")
    assert _capability(tmp_path / "cpuinfo") == capability


def test_a_machine_without_that_file_has_no_lower_kind(tmp_path: Path) -> None:
    assert _capability(tmp_path / "none") == ""


def test_every_verdict_is_judged() -> None:
    for verdict in Verdict:
        assert judge_layouts(msgspec.structs.replace(states.NOT_FINISHED, verdict=verdict))
