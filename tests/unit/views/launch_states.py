"""One recorded job, `resnet50` on two nodes, as values: what the screens are compared with."""

import math

import msgspec

from easyscale.messages import SourceLine
from easyscale.reports import EventKind, Fact, FirstCause, JobEvent, Progress, Source, Summary

A0 = Source("a", "cuda:0", 4811)
A1 = Source("a", "cuda:1", 4812)
A2 = Source("a", "cuda:2", 4813)
A3 = Source("a", "cuda:3", 4814)
B1 = Source("b", "cuda:1", 48102)

LEVELS = "▁▂▃▄▅▆▇█"


def history_of(drawing: str) -> tuple[float, ...]:
    """Values whose sparkline is this drawing."""
    return tuple(float(LEVELS.index(mark)) for mark in drawing)


def event(
    change: EventKind,
    /,
    *,
    step: int = 0,
    generation: int = 1,
    reason: str = "",
    at: str = "2026-10-04T14:02:11.204Z",
    era: int = 1,
    **facts: Fact,
) -> JobEvent:
    return JobEvent(
        at=at,
        job="resnet50",
        event=change,
        step=step,
        era=era,
        generation=generation,
        reason=reason,
        facts=facts,
    )


HEADING: dict[str, Fact] = {"logical_workers": 16, "determinism": "D2"}
MET = event(EventKind.MET, endpoint="etcd-0:2379", took_s=0.04, node="a", slots=4, kind="H100")
STARTED = event(EventKind.STARTED, node="a", workers=4, took_s=1.31, shares=(4, 4, 4, 4))
JOINED = event(
    EventKind.JOINED,
    step=412,
    generation=2,
    node="b",
    slots=4,
    kind="A100",
    pause_s=0.021,
    steps_lost=0,
)
REBALANCED = event(
    EventKind.REBALANCED,
    step=432,
    generation=3,
    pause_s=0.0,
    steps_lost=0,
    step_s_before=0.156,
    step_s_after=0.118,
    reason="A100 13.2/s, H100 26.3/s: a 2 -> 3, b 2 -> 1 a slot",
)
LOST = event(
    EventKind.LOST,
    at="2026-10-04T14:07:10.480Z",
    step=2944,
    generation=3,
    node="b",
    slot="cuda:2",
    pid=48213,
    exit_code=None,
    signal="SIGKILL",
    ranks=(14,),
    reason="SIGKILL; kernel log: out of memory",
)
RECOVERED = event(
    EventKind.RECOVERED,
    at="2026-10-04T14:07:10.563Z",
    step=2944,
    generation=4,
    pause_s=0.083,
    steps_lost=0,
    workers_kept=7,
    ranks_moved=(14,),
    reason="rank 14 ran again on a/cuda:1",
)
JOINED_AGAIN = event(
    EventKind.JOINED,
    step=2950,
    generation=5,
    node="b",
    slot="cuda:2",
    pid=48977,
    pause_s=0.018,
    steps_lost=0,
)
SLOW = event(
    EventKind.SLOW,
    step=6020,
    generation=5,
    node="b",
    slot="cuda:1",
    reason="131 ms, 1.7 x its kind; plan kept, best other 152 ms",
)
OTHERS = (
    event(EventKind.WAITING, missing=1, wanted=2, waited_s=12.0, limit_s=600.0, have=("a",)),
    event(
        EventKind.WAITING,
        waited_s=31.0,
        limit_s=60.0,
        have=("c",),
        reason="gen 3 could still run: waits for b/cuda:0 or proof that it ended",
    ),
    event(
        EventKind.DRAINED,
        step=7200,
        generation=6,
        node="b",
        reason="SIGTERM from slurmstepd, 30 s grace",
    ),
    event(
        EventKind.HUNG,
        step=3310,
        generation=6,
        node="b",
        slot="cuda:3",
        silent_s=10.2,
        phase="reduction",
    ),
    event(
        EventKind.RECOVERED,
        step=3310,
        generation=7,
        pause_s=10.4,
        steps_lost=0,
        workers_kept=7,
        reason="rank 15 ran again on a/cuda:0",
    ),
    event(EventKind.STORE_AWAY, generation=7, endpoint="etcd-0:2379", silent_s=4.0),
    event(EventKind.STORE_BACK, generation=7, endpoint="etcd-0:2379", away_s=21.7),
    event(
        EventKind.RESTORED,
        step=6400,
        generation=8,
        source="b:runs/resnet50",
        steps_lost=12,
        reason="all were gone",
    ),
    event(
        EventKind.SNAPSHOT_FAILED,
        step=6600,
        generation=8,
        kept_step=6400,
        reason="disk full on a, 0 B free",
    ),
)
MORE = (
    event(EventKind.LEFT, step=7201, generation=9, node="b", reason="withdrawn by its agent"),
    event(EventKind.MIGRATED, step=7300, generation=9, pause_s=0.02, reason="rank 3 b -> a"),
    event(
        EventKind.RECOVERED_SPEED,
        step=7400,
        generation=9,
        node="b",
        slot="cuda:1",
        reason="76 ms, 1.0 x its kind",
    ),
    event(
        EventKind.SNAPSHOT,
        step=7500,
        generation=9,
        asked=True,
        bytes=98_100_000,
        verified=True,
        path="runs/resnet50/step-00007500-g1.9-3fa9c2d1",
    ),
    event(EventKind.SNAPSHOT, step=7800, generation=9, bytes=98_100_000),
    event(EventKind.LOST, step=7900, generation=9, node="c", slots=8, ranks=(0, 1, 2, 7)),
    event(EventKind.DRAINING, reason="this node at step 6,413; ctrl-c again kills its 4 workers"),
    event(EventKind.NOTE, reason="threads: 4 of the command line stand over 2 of init"),
    event(EventKind.JOINED, step=8000, era=2, generation=5, node="d", slots=1, kind="cpu"),
)
LOST_THREE_TIMES = (
    event(
        EventKind.LOST,
        step=6412,
        generation=5,
        node="b",
        slot="cuda:1",
        pid=50311,
        exit_code=1,
        ranks=(3,),
        reason="exit 1",
    ),
    event(
        EventKind.LOST,
        step=6412,
        generation=6,
        node="a",
        slot="cuda:0",
        pid=4811,
        exit_code=1,
        ranks=(3,),
        again=True,
        reason="exit 1",
    ),
    event(
        EventKind.LOST,
        step=6412,
        generation=7,
        node="a",
        slot="cuda:2",
        pid=4813,
        exit_code=1,
        ranks=(3,),
        again=True,
        restarts=2,
        restarts_limit=3,
        reason="exit 1",
    ),
)


def progress(drawing: str) -> Progress:
    return Progress(
        at="2026-10-04T14:07:30.000Z",
        job="resnet50",
        step=6412,
        steps=10_000,
        epoch=6,
        epochs=10,
        metric="loss",
        value=0.6121,
        history=history_of(drawing),
        steps_per_s=7.4,
        samples_per_s=None,
        left_s=485.0,
        elapsed_s=773.0,
        nodes=2,
        slots=8,
        era=1,
        generation=5,
        slow=("b/cuda:1",),
    )


SUMMARY = Summary(
    job="resnet50",
    finished=True,
    step=10_000,
    epochs=10,
    elapsed_s=1316.0,
    exit_code=0,
    digest="8c1f04e26b0a5d11c2aa0f9b4b5d1e7790b3a4f61c8e2d35f7a9016bd93a77b1",
    metric="loss",
    value=0.531,
    first_value=2.3026,
    history=history_of("█▇▆▅▅▄▄▄▃▃▃▂▂▂▂▂▂▂▂▁▁▁▁▁▁▁▁▁▁▁▁▁"),
    steps_per_s=7.6,
    samples_per_s=3896.0,
    median_step_s=0.118,
    changes={"joined": 2, "lost": 1, "drained": 1, "rebalanced": 1},
    paused_s=0.131,
    longest_pause_s=0.083,
    steps_lost=0,
    restarts=0,
    snapshot_step=10_000,
    snapshot_bytes=98_100_000,
    snapshot_path="runs/resnet50/step-00010000",
    log_dir="runs/resnet50/logs",
    reason="script ended",
)

FIRST_CAUSE = FirstCause(
    job="resnet50",
    headline="ValueError: target 11 is out of bounds for 10 classes",
    rank=3,
    step=6412,
    node="b",
    slot="cuda:1",
    pid=50311,
    era=1,
    generation=5,
    file="train.py",
    line=41,
    function="check",
    caller="train.py:23 in main",
    excerpt=(
        SourceLine(39, "def check(x, y):"),
        SourceLine(40, "    if y.max() >= CLASSES:"),
        SourceLine(
            41,
            '        raise ValueError(f"target {int(y.max())} is out of bounds for '
            '{CLASSES} classes")',
        ),
        SourceLine(42, "    return x, y"),
    ),
    hidden_frames=2,
    why_ended="rank 3 failed the same way at step 6,412 on 3 slots (b/cuda:1, a/cuda:0, "
    "a/cuda:2): it is the script or its data, not a device",
    victims=5,
    snapshot="step 6,400, verified, 12 steps back · runs/resnet50/step-00006400",
    log="b:runs/resnet50/logs/b/cuda-1.2/stderr.log",
    next_steps=(
        "fix it, then run the same command again: it resumes at step 6,400",
        "python train.py   fails the same way on one device, for a debugger",
    ),
    exit_code=1,
)
KILLED = FirstCause(
    job="resnet50",
    headline="killed by SIGKILL: out of memory on node b (118 of 125 GB used)",
    rank=None,
    step=6412,
    node="b",
    slot="cuda:1",
    pid=50311,
    era=2,
    generation=5,
    file="",
    line=0,
    function="",
    caller="",
    excerpt=(),
    hidden_frames=0,
    why_ended="b/cuda:1 failed at steps 6,412, 6,413 and 6,420 with 3 ranks that all ran well "
    "elsewhere: the device or node b, not the script",
    victims=1,
    snapshot="",
    log="b:runs/resnet50/logs/b/cuda-1.2/stderr.log",
    next_steps=(
        "leave it out: easyscale drain resnet50 b/cuda:1",
        "then on b: easyscale doctor",
    ),
    exit_code=5,
)
PLAIN_ERROR = msgspec.structs.replace(
    FIRST_CAUSE,
    headline='exit 1, no traceback (last on stderr: "mpirun: command not found")',
    rank=None,
    file="",
    excerpt=(),
    victims=0,
    why_ended="",
    next_steps=(),
    snapshot="",
    log="",
)
OF_MANY_LINES = msgspec.structs.replace(
    FIRST_CAUSE,
    headline="RuntimeError: Error(s) in loading state_dict for Linear:\n"
    '\tMissing key(s) in state_dict: "weight".\n\n\tsize mismatch for bias: copying a param with '
    "shape torch.Size([4]) from checkpoint, the shape in current model is torch.Size([5]).\r\n"
    "\x1b[2Jnot a command",
)
ENDLESS = msgspec.structs.replace(
    FIRST_CAUSE, headline="ValueError: " + "\n".join(["shape " * 30] * 20)
)
EVERY_CAUSE = (FIRST_CAUSE, KILLED, PLAIN_ERROR, OF_MANY_LINES, ENDLESS)
PAUSED = msgspec.structs.replace(
    SUMMARY,
    finished=False,
    exit_code=130,
    digest="",
    value=None,
    reason="node a (SIGINT, 30 s grace)",
    goes_on="the same command with --job-id resnet50-1f9c07 goes on from step 10,000",
    changes={},
    longest_pause_s=0.0,
    paused_s=0.0,
)
PLAIN_JOB = msgspec.structs.replace(
    SUMMARY,
    digest="",
    metric=None,
    value=None,
    samples_per_s=None,
    steps_per_s=None,
    median_step_s=None,
    snapshot_step=None,
    restarts=2,
    epochs=None,
)
EVERY_SUMMARY = (SUMMARY, PAUSED, PLAIN_JOB)
_FALLING = tuple(2.3 / (1 + index / 9) for index in range(64))
EVERY_PROGRESS = (
    msgspec.structs.replace(progress("█▁"), history=_FALLING),
    msgspec.structs.replace(progress("█▁"), steps=None, epochs=None, left_s=None, history=()),
    msgspec.structs.replace(progress("█▁"), value=math.nan, history=(1.0, 0.5, math.nan)),
    msgspec.structs.replace(
        progress("█▁"),
        step=0,
        metric=None,
        value=None,
        history=(),
        steps_per_s=None,
        left_s=None,
        slow=(),
        nodes=1,
        slots=1,
    ),
    msgspec.structs.replace(
        progress("█▁"),
        step=123_456_789,
        steps=999_999_999,
        history=_FALLING,
        slots=10_240,
        nodes=1_280,
        era=12,
        generation=4_711,
        slow=("rack-17-node-with-a-long-name/cuda:7", "b/cuda:1", "c/cuda:2"),
    ),
)
HOSTILE = (
    event(
        EventKind.JOINED,
        step=1,
        node="n\x1b[2J\u202egnp.exe-" + "x" * 60,
        slots=1,
        kind="[bold]cpu[/bold]",
        pause_s=0.0,
    ),
    event(EventKind.NOTE, reason="a line\nbreak, a tab\tand a bell\x07: 模型 loss \u2028 é"),
    event(EventKind.SLOW, node="b", slot="cuda:1", reason="w" * 200),
)
