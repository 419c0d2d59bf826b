"""Whatever happens to the agent, the zygote or a watcher, nothing is left and nothing waits."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from easyscale.agent import events
from easyscale.agent.processes.zygote_link import ZygoteSettings, zygote_environment
from easyscale.baseline import CPU_BASELINE
from easyscale.model import Determinism
from easyscale.reports import Stream
from tests.integration.agent.conftest import Nursery, lives, wait_gone
from tests.support.etcd import wait_until

SLEEP = "import time\nprint('up')\ntime.sleep(1000)\n"
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
forked = os.fork()
if forked == 0:
    time.sleep(1000)
started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
away = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                        start_new_session=True)
print("family", forked, started.pid, away.pid)
time.sleep(1000)
"""


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path)
    yield made
    made.close()


def test_closing_ends_workers_their_children_and_the_zygote(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.supervisor.start()
    ready = nursery.wait(events.ZygoteReady)
    assert ready.cpu_kind.endswith("threads-1")
    worker = nursery.fork(tmp_path, FAMILY)
    nursery.wait_output(worker, "\n")
    zygote = psutil.Process(nursery.pid(worker)).ppid()
    pids = [zygote, nursery.pid(worker), *map(int, nursery.output(worker).split()[1:])]
    nursery.close()
    assert [pid for pid in pids if lives(pid)] == []
    assert nursery.exit(worker).signal == signal.SIGKILL


def test_a_lost_zygote_takes_its_workers_along_and_can_be_started_again(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.supervisor.start()
    worker = nursery.fork(tmp_path, FAMILY)
    nursery.wait_output(worker, "\n")
    family = [nursery.pid(worker), *map(int, nursery.output(worker).split()[1:3])]
    os.kill(psutil.Process(family[0]).ppid(), signal.SIGKILL)
    assert nursery.wait(events.ZygoteLost).reason == "signal SIGKILL"
    assert nursery.exit(worker).signal == signal.SIGKILL
    assert wait_gone(*family, within_s=1) == []
    os.kill(int(nursery.output(worker).split()[3]), signal.SIGKILL)
    refused = nursery.fork(tmp_path, SLEEP)
    assert nursery.wait(events.ForkFailed, refused).reason == "there is no zygote"
    nursery.supervisor.start()
    again = nursery.fork(tmp_path, "print('again')")
    assert nursery.exit(again).exit_code == 0
    assert nursery.output(again) == "again\n"


def test_the_end_of_a_zygote_is_told_before_those_that_it_brought(
    nursery: Nursery, tmp_path: Path
) -> None:
    # Else the first worker's end alone would have the job go on with the others, which end too.
    nursery.supervisor.start()
    workers = [nursery.fork(tmp_path, SLEEP) for _ in range(3)]
    pids = [nursery.pid(worker) for worker in workers]
    os.kill(psutil.Process(pids[0]).ppid(), signal.SIGKILL)
    for worker in workers:
        nursery.exit(worker)
    ends = [
        event
        for event in nursery.story()
        if isinstance(event, events.ZygoteLost | events.WorkerExited)
    ]
    assert [type(end) for end in ends] == [events.ZygoteLost, *3 * [events.WorkerExited]]


@pytest.mark.parametrize(("code", "number"), [(3, None), (None, signal.SIGKILL)])
def test_an_end_is_told_also_where_the_zygote_stands_still(
    nursery: Nursery, tmp_path: Path, code: int | None, number: int | None
) -> None:
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    nursery.supervisor.start()
    worker = nursery.fork(tmp_path, f"{waits}os._exit({code})")
    pid = nursery.pid(worker)
    zygote = psutil.Process(pid).ppid()
    os.kill(zygote, signal.SIGSTOP)
    try:
        (tmp_path / "other").mkdir()
        other = nursery.fork(tmp_path / "other", SLEEP)
        (tmp_path / "go").touch()
        if number:
            os.kill(pid, number)
        end = nursery.exit(worker, within_s=20.0)
        nursery.supervisor.stop(other, reason="a test")
        assert "is stopped" in nursery.wait(events.ForkFailed, other, within_s=20.0).reason
    finally:
        os.kill(zygote, signal.SIGCONT)
    assert (end.exit_code, end.signal) == (code, number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()",
            "--preload mine: after its import, 2 threads run in the process that forks workers",
        ),
    ],
)
def test_a_preload_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nursery = Nursery(tmp_path, preload=("mine",))
    try:
        nursery.supervisor.start()
        worker = nursery.fork(tmp_path, SLEEP)
        assert said in nursery.wait(events.ZygoteLost).reason
        assert said in nursery.wait(events.ForkFailed, worker).reason
    finally:
        nursery.close()


def test_a_slow_watcher_holds_the_worker_back_and_nothing_else(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.supervisor.start()
    may_go_on = threading.Event()
    worker = nursery.fork(tmp_path, "print('x' * 5_000_000)")

    def hold() -> None:
        assert may_go_on.wait(20)

    nursery.before_output = hold
    pid = nursery.pid(worker)
    # It writes until the pipe is full and then waits, while others are started and stopped.
    (tmp_path / "other").mkdir()
    other = nursery.fork(tmp_path / "other", "import os; os._exit(4)")
    nursery.wait(events.WorkerForked, other)
    before = psutil.Process().memory_info().rss
    assert nursery.exit(other).exit_code == 4
    assert lives(pid)
    assert psutil.Process().memory_info().rss - before < 4_000_000
    may_go_on.set()
    assert nursery.exit(worker).exit_code == 0
    assert len(nursery.output(worker)) == 5_000_001


def test_a_full_disk_costs_the_log_and_not_the_output(nursery: Nursery, tmp_path: Path) -> None:
    folder = nursery.log_dir / "node/cpu-0.1"
    folder.mkdir(parents=True)
    (folder / "stdout.log").symlink_to("/dev/full")
    nursery.supervisor.start()
    worker = nursery.fork(tmp_path, "print('seen')")
    assert nursery.exit(worker).exit_code == 0
    assert nursery.output(worker) == "seen\n"


def test_a_log_folder_that_cannot_be_made_refuses_the_fork(
    nursery: Nursery, tmp_path: Path
) -> None:
    nursery.supervisor.start()
    (nursery.log_dir / "node/cpu-0.1").write_text("in the way")
    worker = nursery.fork(tmp_path, SLEEP)
    assert nursery.wait(events.ForkFailed, worker).reason.startswith("File exists")


def test_a_stop_before_the_fork_still_stops(nursery: Nursery, tmp_path: Path) -> None:
    nursery.supervisor.start()
    worker = nursery.fork(tmp_path, SLEEP)
    nursery.supervisor.stop(worker, reason="changed our mind")
    ended = nursery.exit(worker)
    assert (ended.exit_code, ended.signal) in {(0, None), (None, signal.SIGTERM)}


def test_a_kill_before_the_fork_still_kills(nursery: Nursery, tmp_path: Path) -> None:
    nursery.supervisor.start()
    worker = nursery.fork(tmp_path, SLEEP)
    nursery.supervisor.kill(worker, reason="changed our mind")
    assert nursery.exit(worker).signal == signal.SIGKILL


AGENT = """
import sys, time
from pathlib import Path
from tests.integration.agent.conftest import Nursery
nursery = Nursery(Path(sys.argv[1]))
nursery.supervisor.start()
worker = nursery.fork(Path(sys.argv[1]), Path(sys.argv[2]).read_text())
nursery.wait_output(worker, "\\n")
print(nursery.pid(worker), *nursery.output(worker).split()[1:], flush=True)
time.sleep(1000)
"""


def test_all_below_a_killed_agent_is_gone_within_a_second(tmp_path: Path) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path), str(tmp_path / "family.py")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with agent:
        assert agent.stdout is not None
        pids = [int(word) for word in agent.stdout.readline().split()]
        pids.append(psutil.Process(pids[0]).ppid())
        assert len(pids) == 5
        agent.kill()
        assert wait_gone(*pids, within_s=1) == []


def test_a_zygote_whose_agent_dies_while_it_imports_ends_too(tmp_path: Path) -> None:
    text = AGENT.partition("worker =")[0] + "print('started', flush=True)\ntime.sleep(1000)\n"
    agent = subprocess.Popen(
        [sys.executable, "-c", text, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    with agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "started\n"
        deadline = time.monotonic() + 5
        while not (found := psutil.Process(agent.pid).children()):
            assert time.monotonic() < deadline
        agent.kill()
        assert wait_gone(found[0].pid, within_s=5) == []


HAS_LATER = "import sys\nprint('torch._dynamo' in sys.modules)\n"


def test_more_workers_than_cores_share_every_import(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, workers=10_000)
    try:
        nursery.supervisor.start()
        worker = nursery.fork(tmp_path, HAS_LATER)
        nursery.exit(worker)
        assert nursery.output(worker) == "True\n"
    finally:
        nursery.close()


def test_a_quiet_zygote_imports_what_the_first_workers_did_without(tmp_path: Path) -> None:
    nursery = Nursery(tmp_path, quiet_s=0.5)
    try:
        nursery.supervisor.start()
        first = nursery.fork(tmp_path, HAS_LATER + "import time; time.sleep(1000)")
        nursery.wait_output(first, "False\n")
        zygote = psutil.Process(nursery.pid(first)).parent()
        assert zygote is not None
        busy_s = zygote.cpu_times().user
        deadline = time.monotonic() + 20
        while zygote.cpu_times().user < busy_s + 0.3:  # its import is under way
            assert time.monotonic() < deadline
            time.sleep(0.01)
        nursery.supervisor.kill(first, reason="in the midst of the import")
        assert nursery.exit(first).signal == signal.SIGKILL
        (tmp_path / "later").mkdir()
        later = nursery.fork(tmp_path / "later", HAS_LATER)
        nursery.exit(later)
        assert nursery.output(later) == "True\n"
    finally:
        nursery.close()


def test_closing_does_not_wait_for_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "endless.py").write_text(
        f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(60)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nursery = Nursery(tmp_path, preload=("endless",))
    try:
        nursery.supervisor.start()
        wait_until(begun.exists, "the import is under way", deadline_s=60.0)
        began_s = time.monotonic()
    finally:
        nursery.close()
    assert time.monotonic() - began_s < 1.5


def settings(**changes: object) -> ZygoteSettings:
    values: dict[str, object] = {
        "python": sys.executable,
        "environment": {},
        "log_file": Path("unused"),
        "threads_per_worker": 2,
        "determinism": Determinism.SAME_KIND,
        "workers": 1,
        "preload": (),
    }
    return ZygoteSettings(**{**values, **changes})  # type: ignore[arg-type]


def test_pins_are_set_before_torch_is_imported() -> None:
    environment = zygote_environment(settings(determinism=Determinism.HETEROGENEOUS))
    pinned = CPU_BASELINE[os.uname().machine]
    assert pinned.items() <= environment.items()
    assert not pinned.keys() & zygote_environment(settings()).keys()
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"
    assert environment["RES_OPTIONS"] == "timeout:1 attempts:1"


@pytest.mark.parametrize(
    ("given", "kept"), [("MIG-abc", None), ("", None), ("1,2", "1,2"), ("GPU-a", "GPU-a")]
)
def test_the_zygote_never_sees_devices_that_torch_would_count_through_cuda(
    given: str, kept: str | None
) -> None:
    environment = zygote_environment(settings(environment={"CUDA_VISIBLE_DEVICES": given}))
    assert environment.get("CUDA_VISIBLE_DEVICES") == kept


def test_the_output_of_a_dying_worker_is_whole(nursery: Nursery, tmp_path: Path) -> None:
    nursery.supervisor.start()
    text = "import os, signal\nprint('y' * 60000, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)"
    for _ in range(10):
        worker = nursery.fork(tmp_path, text)
        assert nursery.exit(worker).signal == signal.SIGKILL
        assert nursery.output(worker) == "y" * 60000 + "\n"
        assert nursery.log(worker, Stream.STDOUT) == b"y" * 60000 + b"\n"
