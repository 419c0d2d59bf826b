"""The same scripts under torchrun and under easyscale: what each saw, wrote and ended with."""

import contextlib
import json
import re
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.etcd import free_port, wait_until
from tests.support.processes import Run, easyscale_command, started

SCRIPTS = Path(__file__).parent / "scripts"
SCRIPT, SHELL = str(SCRIPTS / "conforming.py"), str(SCRIPTS / "conforming.sh")
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "easyscale": [*easyscale_command(), "launch"],
}
#: Given by both, and another value in every launch.
OWN = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
#: torchrun's agent serves the store; ours has no torch, so that rank 0 does.
STORE = "TORCHELASTIC_USE_AGENT_STORE"
TWO = ("--nproc-per-node", "2")


@dataclass(frozen=True, slots=True)
class Case:
    """One script and how it is launched; `PORT` stands for a free one, per launcher."""

    name: str
    words: tuple[str, ...]
    #: What each node's launcher is told beside that.
    nodes: tuple[tuple[str, ...], ...] = ((),)
    act: Callable[[Path, list[Run]], None] | None = None
    #: How easyscale ends where it means to be better.
    our_code: int | None = None


def send_sigterm(out: Path, runs: list[Run]) -> None:
    wait_until(lambda: len(list(out.glob("up-*"))) == 2, "both are up", deadline_s=60)
    for run in runs:
        run.signal(signal.SIGTERM)


C10D = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:PORT", "--rdzv-id", "job")
STATIC = ("--nnodes=2", "--master_addr=127.0.0.1", "--master_port=PORT")
CASES = (
    Case("environment", (*TWO, "--role", "r", SCRIPT, "seen", "--out=${local_rank}", "$HOME")),
    Case("one worker", ("--standalone", SCRIPT, "--", "seen")),
    Case("module", ("--nproc_per_node=1", "-m", "conforming", "seen", "--x")),
    Case("no python", (*TWO, "--no-python", SHELL, "local ${local_rank}")),
    Case("run path", ("--run-path", "--virtual-local-rank", SCRIPT, "seen", "--x")),
    Case("recorded failure", (*TWO, SCRIPT, "recorded")),
    Case("exit code", (*TWO, SCRIPT, "exit")),
    Case("signal", (*TWO, SCRIPT, "segfault")),
    Case("restart", (*TWO, "--max-restarts", "2", SCRIPT, "once")),
    Case("SIGTERM", (*TWO, SCRIPT, "told"), act=send_sigterm, our_code=143),
    Case(
        "logs",
        (*TWO, "--log-dir", "logs", "-r", "0:1,1:2", "-t", "0:2,1:1", "--duplicate-stderr-filters",
         "err", SCRIPT, "print"),
    ),
    Case("collective", (*TWO, SCRIPT, "reduced")),
    Case(
        "two static nodes",
        (*STATIC, *TWO, SCRIPT, "seen"),
        nodes=(("--node-rank", "0"), ("--node-rank", "1")),
    ),
    Case("two nodes that meet", ("--nnodes=2", *C10D, SCRIPT, "seen"), nodes=((), ())),
    Case(
        "elastic range",
        ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1", *C10D, SCRIPT, "seen"),
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a case under one launcher."""

    codes: list[int]
    facts: Mapping[str, Any]
    environments: Mapping[str, Mapping[str, str]]
    logs: Mapping[str, str]
    #: Lines on the console that carry torchrun's tag.
    tagged: list[str]
    handed_up: Mapping[str, Any]


def run_case(case: Case, launcher: str, out: Path) -> Seen:
    out.mkdir()
    words = [word.replace("PORT", str(free_port())) for word in case.words]
    env = {
        "OUT": str(out),
        "TORCHELASTIC_ERROR_FILE": str(out / "handed-up.json"),
        "PYTHONPATH": str(SCRIPTS),
    }
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(started([*LAUNCHERS[launcher], *node, *words], cwd=out, env=env))
            for node in case.nodes
        ]
        if case.act is not None:
            case.act(out, runs)
        codes = [run.wait(100) for run in runs]
        facts: dict[str, Any] = {
            path.name: json.loads(path.read_text()) for path in out.glob("seen-*.json")
        }
        facts |= {path.name: path.read_text() for path in out.glob("seen-*.txt")}
        assert facts or any(codes) or "print" in case.words, runs[0].report()
        lines = [line for run in runs for line in (run.stdout + run.stderr).splitlines()]
        return Seen(
            codes=codes,
            environments={name: fact.pop("env") for name, fact in facts.items() if "env" in fact},
            facts=facts,
            logs=log_tree(out / "logs"),
            tagged=sorted(line for line in lines if re.match(r"\[default\d+\]:", line)),
            handed_up=message_in(out / "handed-up.json"),
        )


def log_tree(folder: Path) -> dict[str, str]:
    """Every file below the one folder of a run, with its lines in any order."""
    found = {}
    for path in folder.rglob("*.log"):
        name = str(path.relative_to(folder)).partition("/")[2]
        if text := path.read_text():
            found[name] = "\n".join(sorted(text.splitlines()))
    return found


def message_in(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    message = json.loads(path.read_text())["message"]
    return {"message": message["message"], "code": message.get("errorCode")}


def without_own(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in {*OWN, STORE}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_script_sees_the_same_under_both(case: Case, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as both:
        futures = {name: both.submit(run_case, case, name, tmp_path / name) for name in LAUNCHERS}
        theirs, ours = (futures[name].result() for name in LAUNCHERS)
    assert ours.facts == theirs.facts
    assert ours.logs == theirs.logs
    if "-t" in case.words:  # what is not tee'd is tagged by us alone
        assert ours.tagged == theirs.tagged
    if case.our_code is None:
        assert ours.handed_up == theirs.handed_up
        assert ours.codes == theirs.codes
    else:
        assert set(ours.codes) == {case.our_code}
        assert 0 not in theirs.codes
    assert ours.environments.keys() == theirs.environments.keys()
    for name, environment in theirs.environments.items():
        mine = ours.environments[name]
        assert mine.keys() == environment.keys()
        assert without_own(mine) == without_own(environment)
        assert (mine[STORE], environment[STORE]) == ("False", "True")
        files = [Path(each["TORCHELASTIC_ERROR_FILE"]).parts[-3:] for each in (mine, environment)]
        assert files[0] == files[1]
        for each in (mine, environment):
            assert int(each["MASTER_PORT"]) > 0
            assert each["MASTER_ADDR"]
