"""An unmodified DDP script keeps its ranks, and so its bits, over whatever slots there are."""

import re
from pathlib import Path

import pytest

from tests.support.etcd import wait_until
from tests.support.processes import launched

SCRIPT = str(Path(__file__).parent / "scripts" / "ddp_checkpoint.py")
STEPS = 12


@pytest.mark.proof
def test_a_change_of_slots_starts_the_same_ranks_again_from_the_scripts_checkpoint(
    tmp_path: Path,
) -> None:
    digests = []
    for change in (False, True):
        out = tmp_path / str(change)
        out.mkdir()
        slots = out / "slots"
        slots.write_text("cpu:2\n")
        words = ["--packed", "--logical-workers", "3", "--devices-file", str(slots)]
        with launched("launch", *words, SCRIPT, str(out), str(STEPS), cwd=out) as run:
            half = out / f"done-{STEPS // 2}"
            wait_until(half.exists, "half of the steps", deadline_s=90)
            if change:
                slots.write_text("cpu:1\n")
                run.wait_for("(?s)event=started.*event=started", within_s=60)
            (out / "go").touch()
            assert run.wait(90) == 0, run.report()
            (said,) = re.findall(r"world 3 weights ([0-9a-f]{64})", run.stdout)
            digests.append(said)
    assert digests[0] == digests[1]
