"""What a person asks of a running job, from the same machine: status, devices, drain, stop."""

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.processes import Outcome, Run, launched, run_easyscale

SCRIPT = Path(__file__).parent.parent / "support" / "scripts" / "small.py"


def training(job: str, cwd: Path) -> AbstractContextManager[Run]:
    """A launch on two slots that would go on for many minutes."""
    return launched(
        "launch", "--job-id", job, "--node-name", "a", "--logical-workers", "8",
        "--devices", "cpu:2", "--snapshot-every", "5", str(SCRIPT), "pause=0.02", "epochs=2000",
        cwd=cwd,
    )  # fmt: skip


def asked(*words: str) -> Any:  # noqa: ANN401 - JSON
    """The JSON that a command answers with."""
    ended = run_easyscale(*words, "--json")
    assert ended.code == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


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
        assert status["store"] == {"reachable": True, "silent_s": 0.0}

        [job] = asked("jobs")
        assert (job["id"], job["slots"], job["nodes"]) == ("resnet", 2, 1)

        devices = asked("devices", "resnet", "a", "--set", "cpu:3")
        assert [slot["slot"] for slot in devices["slots"]] == ["cpu:0", "cpu:1", "cpu:2"]
        status = status_once("resnet", run, lambda it: it["counts"]["in_use"] == 3)
        assert status["changes"]["count"] == 1
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

        stopped = run_easyscale("stop", "bert")
        assert stopped.code == 0, stopped.stderr
        assert "Drained bert" in stopped.stdout
        assert run.wait() == 0
    assert run_easyscale("jobs", "--json").stdout == "[]\n"


def test_an_etcd_that_is_away_is_said_and_ends_with_3(tmp_path: Path) -> None:
    ended = run_easyscale("jobs", "--etcd", "127.0.0.1:1", "--json")
    assert ended.code == 3
    assert "running jobs go on" in " ".join(ended.stderr.split())
    assert json.loads(ended.stdout)["error"]["exit_code"] == 3
