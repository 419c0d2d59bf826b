"""etcd and agents are away for a while: training goes on, changes wait, nothing is lost."""

import signal
import time
from pathlib import Path

import pytest

from easyscale.model import Wish
from tests.support.etcd import Server
from tests.support.nodes import Job, Reference, freeze, gone, kill, thaw
from tests.support.processes import run_easyscale

LEASE_S = 5
OUTAGE_S = 60


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


def test_the_etcd_of_a_lone_agent_is_killed_and_its_keeper_starts_another(
    tmp_path: Path, reference: Reference
) -> None:
    with Job(tmp_path, reference) as job:
        a = job.start("a", slots=2)
        job.trains_on(2)
        (own,) = [one for one in a.run.descendants() if one.name() == "etcd"]
        own.kill()
        assert a.sees("recovered")["era"] == 2
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:1")
        assert asked.code == 0, asked.stderr
        a.sees("drained")
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


@pytest.mark.proof
@pytest.mark.parametrize("name", ["leader", "follower"])
def test_an_agent_stands_still_for_three_lives_of_its_lease(
    tmp_path: Path, reference: Reference, etcd: Server, name: str
) -> None:
    with Job(tmp_path, reference, etcd=etcd, pace_s=0.5) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        still = next(node for node in (a, b) if (node.name == job.leader()) == (name == "leader"))
        freeze(still.run.pid)
        began = job.step()
        job.waits(3 * LEASE_S)
        assert job.step() > began, "its worker and the others train on"
        thaw(still.run.pid)
        job.goes_on()
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


@pytest.mark.proof
def test_training_never_pauses_while_etcd_stands_still_for_a_minute(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    options = ("--grace", "120")  # it ends hard otherwise, as it would have to
    with Job(tmp_path, reference, etcd=etcd, pace_s=0.9, options=options) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        etcd.freeze()
        asked_at, began = job.step(), time.time()
        b.run.signal(signal.SIGTERM)
        job.waits(OUTAGE_S)
        assert b.run.process.poll() is None
        etcd.thaw()
        ended = time.time()
        b.finish()
        job.hurry()
        job.holds(a.finish())
        assert job.longest_gap(began, ended) < 5 * 5 * 0.9, "a step takes three micro-steps"
        assert len(job.pids()) == 2
        assert len(job.pids(since_step=asked_at + 1)) == 2, "it left after etcd's return"
        job.repeated_only()


@pytest.mark.proof
@pytest.mark.parametrize("of_leader", [True, False])
def test_a_worker_that_dies_while_etcd_is_away_makes_the_others_wait_for_it(
    tmp_path: Path, reference: Reference, etcd: Server, of_leader: bool
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        led = {"a": a, "b": b}[job.leader()].descendants()
        (victim,) = (pid for pid in job.pids() if (pid in led) == of_leader)
        (survivor,) = set(job.pids()) - {victim}
        etcd.freeze()
        kill(victim)
        job.waits(8)
        stands = job.step()
        job.waits(4)
        assert job.step() == stands, "nobody goes on alone"
        etcd.thaw()
        (a if survivor in a.descendants() else b).sees("recovered")
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert survivor in job.pids(since_step=39)
        job.repeated_only(victim)


def test_a_worker_that_dies_while_etcd_is_full_is_replaced_once_there_is_room(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        (victim,) = (pid for pid in job.pids() if pid in b.descendants())
        etcd.refuse_writes(refuse=True)
        kill(victim)
        refused = "etcd refuses: mvcc: database space exceeded; training goes on, changes wait"
        assert b.sees("store_away")["reason"] == refused
        job.waits(4)
        etcd.refuse_writes(refuse=False)
        b.sees("store_back")
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert len(job.pids()) == 3
        assert all(len(node.events("store_away")) < 2 for node in (a, b)), "it is told once"
        job.repeated_only(victim)


@pytest.mark.proof
def test_a_leader_that_dies_between_its_plan_and_the_commit_is_followed_by_another(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a", slots=2)
        job.reaches(0)
        b = job.start("b")
        job.trains_on(3)
        job.goes_on()  # a generation that is still being entered is followed by no plan
        assert job.leader() == "a"
        victims = sorted(set(job.pids()) & a.descendants())
        freeze(b.run.pid)  # cannot say ready
        job.wish(Wish(kind="devices", node="a", target="cpu:1", by="a test"))
        job.until(lambda: job.head().planned > job.head().committed, "a plan is open")
        planned = job.head().planned
        a.run.signal(signal.SIGKILL)
        gone(victims)
        thaw(b.run.pid)
        job.goes_on(4)
        assert job.head().committed > planned
        job.hurry()
        end = b.finish()
        job.holds(end)
        assert end["generation"] > planned, "the number of the dead plan was spent"
        job.repeated_only(*victims)


@pytest.mark.proof
def test_an_etcd_that_comes_and_goes_ends_no_worker(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a"), job.start("b")
        job.trains_on(2)
        for frozen_s, awake_s in ((1.0, 0.5), (3.0, 0.2), (LEASE_S + 1.0, 0.1)) * 2:
            etcd.freeze()
            job.waits(frozen_s)
            etcd.thaw()
            job.waits(awake_s)
        job.goes_on()
        job.trains_on(2)
        job.hurry()
        for node in (a, b):
            job.holds(node.finish())
            assert node.events("lost") == []
        assert len(job.pids()) == 2
        job.repeated_only()
