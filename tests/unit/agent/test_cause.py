"""From how a worker ended to the box that people read last."""

import msgspec
import pytest

from easyscale.agent import words
from easyscale.agent.cause import failure_of, first_cause, how_it_ended
from easyscale.agent.events import WorkerExited
from easyscale.agent.state import Entered, OwnWorker, Phase
from easyscale.messages import Failure, ScriptTarget, SourceLine, StepReport
from easyscale.model import Cause, LogicalRank, Position, SnapshotRecord
from easyscale.pulse import Beat
from easyscale.pulse import Phase as Pulse
from tests.support.views import launch_settings, number, worker

WHO = worker("b/1", 2)
SETTINGS = launch_settings(script=ScriptTarget(path="train.py", arguments=("--lr", "0.1")))


def own(**changes: object) -> OwnWorker:
    beat = Beat(phase=Pulse.MICRO_STEP, position=412, step=412, rank=3, micro_steps=9, since_s=0.0)
    values: dict[str, object] = {
        "id": WHO,
        "phase": Phase.MEMBER,
        "since_s": 0.0,
        "pid": 50311,
        "initialised": True,
        "entered": Entered(number(5), 0, has_state=True),
        "beat": beat,
    }
    return OwnWorker(**{**values, **changes})  # type: ignore[arg-type]


def exited(
    *, exit_code: int | None = None, signal: int | None = None, words: str = ""
) -> WorkerExited:
    return WorkerExited(worker=WHO, pid=50311, exit_code=exit_code, signal=signal, last_words=words)


def said(**changes: object) -> Failure:
    values: dict[str, object] = {
        "type": "ValueError",
        "text": "target 11 is out of bounds for 10 classes",
        "rank": LogicalRank(3),
        "step": 6412,
        "generation": number(5),
        "file": "/home/ann/train.py",
        "line": 41,
        "function": "check",
        "caller": "train.py:23 in main",
        "excerpt": (SourceLine(41, "        raise ValueError(...)"),),
        "hidden_frames": 2,
        "traceback": "...",
        "refused": False,
    }
    return Failure(**{**values, **changes})  # type: ignore[arg-type]


def test_an_exception_is_told_in_its_own_words_and_place() -> None:
    failure = failure_of(own(failure=said()), exited(exit_code=1), settings=SETTINGS)
    assert failure.headline == "ValueError: target 11 is out of bounds for 10 classes"
    assert (failure.type, failure.place, failure.rank) == ("ValueError", "train.py:41", 3)
    assert failure.log == "runs/job/logs/b/cpu-1.2/stderr.log"
    assert failure.generation == number(5)


def test_a_signal_takes_rank_and_step_from_the_pulse() -> None:
    failure = failure_of(own(), exited(signal=9), settings=SETTINGS)
    assert failure.headline == "killed by SIGKILL"
    assert (failure.type, failure.rank, failure.step) == ("SIGKILL", 3, 412)


def test_an_exit_without_a_traceback_quotes_the_last_words() -> None:
    failure = failure_of(
        own(), exited(exit_code=3, words="mpirun: command not found"), settings=SETTINGS
    )
    assert failure.headline == (
        'exit 3, no traceback (last on stderr: "mpirun: command not found")'
    )
    assert not failure.refused


@pytest.mark.parametrize(
    ("worker_state", "headline"),
    [
        ({"initialised": False}, "train.py ended without calling easyscale.init"),
        ({"phase": Phase.STARTING}, "train.py ended without calling job.register"),
        ({}, "train.py ended in step 412, before its epochs were over"),
    ],
)
def test_an_exit_0_that_is_too_early_is_the_scripts_and_is_not_tried_again(
    worker_state: dict[str, object], headline: str
) -> None:
    failure = failure_of(own(**worker_state), exited(exit_code=0), settings=SETTINGS)
    assert failure.headline == headline
    assert failure.refused
    assert failure.hint


def test_an_early_end_names_the_steps_that_were_due() -> None:
    report = StepReport(
        position=Position(412), step=412, steps=10_000, epoch=0, epochs=1, metrics={}, step_s=None,
        micro_step_s=None, exchange_wait_s=None, data_wait_s=None, samples_per_step=None,
    )  # fmt: skip
    failure = failure_of(own(report=report), exited(exit_code=0), settings=SETTINGS)
    assert failure.headline == "train.py ended in step 412 of 10,000, before its epochs were over"


def test_a_hung_worker_is_not_told_as_killed() -> None:
    silent = "no progress for 61 s: b/cpu:1 r3 in step 412"
    failure = failure_of(own(hung=silent), exited(signal=9), settings=SETTINGS)
    assert (failure.type, failure.headline) == ("hung", silent)
    assert how_it_ended(own(hung=silent), exited(signal=9)) == silent


def cause(blames: str = "script", **changes: object) -> Cause:
    failure = failure_of(own(failure=said(**changes)), exited(exit_code=1), settings=SETTINGS)
    return Cause(
        worker=WHO,
        failure=failure,
        why_ended="rank 3 failed the same way",
        blames=blames,
        also_on=("a/cpu:0",),
        victims=5,
    )


SNAPSHOT = SnapshotRecord(
    name="step-00006400", step=6400, epoch=6, digest="d", bytes=1, generation=number(5),
    nodes=("b",), path="runs/job/step-00006400",
)  # fmt: skip


def test_the_box_says_where_the_job_goes_on_and_how_to_look_closer() -> None:
    box = first_cause(cause(), exit_code=1, settings=SETTINGS, snapshot=SNAPSHOT, generation=None)
    assert box.snapshot == "step 6,400, verified, 12 steps back · runs/job/step-00006400"
    assert box.log == "b:runs/job/logs/b/cpu-1.2/stderr.log"
    assert box.next_steps == (
        "fix it, then run the same command again: it resumes at step 6,400",
        "python train.py --lr 0.1   fails the same way on one device, for a debugger",
    )
    assert (box.node, box.slot, box.pid, box.generation) == ("b", "cpu:1", 50311, 5)
    assert box.excerpt == (SourceLine(41, "        raise ValueError(...)"),)


def test_a_job_that_nobody_named_is_gone_on_with_by_its_name() -> None:
    nameless = msgspec.structs.replace(SETTINGS, job_is_named=False)
    box = first_cause(cause(), exit_code=1, settings=nameless, snapshot=SNAPSHOT, generation=None)
    assert box.next_steps[0] == (
        "fix it, then run the same command again with --job-id job: it resumes at step 6,400"
    )
    anew = first_cause(cause(), exit_code=1, settings=nameless, snapshot=None, generation=None)
    assert anew.next_steps[0] == "fix it, then run the same command again: it starts from step 0"


def test_a_worker_that_was_not_let_start_has_no_log_to_name() -> None:
    refused = cause()
    failure = msgspec.structs.replace(refused.failure, log="")
    refused = msgspec.structs.replace(refused, failure=failure)
    box = first_cause(refused, exit_code=1, settings=SETTINGS, snapshot=None, generation=None)
    assert box.log == ""


def test_a_job_without_room_needs_a_slot_or_a_smaller_batch() -> None:
    box = first_cause(
        cause("memory"), exit_code=1, settings=SETTINGS, snapshot=SNAPSHOT, generation=None
    )
    (step,) = box.next_steps
    again = "then run the same command again: it resumes at step 6,400"
    assert step == f"add a slot or make the batch smaller, {again}"


def test_an_accused_device_is_left_out_and_examined() -> None:
    box = first_cause(
        cause("device"), exit_code=5, settings=SETTINGS, snapshot=None, generation=None
    )
    assert box.next_steps == (
        "leave it out: easyscale drain job b/cpu:1",
        "then on b: easyscale doctor",
    )
    assert box.snapshot == ""


def test_a_broken_rule_says_first_what_to_write_instead() -> None:
    told = cause(hint="call loss.backward() inside the inner loop", refused=True, rank=None)
    box = first_cause(told, exit_code=1, settings=SETTINGS, snapshot=None, generation=None)
    assert box.next_steps == (
        "call loss.backward() inside the inner loop",
        "fix it, then run the same command again: it starts from step 0",
    )


def test_a_text_of_many_lines_is_one_line_in_a_reason_and_bounded() -> None:
    assert words.in_a_line("RuntimeError: in Linear:\n\tsize mismatch\n") == (
        "RuntimeError: in Linear: size mismatch"
    )
    assert words.in_a_line("x" * 200) == "x" * 200
    assert words.in_a_line("x" * 4000) == "x" * 198 + " …"
