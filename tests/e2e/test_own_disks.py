"""Nodes without a shared folder: a snapshot is read where it lies, or waited for."""

from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.nodes import Job, Node, Reference


@pytest.mark.proof
def test_a_snapshot_on_the_disk_of_a_dead_node_is_waited_for_and_restored_when_it_is_back(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:

        def start(name: str) -> Node:
            disk = str(tmp_path / "disks" / name)
            job.options = ("--snapshot-every", "4", "--snapshot-dir", disk)
            return job.start(name)

        a = start("a")
        a.sees("snapshot", times=2)
        a.run.process.kill()
        b = start("b")
        waits = b.sees("waiting")
        assert "lies on a alone: start a again" in waits["reason"]
        again = start("a")
        restored = b.sees("restored")
        assert restored["step"] >= 8
        job.hurry()
        end = b.finish()
        job.holds(end, steps_lost=end["steps_lost"])
        assert again.finish()["event"] == "finished"
        assert not [e for e in b.events("note") if "cannot be read" in e["reason"]], b.run.report()
        assert start("c").run.wait(60) == 0, "the job is over: it has nothing to do"
