"""Nodes that meet where torchrun's usual line says, with no etcd installed anywhere."""

from pathlib import Path

from tests.support.etcd import free_port
from tests.support.nodes import Job, Reference


def test_the_agent_that_is_named_serves_the_etcd_and_a_second_one_gets_a_number(
    tmp_path: Path, reference: Reference
) -> None:
    where = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}")
    with Job(tmp_path, reference, options=(*where, "--nnodes", "2")) as job:
        first = job.start("")
        first.run.wait_for("serves the job's etcd at", within_s=60)
        second = job.start("")
        second.run.wait_for("is served on this machine already: connecting to it", within_s=60)
        second.run.wait_for("another agent of this host is", within_s=60)
        job.trains_on(2)
        job.hurry()
        job.holds(first.finish())
        job.holds(second.finish())
