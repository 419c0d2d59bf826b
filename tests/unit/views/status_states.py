"""Recorded jobs for `status`, `jobs`, `plan` and `snapshots`; the numbers agree with each other."""

import math

import msgspec

from easyscale.job_status import (
    Budget,
    Changes,
    Counts,
    JobFacts,
    JobStatus,
    Metric,
    SlotFacts,
    SnapshotFacts,
    StepTime,
    StoreFacts,
    count_slots,
)
from easyscale.model import JobState
from easyscale.reports import EventKind, Fact, JobEvent
from tests.unit.views.launch_states import LEVELS

GB = 1_000_000_000


def history_of(drawing: str) -> tuple[tuple[int, float], ...]:
    return tuple((index, float(LEVELS.index(mark))) for index, mark in enumerate(drawing))


def change(
    kind: EventKind,
    /,
    at: str,
    step: int,
    generation: int,
    reason: str = "",
    **facts: Fact,
) -> JobEvent:
    return JobEvent(
        at=f"2026-10-04T{at}.000Z",
        job="resnet50",
        event=kind,
        step=step,
        era=1,
        generation=generation,
        reason=reason,
        facts=facts,
    )


def h100(index: int, busy_s: float, share: float, temperature: int) -> SlotFacts:
    return SlotFacts(
        node="a",
        slot=f"cuda:{index}",
        kind="H100",
        state="in_use",
        ranks=(3 * index, 3 * index + 1, 3 * index + 2),
        process_rank=index,
        pid=4811 + index,
        micro_step_s=0.038,
        against_kind=1.0,
        busy_s=busy_s,
        wait_s=0.131 - busy_s,
        data_wait_s=0.0004,
        utilisation_share=share,
        memory_used_bytes=41 * GB,
        memory_total_bytes=80 * GB,
        temperature_c=temperature,
    )


def a100(index: int, pid: int, share: float, temperature: int) -> SlotFacts:
    slow = index == 1
    micro_step_s = 0.131 if slow else 0.076
    return SlotFacts(
        node="b",
        slot=f"cuda:{index}",
        kind="A100",
        state="in_use",
        ranks=(12 + index,),
        process_rank=4 + index,
        pid=pid,
        micro_step_s=micro_step_s,
        against_kind=1.73 if slow else 1.0,
        busy_s=micro_step_s,
        wait_s=0.131 - micro_step_s,
        data_wait_s=0.0004,
        utilisation_share=share,
        memory_used_bytes=22 * GB,
        memory_total_bytes=40 * GB,
        temperature_c=temperature,
        slow=slow,
        sets_step=slow,
    )


SLOTS_2X4 = (
    h100(0, 0.114, 0.97, 61),
    h100(1, 0.114, 0.96, 60),
    h100(2, 0.115, 0.97, 63),
    h100(3, 0.114, 0.96, 61),
    a100(0, 48101, 0.61, 58),
    a100(1, 48102, 0.98, 84),
    a100(2, 48977, 0.60, 57),
    a100(3, 48104, 0.61, 57),
)
RESNET50 = JobFacts(
    id="resnet50",
    state=JobState.RUNNING,
    mode="elastic",
    logical_workers=16,
    determinism="heterogeneous",
    era=1,
    generation=5,
    step=6412,
    steps=10_000,
    epoch=6,
    epochs=10,
    started="2026-10-04T14:01:05.000Z",
    elapsed_s=773.0,
    left_s=485.0,
    steps_per_s=7.4,
    samples_per_s=3789.0,
    user="dev1",
    note="! slow: b/cuda:1",
)
CHANGES_2X4 = (
    change(
        EventKind.SLOW,
        "14:13:05",
        6020,
        5,
        "131 ms, 1.7 x its kind; plan kept, best other 152 ms (4+4+4+4)",
        node="b",
        slot="cuda:1",
    ),
    change(
        EventKind.JOINED,
        "14:07:11",
        2950,
        5,
        "new worker 48977 takes rank 14",
        node="b",
        slot="cuda:2",
        pause_s=0.018,
    ),
    change(
        EventKind.RECOVERED,
        "14:07:10",
        2944,
        4,
        "rank 14 ran again on a/cuda:1",
        pause_s=0.083,
    ),
    change(
        EventKind.LOST,
        "14:07:10",
        2944,
        3,
        "SIGKILL; kernel log: out of memory",
        node="b",
        slot="cuda:2",
    ),
    change(
        EventKind.REBALANCED,
        "14:02:14",
        432,
        3,
        "A100 13.2/s, H100 26.3/s: a 2 -> 3, b 2 -> 1 a slot",
        pause_s=0.0,
        step_s_before=0.156,
        step_s_after=0.118,
    ),
    change(EventKind.JOINED, "14:02:11", 412, 2, node="b", slots=4, kind="A100", pause_s=0.021),
    change(EventKind.STARTED, "14:01:07", 0, 1, node="a", slots=4, kind="H100"),
)


def two_by_four(drawing: str) -> JobStatus:
    return JobStatus(
        at="2026-10-04T14:13:58.012Z",
        job=RESNET50,
        metrics={"loss": Metric(last=0.6121, first=2.3026, history=history_of(drawing))},
        slots=SLOTS_2X4,
        counts=count_slots(SLOTS_2X4),
        step_time=StepTime(measured_s=0.135, predicted_s=0.118),
        changes=Changes(count=4, paused_s=0.122, steps_lost=0, last=CHANGES_2X4),
        snapshot=SnapshotFacts(
            step=6400,
            bytes=98_100_000,
            verified=True,
            age_s=18.2,
            next_step=6600,
            keep=3,
            digest="c40be1d2907a81ffc40be1d2907a81ff",
        ),
        budget=Budget(used=0, limit=3),
        store=StoreFacts(reachable=True, silent_s=0.3),
    )


def _slots_64x8() -> tuple[SlotFacts, ...]:
    slots = []
    for node in range(1, 65):
        for index in range(8):
            number = (node - 1) * 8 + index
            slots.append(
                SlotFacts(
                    node=f"gpu-{node:03}",
                    slot=f"cuda:{index}",
                    kind="H100",
                    state="standby" if node == 64 else "in_use",
                    ranks=() if node == 64 else (2 * number, 2 * number + 1),
                    micro_step_s=None if node == 64 else 0.412,
                    against_kind=None if node == 64 else 1.0,
                    busy_s=0.824,
                    memory_used_bytes=61 * GB,
                    memory_total_bytes=80 * GB,
                    temperature_c=64,
                )
            )

    def odd(node: int, index: int, **facts: object) -> None:
        place = (node - 1) * 8 + index
        slots[place] = msgspec.structs.replace(slots[place], **facts)

    gone = "Xid 79, GPU fell off the bus; 4 ranks moved to gpu-063/cuda:5-6; paused 0.141 s"
    odd(9, 7, against_kind=1.12, micro_step_s=0.461)
    odd(17, 2, against_kind=1.31, slow=True, sets_step=True, since_s=13.0, temperature_c=87)
    odd(17, 2, note="1.31 x, 87 °C: sets the step; emptied in 28 steps if it stays")
    odd(17, 5, state="emptied", slow=True, against_kind=1.42, since_s=690.0)
    odd(17, 5, note="1.42 x for 40 steps: emptied")
    odd(30, 0, state="starting", micro_step_s=None)
    for index in (0, 1):
        odd(41, index, against_kind=1.2, slow=True, since_s=252.0, data_wait_s=0.061)
        odd(41, index, note="1.2 x, waits 61 ms a step for data (others 2 ms)")
    for index in (3, 4):
        odd(52, index, state="gone", note=gone, since_s=124.0, micro_step_s=None)
    return tuple(slots)


SLOTS_64X8 = _slots_64x8()
CHANGES_64X8 = (
    change(
        EventKind.LOST,
        "14:11:54",
        61_502,
        41,
        "Xid 79; 4 ranks -> gpu-063; 498 workers kept",
        node="gpu-052",
        slot="cuda:3-4",
        pause_s=0.141,
    ),
    change(
        EventKind.REBALANCED,
        "14:02:28",
        60_837,
        40,
        "gpu-017/cuda:5 1.42 x its kind: 2 ranks -> gpu-063/cuda:7",
        pause_s=0.0,
        step_s_before=1.2,
        step_s_after=0.86,
    ),
    change(
        EventKind.JOINED,
        "13:40:02",
        59_291,
        39,
        "32 slots, 12 stay standby",
        node="gpu-061 to 064",
        pause_s=0.188,
    ),
    change(EventKind.DRAINED, "13:02:00", 57_000, 38, node="gpu-070", pause_s=0.05),
)
LLAMA = msgspec.structs.replace(
    RESNET50,
    id="llama-1b",
    logical_workers=1000,
    determinism="same-kind",
    generation=41,
    step=61_540,
    steps=200_000,
    epoch=1,
    epochs=1,
    elapsed_s=14 * 3600.0 + 36 * 60,
    left_s=42 * 3600.0,
    steps_per_s=0.9,
    samples_per_s=461_000.0,
    unit="tokens",
    user="ci",
    note="2 slots gone",
)


def sixty_four_by_eight(drawing: str) -> JobStatus:
    return msgspec.structs.replace(
        two_by_four(drawing),
        job=LLAMA,
        metrics={"loss": Metric(last=2.814, first=10.9, history=history_of(drawing))},
        slots=SLOTS_64X8,
        counts=count_slots(SLOTS_64X8),
        step_time=StepTime(measured_s=1.11, predicted_s=1.0),
        changes=Changes(count=40, paused_s=5.2, steps_lost=0, last=CHANGES_64X8),
        snapshot=SnapshotFacts(
            step=61_500,
            bytes=13_200_000_000,
            verified=True,
            age_s=33.0,
            next_step=62_000,
            keep=3,
            digest=None,
        ),
    )


ONE = two_by_four("█▄▁")
SINGLE = msgspec.structs.replace(
    ONE,
    job=msgspec.structs.replace(RESNET50, steps=None, epochs=None, left_s=None, note=None),
    slots=(
        msgspec.structs.replace(
            SLOTS_2X4[0],
            slot="cpu:0",
            kind="AVX2 2.13.0",
            ranks=tuple(range(16)),
            utilisation_share=None,
            memory_used_bytes=None,
            temperature_c=None,
            busy_s=0.13,
        ),
    ),
    snapshot=None,
    changes=Changes(count=0, paused_s=0.0, steps_lost=0),
)
WAITING = msgspec.structs.replace(
    ONE,
    job=msgspec.structs.replace(
        RESNET50,
        state=JobState.WAITING,
        step=0,
        steps=None,
        generation=0,
        elapsed_s=None,
        left_s=None,
        steps_per_s=None,
        samples_per_s=None,
        note="waiting for 2 of 4 nodes · 12 s of 600 s · have a, c",
    ),
    metrics={},
    slots=(),
    counts=count_slots(()),
    step_time=StepTime(measured_s=None, predicted_s=None),
    changes=Changes(count=0, paused_s=0.0, steps_lost=0),
    snapshot=None,
)
RESTORING = msgspec.structs.replace(
    ONE,
    job=msgspec.structs.replace(
        RESNET50, state=JobState.RESTORING, note="all lost; restoring step 6,400"
    ),
    slots=tuple(
        msgspec.structs.replace(slot, state="gone", ranks=(), micro_step_s=None, slow=False)
        for slot in SLOTS_2X4
    ),
)
REFUSED = msgspec.structs.replace(
    ONE,
    store=StoreFacts(reachable=False, silent_s=21.7, refuses="mvcc: database space exceeded"),
)
AWAY = msgspec.structs.replace(ONE, store=StoreFacts(reachable=False, silent_s=21.7))
DIVERGED = msgspec.structs.replace(
    ONE,
    metrics={
        "loss": Metric(
            last=math.nan,
            first=2.3,
            history=((0, 2.3), (80, 1.0), (160, math.nan)),
            not_finite_since=144,
        )
    },
)
HOSTILE = msgspec.structs.replace(
    ONE,
    job=msgspec.structs.replace(RESNET50, id="job\x1b[2J\u202e", steps=123_456_789),
    slots=tuple(
        msgspec.structs.replace(slot, node="n" * 50 + "\x1b[31m\u202egnp") for slot in SLOTS_2X4
    ),
)
MIXED = msgspec.structs.replace(
    ONE,
    slots=(
        *SLOTS_2X4,
        SlotFacts(node="c", slot="cuda:0", kind="L4", state="standby"),
        SlotFacts(node="c", slot="cuda:1", kind="L4", state="emptied", ranks=()),
        SlotFacts(node="c", slot="cuda:2", kind="L4", state="draining", ranks=(1,)),
        SlotFacts(node="c", slot="cuda:10", kind="L4", state="starting"),
        SlotFacts(node="c", slot="cuda:11", kind="L4", state="gone"),
        SlotFacts(node="c", slot="cuda:12", kind="L4", state="in_use", ranks=(2,), hung=True),
    ),
    changes=Changes(
        count=10_000,
        paused_s=250.0,
        steps_lost=12,
        last=(
            *CHANGES_2X4,
            change(EventKind.STORE_BACK, "14:01:00", 9, 1),
            change(EventKind.STORE_AWAY, "14:00:00", 8, 1, "training goes on"),
            change(EventKind.HUNG, "13:00:00", 7, 1, "silent 10.2 s", node="b", slot="cuda:1"),
        ),
    ),
)
MIXED = msgspec.structs.replace(MIXED, counts=count_slots(MIXED.slots))


def told(kind: EventKind, /, at: str, generation: int, reason: str = "", **facts: Fact) -> JobEvent:
    """A change of a job whose steps nobody knows."""
    event = change(kind, at, 0, generation, reason, **facts)
    return msgspec.structs.replace(event, step=None, job="ddp")


def ranks_at(
    node: str, slot: str, *ranks: int, state: str = "in_use", **facts: object
) -> SlotFacts:
    bare = SlotFacts(node=node, slot=slot, kind="", state=state, ranks=ranks)
    return msgspec.structs.replace(bare, **facts)


PLAIN = JobStatus(
    at="2026-10-04T14:13:58.012Z",
    job=JobFacts(
        id="ddp",
        state=JobState.RUNNING,
        mode="plain",
        logical_workers=None,
        determinism=None,
        era=1,
        generation=3,
        step=None,
        steps=None,
        epoch=None,
        epochs=None,
        started="2026-10-04T14:01:05.000Z",
        elapsed_s=773.0,
        left_s=None,
        steps_per_s=None,
        samples_per_s=None,
        user="ann",
    ),
    slots=(
        ranks_at("a", "local:0", 0, pid=4811, utilisation_share=0.98, memory_used_bytes=2 * GB),
        ranks_at("a", "local:1", 1, pid=4812, utilisation_share=0.97, memory_used_bytes=2 * GB),
        ranks_at("b", "local:0", 2),
        ranks_at("b", "local:1", state="standby", note="its workers have ended well"),
    ),
    counts=Counts(in_use=3, standby=1, emptied=0, starting=0, draining=0, gone=0, nodes=2),
    step_time=StepTime(measured_s=None, predicted_s=None),
    changes=Changes(
        count=2,
        paused_s=None,
        steps_lost=None,
        last=(
            told(EventKind.STARTED, "14:10:00", 3, "restart 1 of 3", node="a", workers=2),
            told(
                EventKind.LOST, "14:09:58", 2, "ValueError: target 11 is out of bounds for 10"
                " classes", node="b", pid=4821, ranks=(2,),
            ),
            told(EventKind.STARTED, "14:03:00", 2, "b joined", node="a", workers=2),
            told(EventKind.JOINED, "14:02:58", 1, "b joined", node="b"),
            told(EventKind.STARTED, "14:01:06", 1, node="a", workers=2),
        ),
    ),
    budget=Budget(used=1, limit=3),
    store=StoreFacts(reachable=True, silent_s=0.0),
)  # fmt: skip
PACKED = msgspec.structs.replace(
    PLAIN,
    job=msgspec.structs.replace(PLAIN.job, id="packed", mode="packed", logical_workers=8),
    slots=(
        ranks_at("a", "cuda:0", 0, 1, 2),
        ranks_at("a", "cuda:1", 3, 4, 5, state="starting"),
        ranks_at("b", "cuda:0", 6, 7, state="draining"),
        ranks_at("b", "cuda:1", state="gone", note="its agent has ended, or nobody hears it"),
    ),
    counts=Counts(in_use=1, standby=0, emptied=0, starting=1, draining=1, gone=1, nodes=2),
    changes=Changes(count=0, paused_s=None, steps_lost=None),
    store=None,
)
SMALL_STATES = {
    "plain": PLAIN,
    "packed": PACKED,
    "single": SINGLE,
    "waiting": WAITING,
    "restoring": RESTORING,
    "away": AWAY,
    "refused": REFUSED,
    "diverged": DIVERGED,
    "hostile": HOSTILE,
    "mixed": MIXED,
}
