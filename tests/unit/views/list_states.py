"""Recorded values for `jobs`, `plan` and `snapshots`."""

import msgspec

from easyscale.inspection import ValueDifference
from easyscale.job_status import JobFacts
from easyscale.model import JobState
from easyscale.plan_facts import Alternative, PlanFacts, PlannedSlot, PreviousPlan, Waste
from easyscale.rendezvous.keys import JobKeys
from easyscale_cli.forgetting import Ended
from easyscale_cli.views.jobs import JobRow
from easyscale_cli.views.snapshots import Removed, SnapshotRow, TensorDifference, Verdict
from tests.unit.views.launch_states import history_of
from tests.unit.views.status_states import LLAMA, RESNET50

HOUR = history_of("█▇▅▅▄▃▃▂▂▂▂▁▁▁▁▁▁▁▁▁")


def job(name: str, state: JobState, step: int, steps: int, *, user: str, note: str) -> JobFacts:
    return msgspec.structs.replace(
        RESNET50, id=name, state=state, step=step, steps=steps, user=user, note=note
    )


JOBS = (
    JobRow(job=RESNET50, slots=8, nodes=2, loss=0.612, history=HOUR),
    JobRow(job=LLAMA, slots=500, nodes=64, loss=2.814, history=HOUR),
    JobRow(
        job=job("gpt-mini", JobState.FINISHED, 3000, 3000, user="ci", note="digest a91e77f05c3d"),
        slots=0,
        nodes=0,
        loss=3.011,
    ),
    JobRow(
        job=job(
            "vit-sweep-7", JobState.WAITING, 0, 5000, user="dev1", note="4 slots wanted, 2 free"
        ),
        slots=0,
        nodes=0,
    ),
    JobRow(
        job=job("bert-ft", JobState.RESTORING, 1200, 3000, user="ops", note="all lost; step 1,200"),
        slots=4,
        nodes=1,
        loss=1.204,
    ),
    JobRow(
        job=job("toy-ddp", JobState.FAILED, 88, 1000, user="ops", note="ValueError at rank 3"),
        slots=0,
        nodes=0,
    ),
)


def planned(index: int, speed: float, spread: float, busy_s: float) -> PlannedSlot:
    is_fast = index < 4
    return PlannedSlot(
        node="a" if is_fast else "b",
        slot=f"cuda:{index % 4}",
        kind="H100" if is_fast else "A100",
        ranks=tuple(range(3 * index, 3 * index + 3)) if is_fast else (8 + index,),
        micro_steps_per_s=speed,
        spread_share=spread,
        busy_s=busy_s,
        previous_count=4 if is_fast else 0,
    )


NOW = (3, 3, 3, 3, 1, 1, 1, 1)
PLAN = PlanFacts(
    job="resnet50",
    era=1,
    generation=5,
    planned_at="2026-10-04T14:07:11.000Z",
    planned_at_step=2950,
    logical_workers=16,
    step_seconds=0.118,
    measured_step_seconds=0.135,
    throughput_per_s=122.1,
    capability_per_s=152.1,
    waste=Waste(idle_per_s=30.0, padding_per_s=0.0, share=0.197),
    reason="least step time; among equals fewest slots, then least movement",
    assignments=(
        planned(0, 26.2, 0.003, 0.114),
        planned(1, 26.4, 0.002, 0.114),
        planned(2, 26.0, 0.004, 0.115),
        planned(3, 26.3, 0.003, 0.114),
        planned(4, 13.2, 0.009, 0.076),
        planned(5, 7.6, 0.061, 0.131),
        planned(6, 13.1, 0.008, 0.076),
        planned(7, 13.15, 0.007, 0.076),
    ),
    moved_ranks=(12, 13, 14, 15),
    previous=PreviousPlan(generation=4, step_seconds=0.156, per_slot=(4, 4, 4, 4)),
    alternatives=(
        Alternative(
            name="this plan",
            per_slot=NOW,
            busy_s=0.131,
            against_now_share=None,
            reason="kept",
            is_present=True,
        ),
        Alternative(
            name="without b/cuda:1",
            per_slot=(4, 4, 4, 4),
            busy_s=0.152,
            against_now_share=0.16,
            reason="3+1 a slot hold 15 of 16",
        ),
        Alternative(
            name="one more A100",
            per_slot=NOW,
            busy_s=0.114,
            against_now_share=-0.13,
            reason="proposed to the pool",
        ),
        Alternative(
            name="b/cuda:1 recovers",
            per_slot=NOW,
            busy_s=0.114,
            against_now_share=-0.13,
            reason="no move needed",
        ),
    ),
    slower_since="b/cuda:1",
    occasion="now that b/cuda:1 is slow",
)
UNMEASURED = msgspec.structs.replace(
    PLAN,
    measured_step_seconds=None,
    throughput_per_s=None,
    capability_per_s=None,
    waste=None,
    previous=None,
    slower_since=None,
    assignments=(
        PlannedSlot(
            node="n\x1b[2J",
            slot="cpu:0",
            kind="AVX2 2.13.0",
            ranks=tuple(range(16)),
            micro_steps_per_s=None,
            spread_share=None,
            busy_s=None,
        ),
        PlannedSlot(
            node="n2",
            slot="cpu:1",
            kind="AVX2 2.13.0",
            ranks=(),
            micro_steps_per_s=3.0,
            spread_share=0.0,
            busy_s=0.0,
        ),
    ),
)


def snapshot(
    step: int, state: str, *, size: int, digest: str, nodes: str, age_s: float
) -> SnapshotRow:
    return SnapshotRow(
        name=f"step-{step:08}-g1.5-3fa9c2d1",
        step=step,
        epoch=6 if step >= 6000 else 5,
        era=1,
        generation=5,
        bytes=size,
        state=state,
        digest=digest or None,
        nodes=tuple(nodes),
        age_s=age_s,
    )


SNAPSHOTS = (
    snapshot(6400, "verified", size=98_100_000, digest="c40be1d2907a81ff", nodes="ab", age_s=18.0),
    snapshot(6200, "verified", size=98_100_000, digest="51d20c7f1be8a0b1", nodes="a", age_s=46.0),
    snapshot(6000, "damaged", size=98_100_000, digest="f9a3377e02c1aa00", nodes="a", age_s=70.0),
    snapshot(5800, "unfinished", size=61_000_000, digest="", nodes="b", age_s=94.0),
)
FOOTER = "restore would take step-00006400; keeps 3, so 6,000 goes after 6,600"
VERDICTS = (
    Verdict(name="step-00006400", bytes=98_100_000, tensors=62, took_s=0.21),
    Verdict(name="step-00006200", bytes=98_100_000, tensors=None, took_s=0.0, is_gone=True),
    Verdict(
        name="step-00006000",
        bytes=98_100_000,
        tensors=None,
        took_s=0.2,
        fault="state.pt: blake2b of bytes 41,943,040 to 46,137,344 differs",
        cure="skipped by restore; easyscale snapshots prune --damaged",
    ),
)
DIFFERENCES = (
    TensorDifference(
        name="fc.weight",
        shape="10x512",
        differing=5120,
        elements=5120,
        largest=3.1e-3,
        first="[0,0]",
        before=0.0114276,
        after=0.0119021,
    ),
    TensorDifference(
        name="conv1.weight",
        shape="64x3x7x7",
        differing=17,
        elements=9408,
        largest=8.8e-4,
        first="[0,0,0,0]",
        before=-0.00312,
        after=-0.0031733,
    ),
    TensorDifference(name="head.bias", shape="10", other_shape="11"),
    TensorDifference(name="head.scale", shape="1", only_in="6,400"),
)
VALUES = (
    ValueDifference(name="optimizer.param_groups.0.lr", before="0.001", after="0.0005"),
    ValueDifference(name="scheduler.last_epoch", before="5", after="6"),
)
REMOVED = (
    Removed(name="step-00006000-g1.5-3fa9c2d1", bytes=98_100_000, reason="state.pt is missing"),
    Removed(name=".step-00005800-g1.4-aa02c2d1.partial", bytes=None, reason="left unfinished"),
)
FORGOTTEN = (
    Ended(
        job="gpt-mini", state=JobState.FINISHED, step=3000, digest="a91e77f05c3d" * 5,
        reason="script ended", keys=JobKeys.of("gpt-mini"), witness="", revision=7,
    ),
    Ended(
        job="toy-ddp", state=JobState.FAILED, step=88, digest="",
        keys=JobKeys.of("toy-ddp"), witness="", revision=9,
        reason="rank 3 failed the same way at step 88 on 3 slots (a/cuda:0, a/cuda:1, b/cuda:0)",
    ),
)  # fmt: skip
