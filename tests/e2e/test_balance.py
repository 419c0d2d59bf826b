"""Slots become slow and well again, are measured and exchanged while a job trains: same bits."""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import Server
from tests.support.processes import Run, launched, run_easyscale, started

SCRIPT = Path(__file__).parent / "scripts" / "uneven.py"
N = 9
STEPS = 240
#: A micro-step on a well slot: long enough for slots that share two cores to keep to it.
PACE_S = 0.06
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the script computes alone, undisturbed."""
    out = tmp_path_factory.mktemp("alone")
    env = {"EASYSCALE_LOGICAL_WORKERS": str(N)}
    with started([sys.executable, str(SCRIPT), str(out), str(STEPS)], env=env) as run:
        assert run.wait() == 0, run.report()
        return digest_in(run)


def digest_in(run: Run) -> str:
    said = re.search(r"digest ([0-9a-f]{64})$", run.stdout, re.MULTILINE)
    assert said, run.report()
    return said[1]


def pace(out: Path, seconds: float, *slots: str) -> None:
    for slot in slots:
        partial = out / f".pace-{slot}"
        partial.write_text(str(seconds))
        partial.rename(out / f"pace-{slot}")


def training(
    job: str, out: Path, node: str, slots: int, *options: str, ranks: int = N
) -> AbstractContextManager[Run]:
    return launched(
        "launch", "--job-id", job, "--node-name", node, "--logical-workers", str(ranks),
        "--devices", f"cpu:{slots}", *options, str(SCRIPT), str(out), str(STEPS),
        cwd=out,
    )  # fmt: skip


def asked(*words: str) -> Any:  # noqa: ANN401 - JSON
    ended = run_easyscale(*words, "--json")
    assert ended.code == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def plan_once(job: str, run: Run, is_so: Callable[[Any], bool], *where: str) -> Any:  # noqa: ANN401
    """The first plan of which something holds."""
    deadline, plan = time.monotonic() + DEADLINE_S, None
    while time.monotonic() < deadline:
        plan = asked("plan", job, *where)
        if is_so(plan):
            return plan
    raise AssertionError(f"never so: {plan}\n{run.report()}")


def counts(plan: Any) -> list[int]:  # noqa: ANN401 - JSON
    return [len(each["ranks"]) for each in plan["assignments"]]


def placed(
    job: str, where: Sequence[str], wanted: dict[tuple[str, str], int]
) -> dict[tuple[str, str], int]:
    """The processes of all slots, once these hold so many ranks and have one each that is ready."""
    deadline, held = time.monotonic() + DEADLINE_S, {}
    while time.monotonic() < deadline:
        slots = {
            (each["node"], each["slot"]): each for each in asked("status", job, *where)["slots"]
        }
        held = {place: len(slot["ranks"]) for place, slot in slots.items()}
        ready = {place: slot for place, slot in slots.items() if slot["state"] != "starting"}
        pids = {place: slot["pid"] for place, slot in ready.items() if slot["pid"]}
        if held == wanted and len(pids) == len(wanted):
            return pids
    raise AssertionError(f"never {wanted}, at last {held}")


def kinds_of(run: Run) -> list[str]:
    return re.findall(r"event=(\w+)", run.stderr)


def test_ranks_follow_the_speed_of_a_slot_down_and_up_again(tmp_path: Path, digest: str) -> None:
    job = f"uneven-{os.getpid()}"
    pace(tmp_path, PACE_S, "cpu:0", "cpu:1", "cpu:2")
    with training(job, tmp_path, "a", 3) as run:
        run.wait_for("event=started")
        plan_once(job, run, lambda plan: plan["measured_step_seconds"] is not None)
        pace(tmp_path, 4 * PACE_S, "cpu:2")
        slowed = plan_once(
            job, run, lambda plan: counts(plan) == [4, 4, 1] and plan["previous"] is not None
        )
        assert slowed["step_seconds"] < 0.8 * 3 * 4 * PACE_S
        assert slowed["previous"]["generation"] == slowed["generation"] - 1
        assert "without a/cpu:2" in [each["name"] for each in slowed["alternatives"]]
        told = run_easyscale("plan", job, "--explain")
        assert "rebalanc" not in told.stderr
        assert "waste" in told.stdout
        run.wait_for("event=slow .*cpu:2")
        pace(tmp_path, PACE_S, "cpu:2")
        plan_once(job, run, lambda plan: counts(plan) == [3, 3, 3])
        run.wait_for("event=recovered_speed .*cpu:2")
        assert kinds_of(run).count("rebalanced") <= 3, run.report()
        measured = asked("profile", job, "--steps", "5")
        assert [sum(each["slots"].values()) for each in measured["points"]] == [3, 2, 1]
        for each in measured["points"]:
            # Steps of the size before were shorter, and would be told.
            assert each["step_s"] >= max(each["counts"]) * PACE_S
        pace(tmp_path, 0.0, "cpu:0", "cpu:1", "cpu:2")
        assert run.wait() == 0, run.report()
        assert digest_in(run) == digest
        assert "lost" not in kinds_of(run)


def test_what_a_node_holds_moves_to_another_and_the_node_is_free(
    tmp_path: Path, digest: str, etcd: Server
) -> None:
    job, where = f"moved-{os.getpid()}", ("--etcd", str(etcd.endpoint))
    pace(tmp_path, PACE_S / 2, "cpu:0")
    with (
        training(job, tmp_path, "a", 1, *where) as a,
        training(job, tmp_path, "b", 1, *where) as b,
    ):
        a.wait_for("event=(started|joined)")
        b.wait_for("event=(started|joined)")
        moved = run_easyscale("migrate", job, "a", "b", *where)
        assert moved.code == 0, moved.stdout + moved.stderr
        assert "Migrated" in moved.stdout
        assert a.wait() == 0, a.report()
        b.wait_for("event=migrated .*a/cpu:0 → b/cpu:0")
        pace(tmp_path, 0.0, "cpu:0")
        assert b.wait() == 0, b.report()
        assert digest_in(b) == digest


@pytest.mark.proof
def test_a_standby_takes_the_ranks_of_a_straggler_whose_process_stays(
    tmp_path: Path, etcd: Server
) -> None:
    job, where = f"straggler-{os.getpid()}", ("--etcd", str(etcd.endpoint))
    (tmp_path / "alone").mkdir()
    env = {"EASYSCALE_LOGICAL_WORKERS": "2"}
    script = [sys.executable, str(SCRIPT), str(tmp_path / "alone"), str(STEPS)]
    with started(script, env=env) as alone:
        assert alone.wait() == 0, alone.report()
    pace(tmp_path, 6 * PACE_S, "cpu:0", "cpu:1")  # the other node has time to start
    with training(job, tmp_path, "a", 2, *where, ranks=2) as a, ExitStack() as later:
        a.wait_for("event=started")
        placed(job, where, {("a", "cpu:0"): 1, ("a", "cpu:1"): 1})
        b = later.enter_context(training(job, tmp_path, "b", 1, *where, ranks=2))
        workers = placed(job, where, {("a", "cpu:0"): 1, ("a", "cpu:1"): 1, ("b", "cpu:0"): 0})
        pace(tmp_path, 2 * PACE_S, "cpu:0")
        pace(tmp_path, 8 * PACE_S, "cpu:1")
        b.wait_for("event=joined .*b 0 → 1")
        a.wait_for("event=slow .*cpu:1")
        after = placed(job, where, {("a", "cpu:0"): 1, ("a", "cpu:1"): 0, ("b", "cpu:0"): 1})
        assert after == workers, "nobody was started anew"
        pace(tmp_path, 0.0, "cpu:0", "cpu:1")
        assert a.wait() == 0, a.report()
        assert b.wait() == 0, b.report()
        assert digest_in(a) == digest_in(alone)
        assert not {"lost", "drained"} & {*kinds_of(a), *kinds_of(b)}
