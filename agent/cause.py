"""From how a worker ended to what people read: a failure, and the job's first cause. Pure.

*First* is meant by causality: who failed by itself, not who lost its peer or was stopped by us.
"""

from pathlib import PurePath

from easyscale.agent import words
from easyscale.agent.balance import limits
from easyscale.agent.events import WorkerExited
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.state import OwnWorker, Phase
from easyscale.errors import ExitCode
from easyscale.messages import SourceLine
from easyscale.model import Cause, Commit, LogicalRank, SnapshotRecord, WorkerFailure, WorkerId
from easyscale.reports import FirstCause


def log_file(settings: LaunchSettings, worker: WorkerId) -> str:
    """Where the worker's stderr is kept, as its node names it."""
    slot = worker.slot.replace(":", "-").replace("/", "-")
    return f"{settings.log_dir}/{worker.node}/{slot}.{worker.spawn}/stderr.log"


def failure_of(
    worker: OwnWorker,
    exited: WorkerExited,
    *,
    settings: LaunchSettings,
    job_step: int = 0,
    survived: bool = False,
) -> WorkerFailure:
    """What failed, by the best witness: its own word, our stop, the signal, the exit code."""
    said = worker.failure
    beat_rank = worker.beat.rank if worker.beat else None
    rank = LogicalRank(beat_rank) if beat_rank is not None else None
    generation = worker.entered.generation if worker.entered else None
    log = log_file(settings, worker.id)
    if said is not None:
        name = PurePath(said.file).name
        return WorkerFailure(
            type=said.type,
            headline=f"{said.type}: {said.text}" if said.text else said.type,
            place=f"{name}:{said.line}" if said.line else "",
            rank=said.rank,
            step=said.step,
            # Who is refused before its first operation has not come in, though it has entered.
            generation=said.generation if said.refused else said.generation or generation,
            pid=exited.pid,
            log=log,
            file=said.file,
            line=said.line,
            function=said.function,
            caller=said.caller,
            excerpt=tuple((line.number, line.text) for line in said.excerpt),
            hidden_frames=said.hidden_frames,
            refused=said.refused,
            hint=said.hint,
            job_step=job_step,
            survived=survived,
        )
    kind, headline, refused, hint = _without_words(worker, exited, settings)
    return WorkerFailure(
        type=kind,
        headline=headline,
        place="",
        rank=rank,
        step=worker.step,
        generation=generation,
        pid=exited.pid,
        log=log,
        refused=refused,
        hint=hint,
        job_step=job_step,
        survived=survived,
    )


def _without_words(
    worker: OwnWorker, exited: WorkerExited, settings: LaunchSettings
) -> tuple[str, str, bool, str]:
    """Type, headline, whether it would be the same anywhere, and what to do."""
    script = settings.script.name
    last = f' (last on stderr: "{exited.last_words}")' if exited.last_words else ""
    if worker.hung:
        return "hung", worker.hung, False, ""
    if exited.signal is not None:
        name = words.signal_name(exited.signal)
        why = f": {exited.killed_for}" if exited.killed_for else ""
        return name, f"killed by {name}{why}{last}", False, ""
    if exited.exit_code:
        return f"exit {exited.exit_code}", f"exit {exited.exit_code}, no traceback{last}", False, ""
    if not worker.initialised:
        return (
            "exit 0",
            f"{script} ended without calling easyscale.init",
            True,
            "call easyscale.init first, or leave --logical-workers out for a plain launch",
        )
    if worker.phase in (Phase.STARTING, Phase.FORKING):
        return (
            "exit 0",
            f"{script} ended without calling job.register",
            True,
            "call job.register(model=..., optimizer=...) once both are built",
        )
    steps = worker.report.steps if worker.report else None
    due = f" of {steps:,}" if steps else ""
    return (
        "exit 0",
        f"{script} ended in step {worker.step:,}{due}, before its epochs were over",
        True,
        "let `for epoch in job.epochs(n)` run to its end",
    )


def how_it_ended(worker: OwnWorker, exited: WorkerExited) -> str:
    """`killed by SIGKILL`, `exited 1`: the words of a Lost line."""
    if worker.hung:
        return worker.hung
    if exited.signal is not None:
        return f"killed by {words.signal_name(exited.signal)}"
    return f"exited {exited.exit_code}"


def first_cause(
    cause: Cause,
    *,
    exit_code: int,
    settings: LaunchSettings,
    snapshot: SnapshotRecord | None,
    generation: Commit | None,
) -> FirstCause:
    """The box that every node shows last."""
    failure, worker = cause.failure, cause.worker
    number = failure.generation or (generation.generation if generation else None)
    return FirstCause(
        job=settings.job_id,
        headline=failure.headline,
        rank=failure.rank,
        step=failure.step,
        node=worker.node,
        slot=worker.slot,
        pid=failure.pid,
        era=number.era if number else 1,
        generation=number.number if number else 0,
        file=failure.file,
        line=failure.line,
        function=failure.function,
        caller=failure.caller,
        excerpt=tuple(SourceLine(number, text) for number, text in failure.excerpt),
        hidden_frames=failure.hidden_frames,
        why_ended=cause.why_ended,
        victims=cause.victims,
        snapshot=_snapshot_line(snapshot, failure.step) if snapshot else "",
        # A worker that was not let start has printed nothing.
        log=f"{worker.node}:{failure.log}" if failure.log else "",
        next_steps=_next_steps(cause, settings, snapshot),
        exit_code=exit_code,
    )


def no_worker_can_start(
    settings: LaunchSettings, *, node: str, how: str, losses: int
) -> FirstCause:
    """The box of a node whose zygote cannot be had: nothing of the script has run."""
    again = f", {words.count(losses + 1, 'time')} without a step between" if losses else ""
    preload = ",".join(settings.preload)
    leave_out = (f"leave --preload {preload} out, or install it",) if preload else ()
    return FirstCause(
        job=settings.job_id,
        headline=f"the zygote, which imports torch and forks the workers, ended by {how}",
        rank=None,
        step=None,
        node=node,
        slot="",
        pid=None,
        era=1,
        generation=0,
        file="",
        line=0,
        function="",
        caller="",
        excerpt=(),
        hidden_frames=0,
        why_ended=f"no worker can start on {node}{again}",
        victims=0,
        snapshot="",
        log=f"{node}:{settings.log_dir}/{node}/zygote.log",
        next_steps=(*leave_out, f"on {node}: easyscale doctor"),
        exit_code=ExitCode.JOB_FAILED,
    )


def _snapshot_line(snapshot: SnapshotRecord, step: int) -> str:
    back = max(step - snapshot.step, 0)
    where = f" · {snapshot.path}" if snapshot.path else ""
    return f"step {snapshot.step:,}, verified, {words.count(back, 'step')} back{where}"


def _next_steps(
    cause: Cause, settings: LaunchSettings, snapshot: SnapshotRecord | None
) -> tuple[str, ...]:
    """What to do now; every command can be pasted."""
    worker = cause.worker
    if cause.blames == "device":
        return (
            f"leave it out: easyscale drain {settings.job_id} {worker.place}",
            f"then on {worker.node}: easyscale doctor",
        )
    resumes = f"it resumes at step {snapshot.step:,}" if snapshot else "it starts from step 0"
    named = snapshot is None or settings.job_is_named
    with_name = "" if named else f" with --job-id {settings.job_id}"
    fix = limits.REMEDY if cause.blames == "memory" else "fix it"
    steps = [f"{fix}, then run the same command again{with_name}: {resumes}"]
    if cause.failure.hint:
        steps.insert(0, cause.failure.hint)
    if cause.failure.rank is not None and cause.blames == "script" and settings.script.path:
        arguments = " ".join(settings.script.arguments)
        command = f"python {settings.script.path}{' ' + arguments if arguments else ''}"
        steps.append(f"{command}   fails the same way on one device, for a debugger")
    return tuple(steps)
