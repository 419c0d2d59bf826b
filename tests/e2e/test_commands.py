"""What a person asks of a running job, from the same machine: status, devices, drain, stop."""

import json
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from easyscale.rendezvous.embedded import EmbeddedEtcd
from tests.support.processes import STEADY, Outcome, Run, easyscale_command, launched, run_easyscale

SCRIPT = Path(__file__).parent.parent / "support" / "scripts" / "small.py"


def training(job: str, cwd: Path) -> AbstractContextManager[Run]:
    """A launch on two slots that would go on for many minutes."""
    return launched(
        "launch", "--job-id", job, "--node-name", "a", "--logical-workers", "8",
        "--devices", "cpu:2", "--snapshot-every", "5", *STEADY,
        str(SCRIPT), "pause=0.02", "epochs=2000",
        cwd=cwd,
    )  # fmt: skip


def asked(*words: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON that a command answers with."""
    ended = run_easyscale(*words, "--json")
    assert ended.code == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


#: What a full-screen program sends when it gives the terminal back.
LEAVES_THE_SCREEN = "\x1b[?1049l"


@dataclass
class Screen:
    """A command on a terminal of its own: what it wrote, and the keys it is given."""

    process: "subprocess.Popen[bytes]"
    terminal: int
    text: str = ""

    def shows(self, words: str) -> None:
        assert self._read_until(lambda: words in self.text), f"no {words!r} in {self.text!r}"
        self.text = self.text.rpartition(words)[2]

    def press(self, key: str) -> None:
        os.write(self.terminal, key.encode())

    def ends(self) -> int:
        assert self._read_until(lambda: False), f"goes on: {self.text!r}"
        return self.process.wait(10)

    def _read_until(self, is_so: Callable[[], bool]) -> bool:
        """Whether it became so, or the command ended, in time."""
        deadline = time.monotonic() + 30
        while not is_so():
            ready, _, _ = select.select(
                [self.terminal], [], [], max(0.0, deadline - time.monotonic())
            )
            try:
                data = os.read(self.terminal, 65536) if ready else b""
            except OSError:  # the other end of a terminal has closed
                return True
            if not data:
                return False
            self.text += data.decode(errors="replace")
        return True


@contextmanager
def on_a_terminal(*words: str) -> Iterator[Screen]:
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (30, 90))
    process = subprocess.Popen(
        [*easyscale_command(), *words],
        stdin=end,
        stdout=end,
        stderr=end,
        env=os.environ | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8"},
        start_new_session=True,
    )
    os.close(end)
    try:
        yield Screen(process, terminal)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def told(ended: Outcome) -> str:
    """What a person read, without the line breaks of their terminal."""
    return " ".join(ended.stderr.split())


def status_once(job: str, run: Run, is_so: Callable[[Any], bool]) -> Any:  # noqa: ANN401 - JSON
    """The first status of which something holds; commands take long enough to need no pause."""
    status = None
    for _ in range(60):
        status = asked("status", job)
        if is_so(status):
            return status
    raise AssertionError(f"never so: {status}\n{run.report()}")


def of_slots(status: Mapping[str, Any]) -> dict[str, str]:
    return {slot["slot"]: slot["state"] for slot in status["slots"]}


def test_a_running_job_tells_how_it_is_takes_other_devices_and_drains_into_a_snapshot(
    tmp_path: Path,
) -> None:
    with training("resnet", tmp_path) as run:
        run.wait_for("event=started")
        status = status_once("resnet", run, lambda it: it["metrics"] and it["job"]["step"] > 1)
        assert status["version"] == 1
        assert status["job"]["id"] == "resnet"
        assert status["job"]["state"] == "running"
        assert status["job"]["logical_workers"] == 8
        assert status["job"]["generation"] == 1
        assert status["job"]["exit_code"] is None
        assert status["metrics"]["loss"]["history"][0][1] == status["metrics"]["loss"]["first"]
        assert of_slots(status) == {"cpu:0": "in_use", "cpu:1": "in_use"}
        assert sorted(rank for slot in status["slots"] for rank in slot["ranks"]) == list(range(8))
        assert all(slot["pid"] in {p.pid for p in run.descendants()} for slot in status["slots"])
        assert status["counts"]["in_use"] == 2
        assert status["changes"]["count"] == 0
        assert status["budget"] == {"used": 0, "limit": 3}
        assert status["store"] == {"reachable": True, "silent_s": 0.0, "refuses": ""}

        [job] = asked("jobs")
        assert (job["id"], job["slots"], job["nodes"]) == ("resnet", 2, 1)

        devices = asked("devices", "resnet", "a", "--set", "cpu:3")
        assert [slot["slot"] for slot in devices["slots"]] == ["cpu:0", "cpu:1", "cpu:2"]
        # What joined trains before the line that says so is told.
        status = status_once("resnet", run, lambda it: it["changes"]["count"] == 1)
        assert status["counts"]["in_use"] == 3
        assert status["changes"]["last"][0]["event"] == "joined"
        assert status["changes"]["steps_lost"] == 0

        drained = asked("drain", "resnet", "a/cpu:2")
        assert (drained["event"], drained["node"], drained["slot"]) == ("drained", "a", "cpu:2")
        assert drained["pause_s"] >= 0.0
        assert drained["steps_lost"] == 0

        kinds = [json.loads(line)["event"] for line in _events("resnet").stdout.splitlines()]
        assert [kind for kind in kinds if kind in ("joined", "drained")] == ["joined", "drained"]

        ended = asked("drain", "resnet", "a")
        assert ended["state"] == "stopped"
        assert "asked by" in ended["reason"]
        assert ended["snapshot_step"] == ended["step"] > 0
        assert run.wait() == 0
        assert (tmp_path / ended["snapshot_path"] / "manifest.json").is_file()


def _events(job: str) -> Outcome:
    return run_easyscale("events", job, "--json")


def test_stop_ends_a_job_and_who_asks_after_it_hears_what_there_is(tmp_path: Path) -> None:
    with training("bert", tmp_path) as run:
        run.wait_for("event=started")
        missed = run_easyscale("status", "brt", "--json")
        assert missed.code == 1
        assert "no job 'brt' on this machine; it has bert" in missed.stderr
        assert "try: easyscale status bert" in missed.stderr
        assert json.loads(missed.stdout)["error"]["code"] == "job_unknown"

        refused = run_easyscale("devices", "bert", "a", "--set", "cuda:99")
        assert refused.code == 2, refused.stderr
        fenced = run_easyscale("fence", "bert", "a")
        assert (fenced.code, "drain bert a" in fenced.stderr) == (1, True)
        elsewhere = run_easyscale("drain", "bert", "b")
        assert (elsewhere.code, "it has a" in elsewhere.stderr) == (1, True)

        story = asked("status", "bert", "--story")["story"]
        assert any(line["decision"] == "leads" for line in story)
        frame = run_easyscale("status", "--once").stdout
        assert "bert ● running" in frame or "bert * running" in frame

        with on_a_terminal("status", "bert", "--color", "never") as screen:
            screen.shows("bert ● running")
            screen.press("e")
            screen.shows("e back to the status")
            screen.press("q")
            assert screen.ends() == 0
        with on_a_terminal("status", "bert", "--color", "never") as screen:
            screen.shows("bert ● running")
            stopped = run_easyscale("stop", "bert")
            assert stopped.code == 0, stopped.stderr
            assert "Drained bert" in stopped.stdout
            assert screen.ends() == 0, "with the job's own exit code"
        left = screen.text.rpartition(LEAVES_THE_SCREEN)[2]
        assert " stopped · gen 1" in left
        assert "Drained bert" in left
        assert run.wait() == 0
    assert run_easyscale("jobs", "--json").stdout == "[]\n"


@pytest.fixture
def meeting_point() -> Iterator[str]:
    server = EmbeddedEtcd.start()
    yield str(server.settings)
    server.stop()


@pytest.mark.timeout(240)  # two agents and a dozen commands
def test_from_elsewhere_a_job_is_reached_through_its_etcd(
    tmp_path: Path, meeting_point: str
) -> None:
    def node(name: str) -> AbstractContextManager[Run]:
        return launched(
            "launch", "--job-id", "far", "--node-name", name, "--logical-workers", "12",
            "--nnodes", "2:2", "--devices-file", f"{name}.devices", "--etcd", meeting_point,
            str(SCRIPT), "pause=0.02", "epochs=2000",
            cwd=tmp_path,
        )  # fmt: skip

    # Another run folder stands for another machine: no socket leads to the agents.
    (tmp_path / "other").mkdir(mode=0o700)
    far = {"XDG_RUNTIME_DIR": str(tmp_path / "other"), "EASYSCALE_ETCD": meeting_point}

    def answer(*words: str) -> Any:  # noqa: ANN401 - JSON
        ended = run_easyscale(*words, "--json", env=far)
        assert ended.code == 0, ended.stdout + ended.stderr
        return json.loads(ended.stdout)

    for name in ("a", "b"):
        (tmp_path / f"{name}.devices").write_text("cpu:1\n")
    with node("a") as first, node("b") as second:
        first.wait_for("event=started")
        status = answer("status", "far")
        assert {(slot["node"], slot["state"]) for slot in status["slots"]} == {
            ("a", "in_use"),
            ("b", "in_use"),
        }
        assert status["job"]["user"] is not None, "an agent has told it through its own door"
        assert "event=started" in run_easyscale("events", "far", env=far).stdout

        refused = run_easyscale("devices", "far", "b", "--set", "cuda:7", env=far)
        assert refused.code == 2, refused.stderr
        assert "no GPU" in told(refused)
        listed = answer("devices", "far", "b", "--set", "cpu:2")
        assert {slot["slot"] for slot in listed["slots"]} >= {"cpu:0"}
        first.wait_for("event=joined node=b slot=cpu:1")

        (tmp_path / "a.devices").write_text("cpu:2\n")
        second.wait_for("event=joined node=a slot=cpu:1")

        drained = answer("drain", "far", "b")
        assert (drained["event"], drained["node"]) == ("drained", "b")
        assert drained["pause_s"] >= 0.0
        assert second.wait() == 0
        assert first.process.poll() is None, "the job goes on"

        stopped = answer("stop", "far")
        assert stopped["state"] == "stopped"
        assert first.wait() == 0
    [job] = answer("jobs")
    assert (job["id"], job["state"]) == ("far", "stopped")
    assert run_easyscale("status", "far", "--once", env=far).code == 0


def test_an_etcd_that_is_away_is_said_and_ends_with_3(tmp_path: Path) -> None:
    ended = run_easyscale("jobs", "--etcd", "127.0.0.1:1", "--json")
    assert ended.code == 3
    assert "running jobs go on" in told(ended)
    assert json.loads(ended.stdout)["error"]["exit_code"] == 3
