"""Slots on which memory runs out: the job goes on with what fits there, or says that it cannot."""

import re
import sys
from pathlib import Path

from tests.support.processes import Run, launched, started

SCRIPT = Path(__file__).parent / "scripts" / "hungry.py"


def digest(run: Run) -> str:
    said = re.search(r"^(?:\[.*\] )?digest ([0-9a-f]{64})$", run.stdout, re.MULTILINE)
    assert said, run.report()
    return said[1]


def words(*slots: str, devices: str) -> tuple[str, ...]:
    return (
        "launch", "--node-name", "a", "--logical-workers", "8", "--devices", devices,
        str(SCRIPT), *slots,
    )  # fmt: skip


def test_a_slot_that_runs_out_is_given_what_fits_and_the_bits_stay(tmp_path: Path) -> None:
    """Memory for two ranks on one of two slots: it lost four, and has two when all is done."""
    alone = {"EASYSCALE_LOGICAL_WORKERS": "8"}
    with started([sys.executable, str(SCRIPT)], env=alone) as reference:
        assert reference.wait() == 0, reference.report()
    with launched(*words("cpu:1", devices="cpu:2"), cwd=tmp_path) as run:
        assert run.wait() == 0, run.report()
    assert (
        "out of memory with 4 logical ranks; a/cpu:1 takes at most 2 from now on" in run.stderr
    ), run.report()
    assert run.stderr.count("out of memory with") == 1, run.report()
    assert digest(run) == digest(reference)


def test_a_job_that_fits_on_no_slot_says_which_takes_how_much(tmp_path: Path) -> None:
    with launched(*words("cpu:0", devices="cpu:1"), cwd=tmp_path) as run:
        assert run.wait() == 1, run.report()
    assert "out of memory with 8 logical ranks; a/cpu:0 takes at most 4 from now on" in run.stderr
    short = "8 logical workers do not fit: a/cpu:0 takes 4; add a slot or make the batch smaller"
    assert short in run.stderr, run.report()
    assert "DefaultCPUAllocator: can't allocate memory" in run.stderr, run.report()
