"""A job keeps its code: other files are refused by name, on a second node and on a resume."""

import json
from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.processes import Outcome, launched, run_easyscale

SCRIPT = (Path(__file__).parent.parent / "support" / "scripts" / "small.py").read_text()


def folder(path: Path, *, rate: str) -> Path:
    """A project of two files: the script, and a module that it imports."""
    path.mkdir()
    (path / "train.py").write_text(f"import settings\n{SCRIPT}")
    (path / "settings.py").write_text(f"rate = {rate}\n")
    return path


def launch(cwd: Path, *words: str, epochs: int = 1) -> Outcome:
    return run_easyscale(*command(*words, epochs=epochs), cwd=cwd)


def command(*words: str, epochs: int) -> tuple[str, ...]:
    return (
        "launch", "--job-id", "kept", "--logical-workers", "4", "--devices", "cpu:1",
        "--snapshot-every", "4", *words, "train.py", f"epochs={epochs}", "pause=0.02",
    )  # fmt: skip


@pytest.mark.timeout(180)
def test_a_node_with_another_module_is_refused_and_the_job_goes_on(
    tmp_path: Path, etcd: Server
) -> None:
    where = ("--etcd", str(etcd.endpoint))
    one, other = folder(tmp_path / "one", rate="1"), folder(tmp_path / "other", rate="2")
    with launched(*command(*where, "--node-name", "a", epochs=500), cwd=one) as run:
        run.wait_for("event=started")
        refused = launch(other, *where, "--node-name", "b", epochs=500)
        assert refused.code == 2
        assert "was begun with other code: settings.py differs" in refused.stderr
        (other / "settings.py").write_text("rate = 1\n")
        refused = launch(other, *where, "--node-name", "b", epochs=499)
        assert refused.code == 2
        told = "was begun with other arguments: the job has epochs=500, this launch epochs=499"
        assert told in refused.stderr
        with launched(*command(*where, "--node-name", "b", epochs=500), cwd=other) as second:
            run.wait_for("event=joined node=b")
            rows = json.loads(run_easyscale("snapshots", "ls", "kept", "--json").stdout)
            # Who holds the newest is not known before its record is in the store.
            recorded = {tuple(row["nodes"]) for row in rows} - {()}
            assert recorded
            assert recorded <= {("a",), ("b",)}
            kept = run_easyscale("snapshots", "prune", "kept", "--keep", "1")
            assert (kept.code, "removes its old snapshots by itself" in kept.stderr) == (2, True)
            assert run_easyscale("stop", "kept", *where).code == 0
            assert (run.wait(), second.wait()) == (0, 0)
    pruned = run_easyscale("jobs", "prune", "--ended", *where)
    assert (pruned.code, "1 forgotten; 0 jobs stay" in pruned.stdout) == (0, True)


@pytest.mark.timeout(180)
def test_a_resume_with_a_changed_file_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    project = folder(tmp_path / "one", rate="1")
    assert launch(project).code == 0
    (project / "notes.py").write_text("not imported\n")
    (project / "settings.py").write_text("rate = 3\n")
    refused = launch(project)
    assert (refused.code, "other code: settings.py differs\n" in refused.stderr) == (2, True)
    allowed = launch(project, "--allow-code-change")
    assert allowed.code == 0, allowed.stderr
    assert "by --allow-code-change: settings.py differs" in allowed.stderr
