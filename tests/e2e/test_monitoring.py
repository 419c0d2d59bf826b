"""What a person sees of a job that runs: its logs, its metrics, its live screen; from anywhere."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from easyscale.agent.doors.metrics import FAMILIES
from easyscale.rendezvous.embedded import EmbeddedEtcd
from tests.support.processes import STEADY, Run, easyscale_command, launched, run_easyscale

SCRIPT = Path(__file__).parent / "scripts" / "talkative.py"
DEADLINE_S = 90.0


def training(job: str, cwd: Path, *words: str, node: str = "a") -> AbstractContextManager[Run]:
    return launched(
        "launch", "--job-id", job, "--node-name", node, "--logical-workers", "4",
        "--devices", "cpu:2", "--metrics-port", "0", *STEADY, *words, str(SCRIPT), "epochs=2000",
        cwd=cwd,
    )  # fmt: skip


def lines(*words: str, env: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """The JSON lines that a command answers with."""
    ended = run_easyscale(*words, "--json", env=env)
    assert ended.code == 0, ended.stdout + ended.stderr
    return [json.loads(line) for line in ended.stdout.splitlines()]


def scraped(run: Run) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    port = run.wait_for(r"metrics at http://[^ ]*:(\d+)/metrics").group(1)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        text = answer.read().decode()
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_logs_are_followed_with_their_ranks_and_metrics_are_told(tmp_path: Path) -> None:
    with training("talk", tmp_path) as run:
        run.wait_for("event=started")
        run.wait_for(r"step 5 rank 3")
        with launched("logs", "talk", "-f", "--rank", "2", cwd=tmp_path) as following:
            following.wait_for(r"\[a/cpu:\d r2\] step \d+ rank 2")
            printed = lines("logs", "talk")
            assert len(printed) > 20
            for line in printed:
                said = re.search(r"rank (\d)", line["text"])
                expected = int(said.group(1)) if said else None
                assert line["rank"] == expected, line
            assert {line["stream"] for line in printed} == {"stdout", "stderr"}
            times = [line["at"] for line in printed]
            assert times == sorted(times)
            only = lines("logs", "talk", "--slot", "cpu:1", "--since", "1h")
            assert {line["slot"] for line in only} == {"cpu:1"}
            assert not any(
                line["at"] < only[len(only) // 2]["at"]
                for line in lines("logs", "talk", "--since", only[-1]["at"])
            )

            plain = {"LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii", "TERM": "dumb"}
            for words in (("status", "--once"), ("logs", "talk", "--since", "1s"), ("events",)):
                shown_plainly = run_easyscale(*words, env=plain)
                assert shown_plainly.code == 0
                assert shown_plainly.stdout.isascii()
                assert "\x1b" not in shown_plainly.stdout

            told = scraped(run)
            assert told.keys() <= {family.name for family in FAMILIES}
            assert told["easyscale_step"][0][1] > 0
            assert ({"job_id": "talk", "state": "running"}, 1.0) in told["easyscale_job_state"]
            assert {labels["slot"] for labels, _ in told["easyscale_slot_ranks"]} == {
                "cpu:0",
                "cpu:1",
            }

            [moves] = [line["story"] for line in lines("status", "talk", "--story", "--rank", "2")]
            assert "rank 2 -> a/cpu:" in moves[0]["decision"]

            assert run_easyscale("stop", "talk").code == 0
            assert following.wait(60) == 0
            assert run.wait() == 0
        shown = following.stdout.splitlines()
        assert all(line.endswith("rank 2") for line in shown)
        stored = "".join(path.read_text() for path in tmp_path.glob("runs/talk/logs/a/*/std*.log"))
        of_rank = [line for line in stored.splitlines() if line.endswith("rank 2")]
        assert len(shown) == len(of_rank), "to the last line"

        # The files hold what was printed and nothing else; they are read when nobody is left.
        allowed = re.compile(r"step \d+ rank \d|warning of rank \d|outer \d+|the very last line")
        assert all(allowed.fullmatch(line) for line in stored.splitlines())
        ended = run_easyscale("logs", "talk", "--rank", "2", cwd=tmp_path).stdout.splitlines()
        # What two streams bring in the same moment has no order between them, each has its own.
        for stream in ("step", "warning"):
            assert [one for one in ended if stream in one] == [
                one for one in shown if stream in one
            ]
        assert len(ended) == len(shown)
        elsewhere = run_easyscale("logs", "talk")
        assert (elsewhere.code, "no job 'talk' on this machine" in elsewhere.stderr) == (1, True)


@pytest.fixture
def meeting_point() -> Iterator[str]:
    server = EmbeddedEtcd.start()
    yield str(server.settings)
    server.stop()


@pytest.mark.timeout(300)  # two agents and a dozen commands
@pytest.mark.proof
def test_from_elsewhere_the_agents_of_all_nodes_tell_what_they_know(
    tmp_path: Path, meeting_point: str
) -> None:
    # Another run folder stands for another machine: only the agents' own doors lead to them.
    (tmp_path / "other").mkdir(mode=0o700)
    far = {"XDG_RUNTIME_DIR": str(tmp_path / "other"), "EASYSCALE_ETCD": meeting_point}
    meet = ("--nnodes", "2:2", "--etcd", meeting_point)
    folders = {}
    for name in ("a", "b"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
    with (
        training("far", folders["a"], *meet, node="a") as first,
        training("far", folders["b"], *meet, node="b") as second,
    ):
        first.wait_for("event=started")
        second.wait_for("step 3 rank")
        [status] = lines("status", "far", env=far)
        pids = {slot["pid"] for slot in status["slots"]}
        running = {p.pid for p in (*first.descendants(), *second.descendants())}
        assert pids <= running, "each node's agent told its own"
        assert len(pids) == 4

        kinds = [event["event"] for event in lines("events", "far", env=far)]
        assert "started" in kinds
        for node in ("a", "b"):
            [story] = lines("status", "far", "--story", "--node", node, env=far)
            assert {line["node"] for line in story["story"]} == {node}
        missed = run_easyscale("status", "far", "--story", "--node", "c", "--json", env=far)
        assert json.loads(missed.stdout)["error"]["code"] == "node_unknown"

        printed = lines("logs", "far", env=far)
        assert {line["node"] for line in printed} == {"a", "b"}
        assert {line["rank"] for line in printed} == {None, 0, 1, 2, 3}
        of_b = lines("logs", "far", "--node", "b", env=far)
        assert {line["node"] for line in of_b} == {"b"}
        wrong = run_easyscale("logs", "far", "--node", "bb", env=far)
        assert (wrong.code, "it has a, b" in " ".join(wrong.stderr.split())) == (1, True)

        assert run_easyscale("drain", "far", "b", env=far).code == 0
        assert second.wait() == 0
        changed = [event["event"] for event in lines("events", "far", env=far)]
        assert "drained" in changed
        [status] = lines("status", "far", env=far)
        assert status["changes"]["count"] >= 1

        with launched("events", "far", "-f", env=far) as following:
            following.wait_for("event=drained")
            assert run_easyscale("stop", "far", env=far).code == 0
            assert following.wait(60) == 0
        assert first.wait() == 0
    ended = run_easyscale("logs", "far", env=far, cwd=tmp_path)
    assert ended.code == 1
    assert "its logs lie on its nodes" in " ".join(ended.stderr.split())
    assert run_easyscale("events", "far", env=far).code == 1
    [status] = lines("status", "far", env=far)
    assert status["job"]["state"] == "stopped"


def test_a_metrics_port_that_is_taken_ends_the_launch_at_once(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        ended = run_easyscale(
            "launch", "--logical-workers", "2", "--metrics-port", str(port), str(SCRIPT),
            cwd=tmp_path,
        )  # fmt: skip
    assert ended.code == 2
    assert f"--metrics-port {port}: Address already in use" in " ".join(ended.stderr.split())


def test_an_etcd_that_is_away_is_no_reason_to_guess() -> None:
    ended = run_easyscale("logs", "any", "--etcd", "127.0.0.1:1", "--json")
    assert ended.code == 3
    assert json.loads(ended.stdout)["error"]["code"] == "store_unreachable"


# --- the live screen ---------------------------------------------------------------------------


class Tmux:
    """A terminal multiplexer of our own: a screen that can be resized, typed at and read."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def __call__(self, *words: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def open(self, *words: str, cells: int, rows: int, env: Mapping[str, str]) -> None:
        told = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
        size = ("-x", str(cells), "-y", str(rows))
        self("new-session", "-d", "-s", "s", *size, *told, *words)

    def screen(self) -> list[str]:
        return self("capture-pane", "-p", "-t", "s").splitlines()

    def until(self, is_so: Callable[[list[str]], bool], what: str) -> list[str]:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            screen = self.screen()
            if is_so(screen):
                return screen
            time.sleep(0.2)
        state = self("list-panes", "-F", "#{pane_pid} #{pane_width}x#{pane_height} #{pane_dead}")
        raise AssertionError(f"never {what}: {state}\n" + "\n".join(self.screen()))

    def shows(self, words: str) -> list[str]:
        return self.until(lambda screen: any(words in row for row in screen), repr(words))

    def press(self, *keys: str) -> None:
        self("send-keys", "-t", "s", *keys)

    def resize(self, cells: int, rows: int) -> None:
        self("resize-window", "-t", "s", "-x", str(cells), "-y", str(rows))

    def history(self) -> str:
        return self("capture-pane", "-p", "-S", "-200", "-t", "s")

    def close(self) -> None:
        with contextlib.suppress(AssertionError):  # it was never opened
            self("kill-server")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: a screen that is resized needs a terminal")
    made = Tmux(tmp_path)
    yield made
    made.close()


@pytest.mark.timeout(300)
def test_the_screen_is_driven_resized_and_outlives_its_job(tmp_path: Path, tmux: Tmux) -> None:
    places = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "TMPDIR", "PATH")}
    env = places | {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "TERM": "tmux-256color"}
    with training("seen", tmp_path) as run:
        run.wait_for("event=started")
        # Without a name: it is the only job here, and its etcd is its agent's own.
        tmux.open("sh", "-c", f"{' '.join(easyscale_command())} status; echo ended $?; sleep 600",
                  cells=100, rows=30, env=env)  # fmt: skip
        screen = tmux.shows("seen ● running")
        assert screen[0].startswith("seen ● running")
        assert any("/ filter" in row for row in screen)

        tmux.press("j")
        tmux.shows("▸ a/cpu:0")
        tmux.press("l")
        tmux.shows("what its worker prints")
        tmux.shows("rank")
        tmux.press("l")
        tmux.shows("Snapshot")
        tmux.press("p")
        tmux.shows("logical workers on")
        tmux.press("Escape")
        tmux.shows("Snapshot")
        tmux.press("/")
        tmux.shows("enter keeps the filter")
        tmux.press("cpu:1", "Enter")
        tmux.shows("1 of 2 slots")
        tmux.press("Escape")

        for cells, rows in ((160, 45), (59, 20), (80, 15), (60, 16), (120, 24), (80, 24)):
            tmux.resize(cells, rows)
            if cells < 60 or rows < 16:
                screen = tmux.shows(f"the window is {cells}x{rows}")
                assert not any("seen" in row for row in screen)
                continue
            # The clock stands at the right end of the first row.
            screen = tmux.until(
                lambda rows, cells=cells: (
                    bool(rows)  # type: ignore[misc]
                    and rows[0].startswith("seen ● running")
                    and len(rows[0]) == cells
                ),
                f"drawn anew for {cells}x{rows}",
            )
            assert len(screen) <= rows
            assert sum("seen ● running" in row for row in screen) == 1, "nothing of before is left"

        os.kill(run.pid, signal.SIGKILL)
        screen = tmux.shows("ended 1")
        assert not any("Traceback" in row for row in screen)
        history = tmux.history()
        assert "seen ● running" in history, "the last frame stays"
        assert "has ended" in " ".join(history.split())
