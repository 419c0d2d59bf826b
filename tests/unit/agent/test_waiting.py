"""Where the threads of a process stand, read from what the kernel shows of them."""

from pathlib import Path

import pytest

from easyscale.agent.processes.waiting import has_ended, is_stopped, where_it_waits

STAT = "{tid} ({name}) {letter} 1 2 3"


def thread(proc: Path, tid: int, name: str, letter: str, **files: str) -> None:
    task = proc / "7" / "task" / str(tid)
    task.mkdir(parents=True)
    task.joinpath("comm").write_text(f"{name}\n")
    task.joinpath("stat").write_text(STAT.format(tid=tid, name=name, letter=letter))
    for file, text in files.items():
        task.joinpath(file).write_text(text)


def test_each_thread_has_its_state_its_place_and_its_call(tmp_path: Path) -> None:
    thread(tmp_path, 7, "python) S (", "D", wchan="nfs_wait_bit_killable", syscall="0 0x3 0x7ff")
    thread(tmp_path, 8, "exchange", "R", wchan="0", syscall="running")
    assert where_it_waits(7, proc=tmp_path) == (
        "Process 7 in the kernel:\n"
        "  python) S ( waits in the kernel without an interrupt, in nfs_wait_bit_killable,"
        " system call 0\n"
        "  exchange runs\n"
    )


def test_threads_that_stand_alike_are_one_line_and_many_that_do_not_are_bounded(
    tmp_path: Path,
) -> None:
    for tid in range(10, 20):
        thread(tmp_path, tid, "pool", "S", wchan="futex_do_wait", syscall="202 0x0")
    for tid in range(100, 150):
        thread(tmp_path, tid, f"t{tid}", "S")
    lines = where_it_waits(7, proc=tmp_path).splitlines()
    assert lines[1] == "  10 threads: pool sleeps, in futex_do_wait, system call 202"
    assert lines[-1] == "  and 11 more"


@pytest.mark.parametrize("letter", ["T", "t"])
def test_a_stopped_one_is_said_to_be(tmp_path: Path, letter: str) -> None:
    thread(tmp_path, 7, "python", letter)
    assert "is stopped by a " in where_it_waits(7, proc=tmp_path)


def test_of_a_process_that_is_gone_there_is_nothing_to_say(tmp_path: Path) -> None:
    assert where_it_waits(7, proc=tmp_path) == ""


@pytest.mark.parametrize(("letters", "ended"), [("", True), ("Z", True), ("ZD", False)])
def test_a_process_has_ended_when_no_thread_of_it_is_left(
    letters: str, ended: bool, tmp_path: Path
) -> None:
    for at, letter in enumerate(letters):
        thread(tmp_path, 7 + at, "python", letter)
    assert has_ended(7, proc=tmp_path) is ended


@pytest.mark.parametrize(("letter", "stopped"), [("T", True), ("t", True), ("S", False)])
def test_who_was_stopped_is_told_from_who_sleeps(
    letter: str, stopped: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    folder.joinpath("stat").write_text(STAT.format(tid=7, name="T", letter=letter))
    assert is_stopped(7, proc=tmp_path) is stopped
    assert not is_stopped(8, proc=tmp_path)
