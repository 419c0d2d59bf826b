"""`easyscale verify`: same bits where they are, and the cause of each planted fault."""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from easyscale.agent.events import Slot
from easyscale.agent.verify.rehearsal import Hosts, RehearsalSettings, opened
from easyscale.agent.verify.verification import Verification, VerificationSettings
from easyscale.agent.verify.verified import Cause, Verdict, Verified
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from tests.support.processes import run_easyscale, started

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parent / "scripts" / "faulty.py"
FAULTS = {
    "unregistered_state": (Verdict.BITS_DIFFER, Cause.UNREGISTERED_STATE, "writes self.running"),
    "outer_state": (Verdict.BITS_DIFFER, Cause.UNREGISTERED_STATE, "writes scale"),
    "global_counter": (Verdict.BITS_DIFFER, Cause.GLOBAL_COUNTER, "counts calls"),
    "own_generator": (Verdict.BITS_DIFFER, Cause.OWN_GENERATOR, "starts seeded"),
    "generator_by_chance": (Verdict.NOT_COMPARABLE, Cause.OWN_GENERATOR, "default_rng()"),
    "wall_time": (Verdict.NOT_COMPARABLE, Cause.WALL_TIME, "asks time.time"),
    "set_order": (Verdict.BITS_DIFFER, Cause.SET_ORDER, "faulty.words"),
    "evaluation": (Verdict.BITS_DIFFER, Cause.GLOBAL_COUNTER, "counts judged"),
    "job_state": (Verdict.BITS_DIFFER, Cause.UNKNOWN, "writes state.best"),
    "operator": (Verdict.NOT_COMPARABLE, Cause.OPERATOR, "planted.jitter"),
}


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    """Two zygotes that all faults share."""
    folder = tmp_path_factory.mktemp("verify")
    settings = RehearsalSettings(
        script=ScriptTarget(path=str(SCRIPT)),
        python=sys.executable,
        environment=dict(os.environ),
        working_directory=folder,
        folder=folder,
        logical_workers=4,
        seed=None,
        determinism=Determinism.SAME_KIND,
        threads_per_worker=1,
        partials="device",
        preload=(),
        slots=(Slot(name="cpu:0"),),
    )
    with opened(settings) as hosts:
        yield hosts


def verified(hosts: Hosts, fault: str, folder: Path) -> Verified:
    script = ScriptTarget(path=str(SCRIPT), arguments=(fault,))
    hosts.settings = msgspec.structs.replace(hosts.settings, script=script, folder=folder)
    what = VerificationSettings(steps=4, width=2, keep_going=False)
    return Verification(hosts, what, lambda row: None).answer()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_with_its_cause_and_its_line(
    hosts: Hosts, tmp_path: Path, fault: str
) -> None:
    verdict, cause, evidence = FAULTS[fault]
    found = verified(hosts, fault, tmp_path)
    assert found.diagnosis is not None, found
    assert (found.verdict, found.diagnosis.cause) == (verdict, cause)
    assert evidence in " ".join(found.diagnosis.evidence)
    assert found.first_difference is not None
    # Where only a worker that joins has another value, the others agree with the fixed run.
    assert found.first_difference.step == (1 if fault == "outer_state" else 0)
    assert found.first_difference.same_batch == (fault != "set_order")


def test_without_a_fault_every_run_has_the_digest_of_the_script_alone(tmp_path: Path) -> None:
    """Being written down changes no bit; the script has 16 steps."""
    with started([sys.executable, str(SCRIPT), "none"], cwd=tmp_path) as run:
        assert run.wait() == 0, run.report()
        said = re.search(r"digest ([0-9a-f]{64})$", run.stderr, re.MULTILINE)
    (tmp_path / "out.pt").write_text("mine")
    ended = run_easyscale("verify", "--steps", "16", "--json", str(SCRIPT), "none", cwd=tmp_path)
    assert ended.code == 0, ended.stdout + ended.stderr
    answer = json.loads(ended.stdout)
    assert answer["verdict"] == "same_bits"
    assert said is not None
    assert {run["digest"] for run in answer["runs"]} == {said[1]}
    assert [run["changes"] for run in answer["runs"] if "changing" in run["name"]] == [
        "steps 5, 9, 12"
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.pt"]


def test_a_script_that_fails_is_said_to(hosts: Hosts, tmp_path: Path) -> None:
    found = verified(hosts, "crash", tmp_path)
    assert found.verdict is Verdict.NOT_FINISHED
    assert found.failed is not None
    assert "planted" in found.failed.reason
    assert found.failed.place.startswith("faulty.py:")
