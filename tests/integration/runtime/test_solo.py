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


ENDS = """
import sys, torch, easyscale
how = sys.argv[1]
job = easyscale.init(seed=1, logical_workers=2)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.register(model=model, optimizer=optimizer)
data = torch.utils.data.TensorDataset(torch.arange(32.0).view(16, 2))
def bar(items):
    for item in items:
        yield item
def train():
    for _ in bar(job.epochs(2)):
        for step in job.loader(data, batch_size=2):
            for (x,) in step:
                model(x).sum().backward()
                if step.number == 2 and how == "inside":
                    return
                if step.number == 2 and how == "exit":
                    sys.exit(3)
            optimizer.step()
            if step.number == 2:
                return
train()
if how == "error":
    raise ValueError("after the loop")
"""


#: Imports torch once; each script then ends as python itself ends it.
EACH = """
import os, runpy, sys
import torch, easyscale.runtime.job
ways, children = sys.argv[1:], {}
for how in ways:
    child = os.fork()
    if not child:
        os.dup2(os.open(how, os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = ["ends.py", how]
        runpy.run_path("ends.py", run_name="__main__")
        break
    children[child] = how
else:
    for child, how in children.items():
        print(how, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.timeout(120)
def test_a_script_that_leaves_its_loops_ends_as_under_the_launcher(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    done = subprocess.run(
        [sys.executable, "-c", EACH, "early", "inside", "exit", "error"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout.splitlines() == ["early 0", "inside 1", "exit 3", "error 1"]
    early, inside, left, error = (
        (tmp_path / how).read_text() for how in ("early", "inside", "exit", "error")
    )
    assert re.search(r"^easyscale: finished step 3, digest \w{64}$", early, re.MULTILINE)
    assert "step 2 is incomplete: its inner loop at " in inside
    assert "training is not finished after step 2" in left
    assert "ValueError: after the loop" in error
    assert "finished" not in error
