"""What a step takes of memory, whatever the number of logical workers that a slot computes."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "peak.py"


def peaks(folder: Path, *runs: tuple[str, ...]) -> list[tuple[int, int]]:
    """Bytes of tensors at the peak of a step, and of one set of gradients, of each run."""
    started = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        )
        for words in runs
    ]
    said = [run.communicate(timeout=100)[0] for run in started]
    assert [run.returncode for run in started] == [0] * len(runs)
    found = [re.search(r"^peak (\d+) gradients (\d+)$", text, re.MULTILINE) for text in said]
    return [(int(each[1]), int(each[2])) for each in found if each is not None]


@pytest.mark.timeout(120)
def test_a_step_takes_one_partial_sum_for_twice_the_ranks_and_nothing_else_for_any_of_them(
    tmp_path: Path,
) -> None:
    """Exactly: 16 ranks are three doublings of 2; activations, batches and reports add no byte."""
    (few, gradients), (many, _) = peaks(tmp_path, ("2",), ("16",))
    assert many - few == 3 * gradients


@pytest.mark.timeout(120)
def test_what_grows_with_each_rank_is_seen(tmp_path: Path) -> None:
    (few, gradients), (many, _) = peaks(tmp_path, ("2", "hoards"), ("16", "hoards"))
    assert many - few >= 14 * gradients
