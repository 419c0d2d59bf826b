"""`easyscale doctor --bits`: what a script keeps at each level, and which operator differs."""

import json
import re
from pathlib import Path

import pytest
import torch

from tests.support.processes import run_easyscale

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(150),
    pytest.mark.skipif(
        torch.backends.cpu.get_cpu_capability().lower() not in {"avx2", "avx512"},
        reason="plays a lower kind of processor, and this one has none: it has no AVX2",
    ),
]

SCRIPTS = Path(__file__).parent / "scripts"


def examined(script: str, folder: Path) -> tuple[dict[str, dict[str, str]], str]:
    """The checks by name, and what was told meanwhile."""
    ended = run_easyscale("doctor", "--bits", "--json", str(SCRIPTS / script), cwd=folder)
    checks = {check["name"]: check for check in json.loads(ended.stdout)["checks"]}
    levels = {name: checks.get(name, {}).get("level") for name in ("bits at D0", "bits at D1")}
    assert set(levels.values()) == {"good"}, ended.stdout + ended.stderr
    assert checks["bits at D2"]["level"] == "good"
    # No other processor is there: nothing is said of one.
    facts = checks["bits at D2"]["facts"]
    assert facts.startswith("pinned to the baseline, a repeated run has the same bits, ")
    assert facts.endswith("another processor is not at hand to compare with")
    assert list(folder.iterdir()) == []
    return checks, ended.stderr


def _line_of(script: str, code: str) -> int:
    lines = (SCRIPTS / script).read_text().splitlines()
    return next(number for number, text in enumerate(lines, start=1) if code in text)


def test_levels_are_measured_and_the_first_operator_is_named(tmp_path: Path) -> None:
    checks, told = examined("kinds.py", tmp_path)
    line = _line_of("kinds.py", "cross_entropy(model(x), y).backward()")
    facts = checks["kinds"]["facts"]
    assert re.search(rf"of rank 0, step 0, in aten\.\w+\.\w+ \(kinds\.py:{line}\)", facts)
    # A pipe is told of each run as it begins.
    runs = re.findall(r"^training kinds\.py, run (\d+) of 9, \d+ s: D", told, re.MULTILINE)
    assert list(dict.fromkeys(runs)) == [str(number) for number in range(1, 10)], told


@pytest.mark.proof
def test_an_operator_of_the_outer_body_is_named_and_the_cost_of_d2_is_what_was_measured(
    tmp_path: Path,
) -> None:
    checks, _ = examined("kinds_outer.py", tmp_path)
    line = _line_of("kinds_outer.py", "rows @ rows.t()")
    facts = checks["kinds"]["facts"]
    assert f"at model.weight, step 0, in aten.mm.default (kinds_outer.py:{line}): D1" in facts
    cost = re.search(r"a micro-step takes (\d\.\d\d) x its time", checks["bits at D2"]["facts"])
    assert cost, checks["bits at D2"]
    # It sleeps six times as long where D2 has pinned it.
    assert float(cost[1]) > 2
