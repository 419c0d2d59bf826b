"""Waiting for data is remembered with the ranks that made it show, and nothing else is."""

from dataclasses import replace

import pytest

from easyscale.agent.balance import loaders, profile
from easyscale.agent.memory import Memory
from easyscale.agent.settings import Balance
from easyscale.model import NodeRecord, SlotRecord
from tests.support.views import KEYS, Job, commit, job_spec, worker

A, B = worker("a/0"), worker("a/1")
BALANCE = Balance(pays_within=10)


def look(
    memory: Memory, *, ranks: int, micro_step_s: float, wait_s: float, position: int = 1
) -> tuple[Memory, float]:
    """What the leader remembers after one look, and what it believes that a rank takes on B."""
    slots = (
        SlotRecord("cpu:0", "cpu", A, "in_use", "x", 0.1),
        SlotRecord("cpu:1", "cpu", B, "in_use", "x", micro_step_s, data_wait_s=wait_s),
    )
    node = NodeRecord(
        node="a", incarnation="a-boot-1", boot_id="b", host="a", address="", slots=slots
    )
    job = Job(job_spec(logical_workers=8)).leads().put(KEYS.node("a"), node)
    job.committed(commit(1, {A: range(ranks, 8), B: range(ranks)}))
    memory = loaders.follow(job.view(), replace(memory, position=position), BALANCE)
    return memory, profile.believed_s(slots[1], memory.doubts) or 0.0


def test_a_wait_that_went_with_the_ranks_is_believed_to_come_back_with_them() -> None:
    memory, taken_s = look(Memory(), ranks=4, micro_step_s=0.1, wait_s=0.2)
    assert taken_s == pytest.approx(0.3)
    memory, taken_s = look(memory, ranks=1, micro_step_s=0.1, wait_s=0.0)
    assert taken_s == pytest.approx(0.3)
    memory, taken_s = look(memory, ranks=4, micro_step_s=0.1, wait_s=0.0)
    assert taken_s == pytest.approx(0.1), "with as many ranks it waits no more"


def test_a_device_that_is_well_again_is_believed_whatever_its_loader_did() -> None:
    """Batches are loaded between micro-steps here: the wait is as long with any number of ranks."""
    memory, _ = look(Memory(), ranks=4, micro_step_s=0.4, wait_s=0.05)
    memory, taken_s = look(memory, ranks=1, micro_step_s=0.1, wait_s=0.05)
    assert taken_s == pytest.approx(0.15)


def test_a_loader_gets_another_chance_after_a_while() -> None:
    memory, _ = look(Memory(), ranks=4, micro_step_s=0.1, wait_s=0.2)
    memory, taken_s = look(memory, ranks=1, micro_step_s=0.1, wait_s=0.0, position=100)
    assert taken_s == pytest.approx(0.3)
    memory, taken_s = look(memory, ranks=1, micro_step_s=0.1, wait_s=0.0, position=101)
    assert taken_s == pytest.approx(0.1)
    assert memory.doubts == {}


def test_a_short_wait_is_an_accident() -> None:
    memory, _ = look(Memory(), ranks=4, micro_step_s=0.1, wait_s=0.01)
    assert memory.starved == {}
