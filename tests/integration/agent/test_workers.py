"""A forked worker is what python would have started, and its end is told after its last byte."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from easyscale.agent import events
from easyscale.agent.hardware.kernel_kills import KernelKills
from easyscale.messages import Failure, Note
from easyscale.model import WorkerId
from easyscale.pulse import Phase
from easyscale.reports import Stream
from tests.integration.agent.conftest import Nursery, lives, wait_gone
from tests.support.etcd import wait_until

TELL = """
import json, os, sys, threading
import torch
print(json.dumps({
    "name": __name__, "file": __file__, "argv": sys.argv, "path": sys.path[0],
    "main": sys.modules["__main__"].__dict__ is globals(), "cwd": os.getcwd(),
    "package": __package__, "builtins": type(__builtins__).__name__,
    "torch_threads": torch.get_num_threads(), "stdin": sys.stdin.read(),
    "group": os.getpgrp() == os.getpid(), "descriptors": len(os.listdir("/proc/self/fd")),
    "environment": {k: v for k, v in os.environ.items()
                    if k.startswith(("EASYSCALE_", "RANK", "WORLD", "MASTER", "MY_"))},
}))
"""


def told(nursery: Nursery, worker: WorkerId) -> dict[str, object]:
    assert nursery.exit(worker).exit_code == 0, nursery.output(worker, Stream.STDERR)
    answer = json.loads(nursery.output(worker))
    assert isinstance(answer, dict)
    return answer


def test_a_script_runs_as_python_runs_it(shared: Nursery, tmp_path: Path) -> None:
    environment = {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "x", "MY_OWN": "kept"}
    worker = shared.fork(tmp_path, TELL, "--lr", "0.1", environment=environment)
    answer = told(shared, worker)
    # Three streams, two of them once more for the pulse, session, and what listdir opens twice.
    assert answer.pop("descriptors") == 8
    assert answer == {
        "name": "__main__",
        "file": "script.py",
        "argv": ["script.py", "--lr", "0.1"],
        "path": str(tmp_path),
        "main": True,
        "cwd": str(tmp_path),
        "package": None,
        "builtins": "module",
        "torch_threads": 1,
        "stdin": "",
        "group": True,
        "environment": {
            "EASYSCALE_JOB_ID": "job",
            "EASYSCALE_LOGICAL_WORKERS": "4",
            "EASYSCALE_NODE": "node",
            "EASYSCALE_SLOT": "cpu:0",
            "EASYSCALE_WORKER": str(worker),
            "MY_OWN": "kept",
        },
    }


def test_a_module_runs_as_with_python_m(shared: Nursery, tmp_path: Path) -> None:
    package = tmp_path / "mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys; print(__name__, __package__, __spec__.name, sys.argv, sys.path[0])"
    )
    worker = shared.fork(tmp_path, "", "a", module="mine")
    assert shared.exit(worker).exit_code == 0, shared.output(worker, Stream.STDERR)
    argv = [str(package / "__main__.py"), "a"]
    assert shared.output(worker) == f"__main__ mine mine.__main__ {argv} {tmp_path}\n"


@pytest.mark.parametrize(
    ("text", "code", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('no way')", 1, "no way\n"),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_the_exit_code_is_the_scripts(
    shared: Nursery, tmp_path: Path, text: str, code: int, stderr: str
) -> None:
    worker = shared.fork(tmp_path, text)
    ended = shared.exit(worker)
    assert (ended.exit_code, ended.signal) == (code, None)
    assert shared.output(worker, Stream.STDERR) == stderr


def test_a_failure_is_reported_and_its_traceback_is_the_scripts_own(
    shared: Nursery, tmp_path: Path
) -> None:
    worker = shared.fork(tmp_path, "def broken():\n    raise ValueError('no')\n\nbroken()\n")
    ended = shared.exit(worker)
    assert (ended.exit_code, ended.last_words) == (1, "ValueError: no")
    said = shared.wait(events.WorkerSaid, worker).message
    assert isinstance(said, Failure)
    assert (said.type, said.text, said.line) == ("ValueError", "no", 2)
    assert shared.output(worker, Stream.STDERR) == (
        "Traceback (most recent call last):\n"
        '  File "script.py", line 4, in <module>\n'
        "    broken()\n"
        '  File "script.py", line 2, in broken\n'
        "    raise ValueError('no')\n"
        "ValueError: no\n"
    )


def test_a_script_that_is_no_python_says_where(shared: Nursery, tmp_path: Path) -> None:
    worker = shared.fork(tmp_path, "x = = 1\n")
    assert shared.exit(worker).last_words == "SyntaxError: invalid syntax"
    assert shared.output(worker, Stream.STDERR).startswith('  File "script.py", line 1\n')


def test_python_ends_as_it_always_does_except_that_nothing_blocks_it(
    shared: Nursery, tmp_path: Path
) -> None:
    text = """
import atexit, logging, logging.handlers, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
atexit.register(lambda: print("exit function"))
threading.Thread(target=lambda: (time.sleep(0.1), print("thread ended"))).start()
threading.Thread(target=lambda: time.sleep(1000), daemon=True).start()
pool = ThreadPoolExecutor(1)
pool.submit(print, "pool")
memory = logging.handlers.MemoryHandler(1000, target=logging.StreamHandler(sys.stdout))
logging.getLogger().addHandler(memory)
logging.getLogger().warning("logged")
sys.stdout.write("last line without an end")
"""
    worker = shared.fork(tmp_path, text)
    assert shared.exit(worker, within_s=5).exit_code == 0
    output = shared.output(worker)
    assert output.index("thread ended") < output.index("exit function") < output.index("logged")
    assert "last line without an end" in output
    assert "pool" in output


def test_all_output_comes_in_order_before_the_end_is_told(shared: Nursery, tmp_path: Path) -> None:
    text = """
import sys
for i in range(20000):
    print(i)
    print(-i, file=sys.stderr)
sys.stdout.write("x" * 300000)
"""
    worker = shared.fork(tmp_path, text)
    assert shared.exit(worker).exit_code == 0
    lines = "".join(f"{i}\n" for i in range(20000))
    assert shared.output(worker) == lines + "x" * 300000
    assert shared.log(worker, Stream.STDOUT).decode() == lines + "x" * 300000
    assert shared.log(worker, Stream.STDERR).decode() == "".join(f"{-i}\n" for i in range(20000))


def test_log_files_are_this_users_alone(shared: Nursery, tmp_path: Path) -> None:
    worker = shared.fork(tmp_path, "print(1)")
    shared.exit(worker)
    path = shared.log_dir / f"node/cpu-0.{worker.spawn}"
    assert {entry.stat().st_mode & 0o777 for entry in path.iterdir()} == {0o600}


def test_lines_come_while_the_worker_runs(shared: Nursery, tmp_path: Path) -> None:
    worker = shared.fork(tmp_path, "import time\nprint('now')\ntime.sleep(1000)")
    shared.wait_output(worker, "now\n")
    shared.supervisor.kill(worker, reason="seen")
    assert shared.exit(worker).signal == signal.SIGKILL


def test_a_worker_is_asked_of_the_kernel_only_if_somebody_else_killed_it(
    shared: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def explain(_: KernelKills, pid: int) -> str:
        asked.append(pid)
        return "out of memory"

    monkeypatch.setattr(KernelKills, "explain", explain)
    sleeper = "import time\nprint('now')\ntime.sleep(1000)"
    mine, theirs = (shared.fork(tmp_path, sleeper) for _ in range(2))
    for each in (mine, theirs):
        shared.wait_output(each, "now\n")
    shared.supervisor.kill(mine, reason="seen")
    os.kill(shared.pid(theirs), signal.SIGKILL)
    assert shared.exit(mine).killed_for == ""
    assert shared.exit(theirs).killed_for == "out of memory"
    assert asked == [shared.pid(theirs)]


def test_output_carries_the_rank_that_runs(shared: Nursery, tmp_path: Path) -> None:
    text = """
from easyscale.pulse import Phase
from easyscale.runtime import session
session.current().pulse.beat(Phase.MICRO_STEP, position=5, step=5, rank=3)
print("in the micro-step")
import time; time.sleep(1000)
"""
    worker = shared.fork(tmp_path, text)
    shared.wait_output(worker, "in the micro-step\n")
    assert shared.ranks[-1] == 3
    beat = shared.supervisor.beat(worker)
    assert beat is not None
    assert (beat.phase, beat.step, beat.rank) == (Phase.MICRO_STEP, 5, 3)
    shared.supervisor.kill(worker, reason="seen")
    shared.exit(worker)
    assert shared.supervisor.beat(worker) is None


def test_messages_said_last_are_heard_before_the_end(shared: Nursery, tmp_path: Path) -> None:
    text = """
from easyscale.messages import Note
from easyscale.runtime import session
for i in range(1000):
    session.current().say(Note(text=str(i)))
"""
    worker = shared.fork(tmp_path, text)
    shared.exit(worker)
    said = [
        event.message.text
        for event in shared._kept
        if isinstance(event, events.WorkerSaid)
        and event.worker == worker
        and isinstance(event.message, Note)
    ]
    assert said == [str(i) for i in range(1000)]


def test_stacks_of_all_threads_are_dumped_to_stderr(shared: Nursery, tmp_path: Path) -> None:
    text = "import time\ndef stuck():\n    print('in')\n    time.sleep(1000)\nstuck()"
    worker = shared.fork(tmp_path, text)
    shared.wait_output(worker, "in")
    shared.supervisor.dump_stacks(worker)
    shared.wait_output(worker, "in stuck", Stream.STDERR)
    assert lives(shared.pid(worker))
    shared.supervisor.kill(worker, reason="seen")
    shared.exit(worker)


def stops(pid: int) -> None:
    """Stop a process, and wait until each of its threads stands."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")

    def stands() -> bool:
        texts = [path.read_text() for path in tasks.glob("*/stat")]
        return all(text.rpartition(")")[2].split()[0] == "T" for text in texts)

    wait_until(stands, f"{pid} stands")


def is_seen_stopped(nursery: Nursery, worker: WorkerId) -> bool:
    beat = nursery.supervisor.beat(worker)
    return beat is not None and beat.is_stopped


def test_a_worker_that_is_stopped_and_dumps_nothing_is_described_by_the_kernel(
    shared: Nursery, tmp_path: Path
) -> None:
    worker = shared.fork(tmp_path, "import time\nprint('in')\ntime.sleep(1000)")
    shared.wait_output(worker, "in")
    beat = shared.supervisor.beat(worker)
    assert beat is not None
    assert not beat.is_stopped
    stops(shared.pid(worker))
    wait_until(lambda: is_seen_stopped(shared, worker), "its beat says that it was stopped")
    shared.supervisor.dump_stacks(worker)
    shared.wait_output(worker, "is stopped by a signal", Stream.STDERR)
    shared.supervisor.kill(worker, reason="seen")
    ended = shared.exit(worker)
    assert b"is stopped by a signal" in shared.log(worker, Stream.STDERR)
    assert ended.last_words == "", "what the agent says is no last word of the worker"


def test_a_death_by_signal_is_told_with_its_number(shared: Nursery, tmp_path: Path) -> None:
    worker = shared.fork(tmp_path, "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    ended = shared.exit(worker)
    assert (ended.exit_code, ended.signal) == (None, signal.SIGSEGV)
    assert "Segmentation fault" in shared.output(worker, Stream.STDERR)


FAMILY = """
import os, signal, subprocess, sys, time
for name in ("SIGTERM", "SIGINT", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
forked = os.fork()
if forked == 0:
    time.sleep(1000)
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print("family", forked, started.pid)
"""


def family(nursery: Nursery, worker: WorkerId) -> list[int]:
    nursery.wait_output(worker, "\n")
    return [nursery.pid(worker), *map(int, nursery.output(worker).split()[1:3])]


def test_a_group_that_ignores_everything_is_killed_whole(shared: Nursery, tmp_path: Path) -> None:
    # It neither reads its session (stopped threads) nor heeds SIGTERM: only SIGKILL is left.
    worker = shared.fork(tmp_path, FAMILY + "os.kill(os.getpid(), signal.SIGSTOP)")
    pids = family(shared, worker)
    while psutil.Process(pids[0]).status() != psutil.STATUS_STOPPED:
        time.sleep(0.005)
    started = time.monotonic()
    shared.supervisor.stop(worker, reason="a test")
    assert shared.exit(worker).signal == signal.SIGKILL
    assert 0.7 < time.monotonic() - started < 3
    assert wait_gone(*pids, within_s=0.5) == []


def test_a_stop_ends_a_worker_that_waits_in_python(shared: Nursery, tmp_path: Path) -> None:
    worker = shared.fork(tmp_path, FAMILY + "time.sleep(1000)")
    pids = family(shared, worker)
    shared.supervisor.stop(worker, reason="a test")
    assert shared.exit(worker, within_s=2).exit_code == 0
    assert wait_gone(*pids, within_s=0.5) == []


def test_what_a_stopped_worker_has_printed_is_delivered(shared: Nursery, tmp_path: Path) -> None:
    text = "import sys, time\nprint('begun', flush=True)\nsys.stdout.write('last words')\n"
    worker = shared.fork(tmp_path, f"{text}time.sleep(1000)")
    shared.wait_output(worker, "begun\n")
    shared.supervisor.stop(worker, reason="a test")
    assert shared.exit(worker, within_s=2).exit_code == 0
    assert shared.output(worker) == "begun\nlast words"


def test_what_a_worker_leaves_running_is_gone_when_its_end_is_told(
    shared: Nursery, tmp_path: Path
) -> None:
    worker = shared.fork(tmp_path, FAMILY + "os._exit(3)")
    assert shared.exit(worker).exit_code == 3
    pids = family(shared, worker)
    assert [pid for pid in pids if lives(pid)] == []


def test_pipes_held_outside_the_group_delay_the_end_by_a_moment_only(
    shared: Nursery, tmp_path: Path
) -> None:
    text = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                         start_new_session=True)
print("left", child.pid)
"""
    worker = shared.fork(tmp_path, text)
    assert shared.exit(worker, within_s=4).exit_code == 0
    left = int(shared.output(worker).split()[1])
    assert lives(left)  # it asked for a session of its own; it ends with the agent
    os.kill(left, signal.SIGKILL)


def test_thirty_workers_in_a_row(shared: Nursery, tmp_path: Path) -> None:
    workers = [shared.fork(tmp_path, "import sys; print(sys.argv)", str(i)) for i in range(30)]
    for index, worker in enumerate(workers):
        assert shared.exit(worker).exit_code == 0
        assert shared.output(worker) == f"['script.py', '{index}']\n"


def test_a_working_directory_that_is_gone_ends_the_worker_with_a_reason(
    shared: Nursery, tmp_path: Path
) -> None:
    worker = shared.fork(tmp_path, "", working_directory=str(tmp_path / "nowhere"))
    ended = shared.exit(worker)
    assert ended.exit_code == 1
    assert ended.last_words.startswith("FileNotFoundError: [Errno 2]")
