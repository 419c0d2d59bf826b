"""Slots, nodes and agents come and go while a job trains: same bits, same processes, no loss."""

import signal
from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.nodes import SLOW_S, Job, Reference, freeze, gone, kill, no_doors
from tests.support.processes import run_easyscale


def test_slots_come_and_go_while_training_goes_on(tmp_path: Path, reference: Reference) -> None:
    with Job(tmp_path, reference) as job:
        a = job.start(slots=1)
        job.reaches(1)
        first = job.pids()
        assert len(first) == 1
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:3")
        assert asked.code == 0, asked.stderr
        a.sees("joined")
        job.goes_on()
        three = job.pids(since_step=job.step())
        assert len(job.pids()) == 3
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:2")
        assert asked.code == 0, asked.stderr
        a.sees("drained")
        job.hurry()
        job.holds(a.finish())
        assert job.pids()[:1] == first
        assert set(three) <= set(job.pids())
        assert len(job.pids()) == 3, "no process was started again"
        assert len(job.pids(since_step=39)) == 2
        job.repeated_only()


@pytest.fixture(scope="module")
def of_tops(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Its scheduler steps at the top of an epoch; at the top of a step it averages weights."""
    return Reference.take(tmp_path_factory.mktemp("tops"), epochs=3, arguments=("--tops",))


def test_what_the_top_of_an_epoch_and_of_a_step_writes_counts_once_for_who_joins(
    tmp_path: Path, of_tops: Reference
) -> None:
    with Job(tmp_path, of_tops, pace_s=0.03) as job:
        a = job.start(slots=1)
        job.reaches(10)  # ten steps are an epoch
        job.pace(SLOW_S)
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:2")
        assert asked.code == 0, asked.stderr
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        assert not [each for each in a.events("note") if "restored value" in each["reason"]]


@pytest.mark.proof
def test_it_counts_once_for_who_goes_on_from_a_snapshot_and_is_told(
    tmp_path: Path, of_tops: Reference
) -> None:
    with Job(tmp_path, of_tops, pace_s=0.03) as job:
        a = job.start(slots=2)
        job.reaches(12)
        a.run.signal(signal.SIGINT)
        assert a.finish(code=130)["event"] == "stopped"
        job.hurry()
        again = job.start(slots=1)
        job.holds(again.finish())
        assert any("last_epoch: the restored" in each["reason"] for each in again.events("note"))


def test_nodes_come_and_go_by_drain_and_by_sigterm(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a")
        job.reaches(0)
        b, c = job.start("b"), job.start("c")
        job.trains_on(3)
        job.goes_on()
        assert len(job.pids()) == 3
        asked = run_easyscale("drain", job.name, "b", *job.where)
        assert asked.code == 0, asked.stderr
        assert b.finish()["event"] in ("left", "drained")
        c.run.signal(signal.SIGTERM)
        assert c.finish()["event"] in ("left", "drained")
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 3
        assert job.pids(since_step=39) == job.pids()[:1], "the first process trained throughout"
        job.repeated_only()


@pytest.mark.proof
def test_a_slot_is_withdrawn_while_a_node_joins_and_another_leaves(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a", slots=2), job.start("b")
        job.trains_on(3)
        c = job.start("c")
        c.sees("met")
        b.run.signal(signal.SIGTERM)
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:1", *job.where)
        assert asked.code == 0, asked.stderr
        b.finish()
        c.joins()
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(c.finish())
        assert len(job.pids()) == 4
        job.repeated_only()


@pytest.mark.proof
def test_a_worker_is_killed_while_another_node_leaves(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a", slots=2), job.start("b")
        job.trains_on(3)
        victim = next(pid for pid in job.pids() if pid in a.descendants())
        b.run.signal(signal.SIGTERM)
        kill(victim)
        b.finish()
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.repeated_only(victim)


def test_the_first_agent_is_killed_and_started_again_with_the_same_command(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        first = job.start("a")
        job.reaches(0)
        b = job.start("b")
        job.trains_on(2)
        of_b = [pid for pid in job.pids() if pid in b.descendants()]
        below = [process.pid for process in first.run.descendants()]
        victims = [pid for pid in job.pids() if pid in below]
        first.run.signal(signal.SIGKILL)
        gone(below)
        assert b.sees("lost")["node"] == "a"
        job.goes_on()
        again = job.start("a")
        again.joins()
        job.trains_on(2)
        job.hurry()
        job.holds(b.finish())
        job.holds(again.finish())
        assert set(of_b) <= set(job.pids(since_step=39)), "the survivor trained throughout"
        job.repeated_only(*victims)
        no_doors()


@pytest.mark.proof
@pytest.mark.allow_leak("folder", reason="who would have swept the door was killed as well")
def test_the_larger_node_dies_with_all_that_could_say_so(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    """Nobody reports an exit, and whoever is asked refuses: the dead outvote nobody."""
    with Job(tmp_path, reference, etcd=etcd) as job:
        b = job.start("b", slots=2)
        b.sees("started")
        a = job.start("a")
        a.sees("met")
        a.joins()
        job.trains_on(3)
        all_of_b = (b.run.pid, *b.descendants())
        for harm in (freeze, kill):  # first none of them may see another's end
            for pid in all_of_b:
                harm(pid)
        a.sees("recovered")
        job.hurry()
        end = a.finish()
        job.holds(end)


def test_ctrl_c_keeps_the_work_and_the_same_command_goes_on_with_other_slots(
    tmp_path: Path, reference: Reference
) -> None:
    with Job(tmp_path, reference) as job:
        interrupt_and_go_on(job)


@pytest.mark.proof
def test_it_does_so_too_where_etcd_remembers_that_the_job_has_stopped(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        interrupt_and_go_on(job)


def interrupt_and_go_on(job: Job) -> None:
    a = job.start(slots=1)
    job.reaches(3)
    a.run.signal(signal.SIGINT)
    end = a.finish(code=130)
    assert end["event"] == "stopped"
    assert end["snapshot_step"] == job.step() + 1
    job.hurry()
    job.holds(job.start(slots=3).finish())
    assert len(job.pids()) == 4
    job.repeated_only()


@pytest.mark.proof
def test_a_node_that_comes_while_the_last_one_drains_goes_on_with_the_job(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a")
        job.reaches(0)
        b = job.start("b")
        b.sees("met")
        a.run.signal(signal.SIGTERM)
        a.run.wait()  # with 0 if it saw the job go on, else with 143
        job.hurry()
        job.holds(b.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path, reference: Reference) -> None:
    with Job(tmp_path, reference) as job:
        a = job.start(slots=2)
        job.trains_on(2)
        below = [process.pid for process in a.run.descendants()]
        assert set(job.pids()) < set(below)
        a.run.signal(signal.SIGKILL)
        gone(below)
        no_doors()
