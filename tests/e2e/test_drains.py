"""SIGTERM is a notice: who takes over stands ready, and no completed step is lost."""

import signal
from pathlib import Path

from tests.support.etcd import Server
from tests.support.nodes import Job, Reference


def test_a_node_beyond_the_most_takes_over_from_the_only_one_at_work(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd, options=("--nodes", "1:1")) as job:
        a = job.start("a")
        job.reaches(0)
        b = job.start("b")
        job.stands_by("b")
        job.goes_on()
        assert len(job.pids()) == 1, "the job takes one node"
        a.run.signal(signal.SIGTERM)
        assert a.finish()["event"] in ("left", "drained")
        job.hurry()
        job.holds(b.finish())
        assert len(job.pids()) == 2
        job.repeated_only()
