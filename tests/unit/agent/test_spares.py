"""Slots beyond the ranks of a job have no worker, are shown as spare, and need not be bought."""

import msgspec

from easyscale.agent.balance.explain import of_job
from easyscale.agent.doors.status import status_of
from easyscale.model import NodeRecord, SlotRecord, decode
from tests.support.speeds import Race, steady
from tests.support.views import KEYS, Job, commit, job_spec, worker

A, A1 = worker("a"), worker("a/1")


def with_third(*, first_s: float = 0.1, has_worker: bool = False, kind: str = "cpu") -> Job:
    """Two ranks on two of three slots."""
    job = Job(job_spec(logical_workers=2)).leads().node("a", ("in_use", first_s), ("in_use", 0.1))
    record = decode(job.entries[KEYS.node("a")].value, NodeRecord, source="a")
    third = SlotRecord("cpu:2", kind, worker("a/2") if has_worker else None, "starting")
    job.put(KEYS.node("a"), msgspec.structs.replace(record, slots=(*record.slots, third)))
    return job.committed(commit(1, {A: [0], A1: [1]}))


def test_a_slot_without_a_worker_is_spare_and_does_not_start() -> None:
    status = status_of("job", with_third().view(), wall_s=0.0, own=None)
    assert [each.state for each in status.slots] == ["in_use", "in_use", "spare"]
    assert (status.counts.spare, status.counts.starting) == (1, 0)
    status = status_of("job", with_third(has_worker=True).view(), wall_s=0.0, own=None)
    assert [each.state for each in status.slots] == ["in_use", "in_use", "starting"]


def test_nobody_is_asked_for_a_slot_while_one_is_spare() -> None:
    """Only of another kind: then it is of no use to the job."""
    slow = of_job("job", with_third(first_s=0.4).view(), measured_s=None)
    assert not [each for each in slow.alternatives if "more" in each.name]
    other = of_job("job", with_third(first_s=0.4, kind="gpu").view(), measured_s=None)
    assert "one more cpu" in [each.name for each in other.alternatives]


def test_a_spare_slot_that_a_migration_names_gets_a_worker_and_takes_over() -> None:
    race = Race([steady(0.1)] * 3, 2)
    race.run(5)
    race.world.wish("migrate", "a", "cpu:0", target="a/cpu:2")
    race.until((0, 1, 1), within=60)
