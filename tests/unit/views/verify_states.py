"""Comparisons as `verify` shows them."""

import msgspec

from easyscale.agent.verify.verified import (
    Cause,
    Diagnosis,
    Failed,
    FirstDifference,
    RunRow,
    Verdict,
    Verified,
)

DIGEST = "5b9d2c7e11f0a34486c2d0b7e95a1f3308d47be6c5529a10fe3b7c84d16a02e9"


def row(name: str, layout: str, changes: str, seconds: float, *, same: bool = True) -> RunRow:
    digest = DIGEST if same else "e07b51c9d2f4" + DIGEST[12:]
    return RunRow(
        name=name, layout=layout, changes=changes, digest=digest, seconds=seconds, same=same
    )


ROWS = (
    row("fixed, 1 process", "16", "", 4.1),
    row("fixed, other hash order", "16", "", 3.9),
    row("4 workers", "4 each", "", 6.0),
    row("uneven and scattered", "7+4+5", "", 4.4),
    row("changing in place", "8+8 -> 12+4", "steps 9, 16, 22", 4.9),
    row("SIGKILL in reduce", "8+8 -> 16", "step 12", 4.6),
    row("snapshot and restore", "8+8 -> 6+10", "step 15", 7.2),
    row("other loader workers", "8+8", "", 9.1),
)

SAME = Verified(
    verdict=Verdict.SAME_BITS,
    script="train.py",
    steps=30,
    asked_steps=30,
    logical_workers=16,
    level="D1",
    runs=ROWS,
    not_started=0,
    batches=3840,
    digest=DIGEST,
    notes=("the reported took differs between runs; no batch, gradient or weight does",),
)

PLANNED = (
    *ROWS[:4],
    msgspec.structs.replace(ROWS[4], digest=None, seconds=None, same=None, step=14),
    *(
        msgspec.structs.replace(each, digest=None, seconds=None, same=None, step=None)
        for each in ROWS[5:]
    ),
)

DIFFERS = Verified(
    verdict=Verdict.BITS_DIFFER,
    script="train.py",
    steps=30,
    asked_steps=30,
    logical_workers=16,
    level="D1",
    runs=(*ROWS[:4], row("changing in place", "8+8 -> 12+4", "steps 9, 16, 22", 4.9, same=False)),
    not_started=3,
    batches=2400,
    first_difference=FirstDifference(
        run="changing in place",
        step=9,
        rank=12,
        where="outside",
        tensor="backbone.3.running_scale",
        same_batch=True,
        registered=False,
        index=(0,),
        expected="1.03125",
        expected_bits="0x3f840000",
        got="1",
        got_bits="0x3f800000",
        as_at_begin=True,
        then=("loss of rank 12 at step 9", "61 of 62 tensors and values of the state"),
    ),
    diagnosis=Diagnosis(
        cause=Cause.UNREGISTERED_STATE,
        told=(
            "backbone.3.running_scale is not registered with the job, each process has its own: "
            "its value before step 1"
        ),
        evidence=("train.py:31 writes self.running_scale",),
        ruled_out=("data order", "time", "set order"),
        advice='train.py:18: self.register_buffer("running_scale", torch.ones(1))',
    ),
)

NOT_COMPARABLE = msgspec.structs.replace(
    DIFFERS,
    verdict=Verdict.NOT_COMPARABLE,
    runs=(ROWS[0], row("fixed, other hash order", "16", "", 3.9, same=False)),
    not_started=6,
    first_difference=FirstDifference(
        run="fixed, other hash order",
        step=0,
        rank=None,
        where="state",
        tensor="model.weight",
        same_batch=True,
        registered=True,
    ),
    diagnosis=Diagnosis(
        cause=Cause.WALL_TIME,
        told="with a clock that stands still the script is equal to itself",
        evidence=("train.py:40 asks time.time", "train.py:52 asks datetime.now"),
        ruled_out=("data order",),
        advice="leave the clock out of whatever reaches a batch, a loss or a weight",
    ),
)

NOT_FINISHED = msgspec.structs.replace(
    SAME,
    verdict=Verdict.NOT_FINISHED,
    runs=(
        RunRow(
            name="fixed, 1 process", layout="16", changes="", digest=None, seconds=None, same=False
        ),
    ),
    digest=None,
    notes=(),
    failed=Failed(
        run="fixed, 1 process",
        reason="ValueError: target 11 is out of bounds for 10 classes",
        place="train.py:41",
        log='File "train.py", line 41, in <module>\n  check(y)\nValueError: target 11',
    ),
)
