"""Slots are held apart by what reaches the bits; what their devices are called is only shown."""

import pytest

from easyscale.agent import events, gathering
from easyscale.kinds import bits_of, differ_in_processor
from easyscale.messages import Initialised, Registered
from easyscale.model import SlotRecord
from easyscale.reports import EventKind
from tests.support.views import Job, commit, job_spec, launch_settings, worker
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


OURS = "cpu avx2 baseline torch-2.13.0+cpu threads-1"


@pytest.mark.parametrize(
    ("kind", "joins"),
    [
        (f"{OURS} (cpu avx512)", True),
        ("cpu avx2 baseline torch-2.12.0+cpu threads-1 (cpu avx2)", False),
        ("cpu avx2 baseline torch-2.13.0+cpu threads-4 (cpu avx2)", False),
        ("cpu default baseline torch-2.13.0+cpu threads-1", False),
        ("cpu default aarch64 torch-2.13.0+cpu threads-1", False),
        (H200, False),
    ],
)
def test_d2_frees_the_processor_and_nothing_else(kind: str, *, joins: bool) -> None:
    """What gave other bits would end the job at the first step that compares them."""
    spec = job_spec(kind=OURS, mixes=True)
    job = Job(spec).leads().node("a", "in_use", kind=f"{OURS} (cpu avx2)").node("b", kind=kind)
    view = job.committed(commit(1, [worker("a")])).view()
    found = gathering.newcomers(view, launch_settings())
    assert [slot.kind for slot in found] == [kind] * joins
    apart = gathering.misfits(view, launch_settings())
    assert [slot.kind for slot in apart] == [kind] * (not joins)


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [
        (
            "cpu avx2 Intel+avx2 torch-2 threads-1",
            "cpu avx512 Intel+avx512f torch-2 threads-1",
            True,
        ),
        ("cpu avx2 Intel+avx2 torch-2 threads-1", "cpu avx2 Intel+avx2 torch-3 threads-1", False),
        ("cpu avx2 Intel+avx2 torch-2 threads-1", H200, False),
        (H100, SLICE, False),
        (H100, H200, False),
    ],
)
def test_d2_is_offered_where_it_would_help(one: str, other: str, *, is_so: bool) -> None:
    assert differ_in_processor(one, other) is is_so


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


def test_at_d2_people_are_told_what_it_does_not_mix() -> None:
    agent = Agent()
    spec = job_spec(kind=OURS, mixes=True)
    agent.take(
        events.SlotsFound(slots=agent.slots),
        events.ZygoteReady(torch_version="2", cpu_kind="cpu", seconds=1.0),
        events.JobOpened(spec=spec, store="etcd", seconds=0.1),
        events.SnapshotsFound(records=()),
        events.Enrolled(create_revision=5),
        events.WorkerForked(worker=W0, pid=7),
        said(W0, Initialised(worker=W0, pid=7, torch_version="2", kind="cpu default aarch64")),
        said(W0, Registered(worker=W0, address="a:1")),
    )
    agent.view(Job(spec))
    told = [e.reason for e in agent.announced if "stays standby: of kind" in (e.reason or "")]
    apart = f"a/cpu:0 stays standby: of kind cpu default aarch64, the job is of kind {OURS}"
    what = "--determinism heterogeneous mixes processors of one architecture, and no more"
    assert told == [f"{apart}; {what}"]
