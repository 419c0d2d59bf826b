"""`easyscale doctor --bits`: what a script keeps at each level, and which operator differs."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.processes import run_easyscale

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).parent / "scripts" / "kinds.py"
NATIVE = torch.backends.cpu.get_cpu_capability().lower()


@pytest.mark.skipif(
    NATIVE not in {"avx2", "avx512"}, reason=f"no lower kind than {NATIVE} can be played"
)
def test_levels_are_measured_and_the_first_operator_is_named(tmp_path: Path) -> None:
    ended = run_easyscale("doctor", "--bits", "--json", str(SCRIPT), cwd=tmp_path)
    answer = json.loads(ended.stdout)
    checks = {check["name"]: check for check in answer["checks"]}
    assert checks["bits at D0"]["level"] == "good", ended.stdout + ended.stderr
    assert checks["bits at D1"]["level"] == "good"
    assert checks["bits at D2"]["level"] == "good"
    assert "the same bits on" in checks["bits at D2"]["facts"]
    assert "aten." in checks["kinds"]["facts"]
    assert "(kinds.py:" in checks["kinds"]["facts"]
    assert list(tmp_path.iterdir()) == []
