"""etcd and agents are away for a while: training goes on, changes wait, nothing is lost."""

import signal
from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.nodes import Job, Reference, freeze, thaw

LEASE_S = 5


def test_etcd_stands_still_and_a_change_asked_meanwhile_happens_afterwards(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        etcd.freeze()
        b.run.signal(signal.SIGTERM)
        a.sees("store_away")
        job.goes_on()
        job.trains_on(2)
        etcd.thaw()
        b.finish()
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


@pytest.mark.proof
def test_etcd_is_killed_and_comes_back_with_its_data(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        etcd.kill()
        a.sees("store_away")
        job.goes_on()
        etcd.start()
        a.sees("store_back")
        b.run.signal(signal.SIGTERM)
        b.finish()
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


def test_etcd_is_killed_and_comes_back_empty(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        etcd.wipe()
        job.goes_on()
        # The running workers found a new era, and a third joins it.
        c = job.start("c")
        c.joins()
        job.trains_on(3)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert c.finish()["era"] == 2
        assert len(job.pids()) == 3
        job.repeated_only()


@pytest.mark.proof
def test_an_agent_stands_still_for_three_lives_of_its_lease(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd, pace_s=0.5) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        freeze(b.run.pid)
        began = job.step()
        job.waits(3 * LEASE_S)
        assert job.step() > began, "its worker and the others train on"
        thaw(b.run.pid)
        job.goes_on()
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert len(job.pids()) == 2
        job.repeated_only()
