"""What cannot be meant, or goes wrong in a script, is told in plain lines and a named exit code."""

import json
import signal
import socket
from pathlib import Path

import pytest

from easyscale.errors import ExitCode
from tests.support.etcd_versions import answering_version
from tests.support.processes import Outcome, launched, run_easyscale

FIRST_STEPS = """
import sys, torch, easyscale
job = easyscale.init()
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.register(model=model, optimizer=optimizer)
data = torch.utils.data.TensorDataset(torch.ones(24, 2))
loader = job.loader(data, batch_size=2, shuffle=False)
for epoch in job.epochs(2):
    for step in loader:
        for (x,) in step:
            {inside}
            model(x).sum().backward()
        optimizer.step()
        {after}
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(FIRST_STEPS.format(inside="pass", after="pass"))
    return path


def launch(cwd: Path, *words: str) -> Outcome:
    return run_easyscale("launch", *words, cwd=cwd)


def check(ended: Outcome, code: int, *facts: str) -> None:
    assert ended.code == code, ended.stderr
    for fact in facts:
        assert fact in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def test_a_missing_script_is_named_with_the_folder_that_lacks_it(tmp_path: Path) -> None:
    ended = launch(tmp_path, "--logical-workers", "2", "trian.py")
    check(ended, ExitCode.USAGE, "error: trian.py: no such file in", "try: ")


def test_a_job_has_at_least_one_logical_worker(tmp_path: Path, script: Path) -> None:
    ended = launch(tmp_path, "--logical-workers", "0", script.name)
    check(ended, ExitCode.USAGE, "error: --logical-workers 0: a job has at least 1")


def test_more_cpu_slots_than_64_a_core_are_refused(tmp_path: Path, script: Path) -> None:
    words = ("--devices", "cpu:100000", "--logical-workers", "2", script.name)
    check(launch(tmp_path, *words), ExitCode.USAGE, "the most is")


def test_a_device_that_is_not_there_is_named(tmp_path: Path, script: Path) -> None:
    words = ("--devices", "cuda:63", "--logical-workers", "2", script.name)
    check(launch(tmp_path, *words), ExitCode.USAGE, "error: --devices cuda:63")


def test_an_etcd_that_does_not_answer_ends_a_launch_with_its_own_code(
    tmp_path: Path, script: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and never listening: refused at once
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = launch(tmp_path, "--etcd", endpoint, "--logical-workers", "2", script.name)
    assert ended.code == ExitCode.STORE_OUT_OF_REACH, ended.stderr
    assert endpoint in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_etcd_of_an_older_line_is_refused_by_its_version(tmp_path: Path, script: Path) -> None:
    with answering_version("3.3.27") as endpoint:
        ended = launch(tmp_path, "--etcd", endpoint, "--logical-workers", "2", script.name)
    assert ended.code == ExitCode.STORE_OUT_OF_REACH, ended.stderr
    assert "3.3.27" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("flag", ["--snapshot-dir", "--log-dir"])
def test_a_folder_that_cannot_be_written_ends_a_launch_before_it_starts(
    tmp_path: Path, script: Path, flag: str
) -> None:
    words = (flag, f"{script.name}/inside", "--logical-workers", "2", script.name)
    check(launch(tmp_path, *words), ExitCode.USAGE, f"error: {flag} train.py/inside: ")


def test_a_second_launch_of_a_running_job_ends_at_once_until_the_first_is_gone(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(FIRST_STEPS.format(inside="pass", after="__import__('time').sleep(0.5)"))
    words = ("--devices", "cpu:1", "--job-id", "same", "--logical-workers", "2", script.name)
    with launched("launch", *words, cwd=tmp_path) as first:
        first.wait_for("event=started")
        facts = ("error: job 'same' runs here already", str(first.pid), "try: easyscale status")
        check(launch(tmp_path, *words), ExitCode.USAGE, *facts)
        first.signal(signal.SIGKILL)
        first.wait()
    with launched("launch", *words, cwd=tmp_path) as again:
        again.wait_for("event=started")


def test_a_damaged_snapshot_is_named_and_the_one_before_it_taken(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FIRST_STEPS.format(inside="pass", after="pass"))
    words = (
        "--job-id",
        "j",
        "--snapshot-every",
        "3",
        "--logical-workers",
        "2",
        "--json",
        "train.py",
    )
    whole = launch(tmp_path, *words)
    assert whole.code == 0, whole.stderr
    folders = sorted(
        path for path in (tmp_path / "runs" / "j").iterdir() if path.name[:5] == "step-"
    )
    state = folders[-1] / "state.pt"
    torn = bytearray(state.read_bytes())
    torn[len(torn) // 2] ^= 1
    state.write_bytes(torn)
    again = launch(tmp_path, *words)
    assert again.code == 0, again.stderr
    assert folders[-1].name in again.stdout + again.stderr
    assert last_event(again)["digest"] == last_event(whole)["digest"]
    for folder in (tmp_path / "runs" / "j").glob("step-*"):
        (folder / "state.pt").write_bytes(b"torn")
    none = launch(tmp_path, *words)
    assert none.code == ExitCode.JOB_FAILED
    assert "cannot be read, nor any of the " in none.stdout
    assert "finished" not in none.stdout


def last_event(ended: Outcome) -> dict[str, object]:
    event: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])
    assert event["event"] == "finished", ended.stdout
    return event


def test_an_error_in_a_micro_step_is_told_with_rank_step_slot_and_line(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        FIRST_STEPS.format(
            inside="assert not (step.number == 2 and step.rank == 1), 'planted'", after="pass"
        )
    )
    ended = launch(tmp_path, "--devices", "cpu:2", "--logical-workers", "3", script.name)
    assert ended.code == ExitCode.JOB_FAILED, ended.stderr
    box = ended.stderr[ended.stderr.index("first cause") :]
    assert "AssertionError: planted" in box
    assert "logical rank 1" in box
    assert "step 2" in box
    assert "slot cpu:" in box
    assert "train.py:12" in box
    assert "assert not (step.number == 2" in box
    assert "exit 1: job failed" in box.splitlines()[-1]


def test_a_script_that_ends_while_steps_are_due_has_not_finished(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        FIRST_STEPS.format(inside="pass", after="sys.exit(0) if step.number == 1 else None")
    )
    ended = launch(tmp_path, "--logical-workers", "2", "--devices", "cpu:1", script.name)
    assert ended.code == ExitCode.JOB_FAILED, ended.stderr
    assert "before its epochs were over" in " ".join(ended.stderr.split())


def test_a_script_that_leaves_its_epochs_early_has_finished(tmp_path: Path) -> None:
    """The control: early stopping is a break and the end of training."""
    script = tmp_path / "train.py"
    script.write_text(FIRST_STEPS.format(inside="pass", after="pass") + "    break\nsys.exit(0)\n")
    ended = launch(tmp_path, "--logical-workers", "2", "--devices", "cpu:1", script.name)
    assert ended.code == 0, ended.stderr
    assert "digest=" in ended.stderr


def test_a_script_that_never_calls_init_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    ended = launch(tmp_path, "--logical-workers", "2", "--devices", "cpu:1", script.name)
    assert ended.code == ExitCode.JOB_FAILED, ended.stderr
    assert "easyscale.init" in ended.stderr
