"""The guards of the suite itself: each must be able to fail."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.support import leaks
from tests.support.processes import ROOT, DeadlineMissed, Run, started


def test_a_child_left_running_is_named() -> None:
    before = leaks.holdings()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        (found,) = leaks.holdings().beyond(before, allowed=())
        assert found.startswith(f"child: {child.pid} ")
        assert leaks.holdings().beyond(before, allowed=["child"]) == []
    finally:
        leaks.end_children(before)
    assert leaks.leaks(before, leaks.holdings) == ""
    child.wait()


def test_an_orphaned_grandchild_is_named() -> None:
    before = leaks.holdings()
    subprocess.run(["/bin/sh", "-c", "sleep 61 & exit 0"], check=True)
    deadline = time.monotonic() + 10
    while True:
        found = leaks.holdings().beyond(before, allowed=())
        # In the middle of its exec a process has no command line.
        if any(item.endswith("sleep 61") for item in found) or time.monotonic() > deadline:
            break
    leaks.end_children(before)
    assert [item for item in found if item.endswith("sleep 61")] == found != []


def test_a_child_that_was_there_is_no_other_one_after_its_exec() -> None:
    before, after = (
        leaks.Holdings(
            child=frozenset({f"7 started 1.00: {command}"}),
            thread=frozenset(),
            socket=frozenset(),
            folder=frozenset(),
        )
        for command in ("pytest", "zygote")
    )
    assert after.beyond(before, allowed=()) == []


def test_a_listening_port_left_open_is_named() -> None:
    before = leaks.holdings()
    with socket.create_server(("127.0.0.1", 0)):
        (found,) = leaks.holdings().beyond(before, allowed=())
    assert found.startswith("socket: ")
    assert leaks.holdings().beyond(before, allowed=()) == []


def test_a_thread_left_running_is_named() -> None:
    before = leaks.holdings()
    over = threading.Event()
    thread = threading.Thread(target=over.wait, args=(10,), name="left-behind")
    thread.start()
    found = leaks.holdings().beyond(before, allowed=())
    over.set()
    thread.join()
    assert [item.split(" ")[1] for item in found] == ["left-behind"]


def test_a_socket_file_left_in_the_run_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "easyscale").mkdir()
    before = leaks.holdings([tmp_path])
    assert before.folder == frozenset()
    (tmp_path / "easyscale" / "job.sock").touch()
    after = leaks.holdings([tmp_path])
    assert after.beyond(before, allowed=()) == [f"folder: {tmp_path / 'easyscale'}"]


def test_a_missed_deadline_shows_what_the_command_said() -> None:
    program = "import time; print('so far so good', flush=True); time.sleep(60)"
    with started([sys.executable, "-c", program]) as run:
        run.wait_for("so far")
        with pytest.raises(DeadlineMissed, match=r"(?s)did not end.*so far so good"):
            run.wait(within_s=0.1)


def test_a_command_that_ends_early_is_not_waited_for() -> None:
    began = time.monotonic()
    with (
        started([sys.executable, "-c", "raise SystemExit(7)"]) as run,
        pytest.raises(DeadlineMissed, match="ended with 7"),
    ):
        run.wait_for("never said", within_s=30)
    assert time.monotonic() - began < 15


def test_ending_a_run_ends_all_below_it() -> None:
    with started(["/bin/sh", "-c", "sleep 62 & echo up; wait"]) as run:
        run.wait_for("up")
        (sleeper,) = run.descendants()
        run.signal(signal.SIGSTOP)
        run.signal(signal.SIGCONT)
    assert not sleeper.is_running()


def test_a_test_run_that_is_told_to_stop_ends_what_its_tests_started(tmp_path: Path) -> None:
    marker = f"sleep {700 + os.getpid() % 100}.25"
    lines = [
        "from tests.support.processes import started",
        "def test_endless():",
        f"    with started(['/bin/sh', '-c', 'echo up > {tmp_path}/up; {marker}; true']) as run:",
        "        run.wait()",
    ]
    inner = ROOT / "tests" / "packaging" / f"test_inner_{os.getpid()}.py"
    inner.write_text("\n".join(lines))
    try:
        with started([sys.executable, "-m", "pytest", "-q", str(inner)], cwd=ROOT) as run:
            await_file(tmp_path / "up", run)
            run.signal(signal.SIGTERM)
            assert run.wait(within_s=20) == 2
            assert [p for p in psutil.process_iter(["cmdline"]) if is_sleeping(p, marker)] == []
    finally:
        inner.unlink()


def await_file(path: Path, run: Run) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, run.report()
        time.sleep(0.02)


def is_sleeping(process: psutil.Process, command: str) -> bool:
    return " ".join(process.info["cmdline"] or []) == command
