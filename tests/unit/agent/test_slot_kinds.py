"""Slots are held apart by what reaches the bits; what their devices are called is only shown."""

import pytest

from easyscale.agent import events, gathering
from easyscale.kinds import bits_of
from easyscale.messages import Initialised, Registered
from easyscale.model import SlotRecord
from easyscale.reports import EventKind
from tests.support.views import job_spec
from tests.unit.agent.test_machine import W0, Agent, said

H200 = "nvidia sm-9.0 132-sms 2048-threads torch-2.13.0 (NVIDIA H200)"
H100 = "nvidia sm-9.0 132-sms 2048-threads torch-2.13.0 (NVIDIA H100 80GB HBM3)"
SLICE = "nvidia sm-9.0 16-sms 2048-threads torch-2.13.0 (NVIDIA H200 MIG 1g.18gb)"


def test_a_device_of_another_name_fits_and_one_of_other_processors_does_not() -> None:
    slots = {kind: SlotRecord("cuda:0", kind) for kind in (H200, H100, SLICE)}
    assert gathering.fits_kind(slots[H100], H200)
    assert not gathering.fits_kind(slots[SLICE], H200)


def test_the_kind_of_a_job_has_no_name() -> None:
    slots = [SlotRecord(f"cuda:{i}", kind) for i, kind in enumerate((SLICE, H200, H100))]
    kind = gathering.kind_of(slots, job_spec(kind=""))
    assert kind == bits_of(H200) == bits_of(H100)


@pytest.mark.parametrize(("kind", "notes"), [("cpu (of any name)", 0), ("cpu baseline", 1)])
def test_people_are_told_of_a_slot_of_another_kind_and_not_of_another_name(
    kind: str, notes: int
) -> None:
    agent = Agent().opened()
    agent.take(
        events.WorkerForked(worker=W0, pid=7),
        said(W0, Initialised(worker=W0, pid=7, torch_version="2", kind=kind)),
        said(W0, Registered(worker=W0, address="a:1")),
    )
    told = [e.reason for e in agent.announced if e.event is EventKind.NOTE]
    assert len([text for text in told if "stays standby: of kind" in text]) == notes
