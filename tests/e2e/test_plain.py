"""A launch without logical workers on one node: what torchrun's users rely on, and more."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.processes import Run, easyscale_command, launched, run_easyscale, started

SCRIPT = str(Path(__file__).parent / "scripts" / "plain_worker.py")
TWO = ("launch", "--nproc-per-node", "2")


def gone(processes: list[psutil.Process]) -> bool:
    deadline = time.monotonic() + 5.0
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def both_up(tmp_path: Path) -> Iterator[Run]:
    with launched(*TWO, SCRIPT, "deaf", cwd=tmp_path) as run:
        run.wait_for(r"(?s)up \d.*up \d")
        yield run


def test_two_workers_end_well_and_leave_no_folder(tmp_path: Path) -> None:
    ended = run_easyscale(*TWO, SCRIPT, "env", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [
        "[default0]:rank 0 of 2 try 0",
        "[default1]:rank 1 of 2 try 0",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_single_worker_writes_without_a_tag(tmp_path: Path) -> None:
    assert run_easyscale("launch", SCRIPT, "env", cwd=tmp_path).stdout == "rank 0 of 1 try 0\n"


def test_the_first_cause_is_the_last_thing_on_the_screen(tmp_path: Path) -> None:
    ended = run_easyscale(*TWO, SCRIPT, "fail", cwd=tmp_path)
    assert ended.code == 1
    box = ended.stderr[ended.stderr.index("first cause") :]
    assert "ValueError: target 11 is out of bounds" in box
    assert "rank 1 · node" in box
    assert "plain_worker.py:" in box
    assert box.rstrip().endswith("─")
    assert "exit 1: job failed" in box


def test_a_worker_killed_by_a_signal_is_told_by_its_name(tmp_path: Path) -> None:
    ended = run_easyscale(*TWO, SCRIPT, "die", cwd=tmp_path)
    assert ended.code == 1
    assert "✗ killed by SIGSEGV" in ended.stderr


def test_a_failure_within_the_budget_starts_all_again_with_the_same_ranks(tmp_path: Path) -> None:
    ended = run_easyscale(*TWO, "--max-restarts", "1", "-t", "3", SCRIPT, "once", cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    assert "[default1]:rank 1 try 1" in ended.stdout
    logs = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("stdout.log"))
    assert [path.parts[-3:-1] for path in logs] == [
        ("attempt_0", "0"), ("attempt_0", "1"), ("attempt_1", "0"), ("attempt_1", "1"),
    ]  # fmt: skip


def test_sigterm_reaches_the_script_and_not_its_loader_workers(tmp_path: Path) -> None:
    with launched(*TWO, SCRIPT, "save", cwd=tmp_path) as run:
        run.wait_for(r"(?s)(up \d.*){2}")
        run.wait_for(r"(?s)(loader \d.*){2}")
        below = run.descendants()
        run.signal(signal.SIGTERM)
        assert run.wait(20) == 143, run.report()
        assert gone(below)
    assert sorted(path.name for path in tmp_path.glob("saved-*")) == ["saved-0", "saved-1"]
    assert list(tmp_path.glob("loader-told-*")) == []


def test_sigterm_goes_through_a_shell_that_does_not_exec(tmp_path: Path) -> None:
    wrapper = tmp_path / "run.sh"
    wrapper.write_text(f"#!/bin/sh\n{sys.executable} -u {SCRIPT} save\necho after\n")
    wrapper.chmod(0o755)
    with launched("launch", "--no-python", str(wrapper), cwd=tmp_path) as run:
        run.wait_for("up 0")
        run.wait_for("loader 0")
        below = run.descendants()
        run.signal(signal.SIGTERM)
        assert run.wait(20) == 143, run.report()
        assert gone(below)
    assert (tmp_path / "saved-0").read_text() == "SIGTERM"
    assert not (tmp_path / "loader-told-0").exists()


def test_a_worker_that_does_not_end_is_killed_after_its_time_with_all_below_it(
    tmp_path: Path,
) -> None:
    with launched(*TWO, "--shutdown-timeout", "1", SCRIPT, "deaf", cwd=tmp_path) as run:
        run.wait_for(r"(?s)(up \d.*){2}")
        below = run.descendants()
        began = time.monotonic()
        run.signal(signal.SIGTERM)
        assert run.wait(15) == 143, run.report()
        assert time.monotonic() - began > 1.0
        assert gone(below)


def test_a_second_ctrl_c_does_not_wait(both_up: Run) -> None:
    below = both_up.descendants()
    both_up.signal(signal.SIGINT)
    both_up.wait_for("SIGINT passed on to 2 workers")
    time.sleep(0.6)  # sooner it would be the same word, sent to the process and to its group
    both_up.signal(signal.SIGINT)
    assert both_up.wait(15) == 130
    assert gone(below)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_nothing_outlives_an_agent_that_is_killed(both_up: Run, number: signal.Signals) -> None:
    below = both_up.descendants()
    assert len(below) >= 5
    both_up.signal(number)
    both_up.wait(15)
    assert gone(below)


def test_nothing_outlives_a_keeper_that_is_killed(both_up: Run) -> None:
    (keeper,) = psutil.Process(both_up.pid).children()
    workers = [p for p in keeper.children() if SCRIPT in p.cmdline()]
    keeper.kill()
    assert both_up.wait(15) == 1
    assert "killed by SIGKILL" in both_up.stderr
    assert gone(workers)


def test_workers_start_again_below_another_keeper(tmp_path: Path) -> None:
    with launched(*TWO, "--max-restarts", "1", SCRIPT, "until", cwd=tmp_path) as run:
        run.wait_for(r"(?s)(try 0.*){2}")
        (keeper,) = psutil.Process(run.pid).children()
        keeper.kill()
        run.wait_for(r"(?s)(try 1.*){2}", within_s=20)
        (tmp_path / "enough").touch()
        assert run.wait(20) == 0, run.report()


def test_what_a_dead_worker_left_behind_ends_with_the_job(tmp_path: Path) -> None:
    with launched(*TWO, "--shutdown-timeout", "2", SCRIPT, "leave-behind", cwd=tmp_path) as run:
        run.wait_for("exited|exit 17")
        assert run.wait(20) == 1, run.report()
        assert "exit 17, no traceback" in run.stderr
        assert gone(list(run._seen.values()))


def test_a_signal_that_announces_an_end_is_passed_on_and_ends_nothing(tmp_path: Path) -> None:
    with launched(*TWO, SCRIPT, "usr1", cwd=tmp_path) as run:
        run.wait_for(r"(?s)(up \d.*){2}")
        run.signal(signal.SIGUSR1)
        assert run.wait(20) == 0, run.report()


def test_a_closed_terminal_ends_nothing_under_nohup(tmp_path: Path) -> None:
    command = ["nohup", *easyscale_command(), "launch", SCRIPT, "usr1"]
    with started(command, cwd=tmp_path) as run:
        run.wait_for("up 0")
        run.signal(signal.SIGHUP)
        run.signal(signal.SIGUSR1)
        assert run.wait(20) == 0, run.report()


def test_a_worker_that_breaks_its_promise_to_torchs_watchdog_is_killed(tmp_path: Path) -> None:
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    ended = run_easyscale("launch", SCRIPT, "late", cwd=tmp_path, env=env)
    assert ended.code == 1
    assert "in time: signal 9" in ended.stderr
    assert "killed by SIGKILL" in ended.stderr


def test_streams_go_to_files_and_to_the_console_as_they_were_asked_for(tmp_path: Path) -> None:
    ended = run_easyscale(
        *TWO, "-r", "0:1", "-t", "1:1", "--duplicate-stdout-filters", "rank",
        "--log-dir", "logs", SCRIPT, "env", cwd=tmp_path,
    )  # fmt: skip
    assert ended.stdout == "[default1]:rank 1 of 2 try 0\n"
    (run,) = (tmp_path / "logs").iterdir()
    attempt = run / "attempt_0"
    assert (attempt / "0" / "stdout.log").read_text() == "rank 0 of 2 try 0\n"
    assert (attempt / "1" / "stdout.log").read_text() == "rank 1 of 2 try 0\n"
    assert (attempt / "filtered_stdout.log").read_text() == "[default1]:rank 1 of 2 try 0\n"


def test_the_console_shows_the_ranks_that_were_asked_for(tmp_path: Path) -> None:
    ended = run_easyscale(*TWO, "--local-ranks-filter", "1", SCRIPT, "env", cwd=tmp_path)
    assert ended.stdout == "rank 1 of 2 try 0\n"
