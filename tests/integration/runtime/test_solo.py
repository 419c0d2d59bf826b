"""A script alone: loader workers cannot reach its bits, and they do not outlive it."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "scripts" / "small.py"


@pytest.mark.timeout(120)
def test_loader_workers_do_not_reach_the_bits(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), f"workers={count}"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        )
        for count in (0, 2)
    ]
    alone, shared = (run.communicate(timeout=100)[0] for run in runs)
    assert [run.returncode for run in runs] == [0, 0]
    assert re.search(r"^digest \w{64} ", alone, re.MULTILINE)
    assert shared == alone


def test_loader_workers_end_with_a_process_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "workers=2", "pause=0.05"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 50
        while len(children := psutil.Process(process.pid).children(recursive=True)) < 2:
            assert time.monotonic() < deadline, "no loader workers came"
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []
