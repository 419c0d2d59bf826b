"""A node whose script does not fit the job ends by itself; those who train do not notice it."""

from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.nodes import Job, Reference


@pytest.mark.proof
def test_a_node_with_other_arguments_or_another_model_ends_alone(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a", slots=2)
        job.trains_on(2)
        job.arguments = ("--width", "16")
        b = job.start("b")
        assert b.run.wait(60) == 2, b.run.report()
        told = "was begun with other arguments: the job has none of these, this launch --width 16"
        assert told in b.run.report()
        job.options = ("--allow-code-change",)
        c = job.start("c", slots=2)
        end = c.finish(code=2)
        assert end["event"] == "stopped"
        assert "the job goes on without this node, which does not fit it: " in end["reason"]
        assert "parameter 0: 'model.first.0.weight' float32[16, 12]" in end["reason"]
        job.goes_on()
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        job.repeated_only()
