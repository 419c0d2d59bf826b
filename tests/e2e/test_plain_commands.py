"""What a person asks of a plain or packed job: the commands of elastic ones, as far as they go."""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import Server
from tests.support.processes import Run, launched, run_easyscale

SCRIPT = str(Path(__file__).parent / "scripts" / "plain_worker.py")


def asked(*words: str, code: int = 0) -> Any:  # noqa: ANN401 - JSON
    """The JSON that a command answers with."""
    ended = run_easyscale(*words, "--json")
    assert ended.code == code, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def told(*words: str) -> str:
    ended = run_easyscale(*words)
    assert ended.code == 0, ended.stdout + ended.stderr
    return ended.stdout


def both_up(run: Run, times: int = 2) -> None:
    run.wait_for(rf"(?s)(rank \d of \d.*?){{{times}}}", within_s=60)


def test_a_plain_job_is_found_shown_read_and_stopped(tmp_path: Path) -> None:
    words = ("launch", "--nproc-per-node", "2", "--job-id", "ddp", "--node-name", "a")
    with launched(*words, SCRIPT, "until", cwd=tmp_path) as run:
        both_up(run)
        status = asked("status")  # the only job of this machine
        job, slots = status["job"], status["slots"]
        assert (job["id"], job["state"], job["mode"]) == ("ddp", "running", "plain")
        assert (job["step"], job["logical_workers"], status["snapshot"]) == (None, None, None)
        below = {process.pid for process in run.descendants()}
        assert [(slot["slot"], slot["ranks"], slot["state"]) for slot in slots] == [
            ("local:0", [0], "in_use"), ("local:1", [1], "in_use"),
        ]  # fmt: skip
        assert {slot["pid"] for slot in slots} <= below
        assert [each["id"] for each in asked("jobs")] == ["ddp"]
        assert told("logs", "ddp", "--rank", "1").startswith("[a/local:1 r1] rank 1 of 2")
        assert "event=started" in told("events", "ddp")
        assert "plain mode" in told("status", "ddp", "--once")
        refused = asked("plan", "ddp", code=2)["error"]
        assert (refused["code"], refused["exit_code"]) == ("not_in_this_mode", 2)
        assert asked("devices", "ddp", "a", "--set", "cpu:3", code=2)["error"]["code"] == (
            "not_in_this_mode"
        )
        ending = asked("stop", "ddp")
        assert (ending["state"], ending["step"], ending["exit_code"]) == ("stopped", None, 0)
        assert run.wait(30) == 0, run.report()
    assert sorted(tmp_path.iterdir()) == [], "nothing was asked to be kept"


def test_slots_of_a_packed_job_are_drained_and_set_while_its_ranks_stay(tmp_path: Path) -> None:
    words = ("launch", "--packed", "--logical-workers", "3", "--devices", "cpu:2")
    name = ("--job-id", "packed", "--node-name", "a")
    with launched(*words, *name, SCRIPT, "until", cwd=tmp_path) as run:
        both_up(run, times=3)
        drained = asked("drain", "packed", "a/cpu:1")
        assert (drained["event"], drained["node"], drained["slot"]) == ("drained", "a", "cpu:1")
        slots = asked("devices", "packed")["slots"]
        assert [(slot["slot"], slot["ranks"]) for slot in slots] == [("cpu:0", [0, 1, 2])]
        slots = asked("devices", "packed", "a", "--set", "cpu:2")["slots"]
        assert [slot["slot"] for slot in slots] == ["cpu:0", "cpu:1"]
        both_up(run, times=9)
        restarts = asked("status", "packed")["budget"]["used"]
        assert restarts == 0, "a change is not charged"
        assert asked("drain", "packed", "a")["state"] == "stopped", "the last node is the job"
        assert run.wait(30) == 0, run.report()


def test_a_job_of_several_nodes_is_reached_and_changed_from_elsewhere(
    tmp_path: Path, etcd: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--rdzv-endpoint", str(etcd.endpoint))
    line = ("launch", "--nnodes", "2:3", *where, "--rdzv-id", "far", "--node-name")
    with contextlib.ExitStack() as stack:
        runs = {
            name: stack.enter_context(launched(*line, name, SCRIPT, "until", cwd=tmp_path))
            for name in "abc"
        }
        for run in runs.values():
            run.wait_for(r"rank \d of 3", within_s=60)
        # Short, since a socket's path is; no agent is to be found there.
        elsewhere = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        monkeypatch.setenv("XDG_RUNTIME_DIR", elsewhere)
        monkeypatch.setenv("EASYSCALE_ETCD", str(etcd.endpoint))
        assert [job["id"] for job in asked("jobs")] == ["far"]
        slots = asked("status", "far")["slots"]
        assert [(slot["node"], slot["ranks"]) for slot in slots] == [
            ("a", [0]), ("b", [1]), ("c", [2]),
        ]  # fmt: skip
        assert all(slot["pid"] for slot in slots), "each node tells of its own processes"
        lines = told("logs", "far").splitlines()
        assert {text.split("/")[0] for text in lines} == {"[a", "[b", "[c"}
        assert asked("drain", "far", "b")["node"] == "b"
        assert runs["b"].wait(30) == 0, runs["b"].report()
        for name in "ac":
            runs[name].wait_for(r"rank \d of 2", within_s=60)
        assert "event=lost" not in runs["a"].stderr, "it was asked to leave"
        needed = asked("drain", "far", "c", code=2)["error"]
        assert "--nnodes asks for at least 2" in needed["message"]
        assert asked("stop", "far")["exit_code"] == 0
        assert (runs["a"].wait(30), runs["c"].wait(30)) == (0, 0)
