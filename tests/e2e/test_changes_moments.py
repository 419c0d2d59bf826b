"""A worker dies or stands still at a named moment: the others go on in place, to the same bits."""

from pathlib import Path

import psutil
import pytest

from tests.support.nodes import Job, Reference, gone, is_alive, kill, thaw
from tests.support.processes import run_easyscale

#: Somebody waits in the reduction long enough to be killed there.
WAITS = " sleep=1@micro_step:step=13:main=1"
KILLS = {
    "in the forward pass": "kill@forward:step=13:main=0",
    "before the backward pass": "kill@micro_step:step=13:main=0",
    "in the backward pass": "kill@backward:step=13:main=0",
    "in the exchange": "kill@exchange:step=13:main=0" + WAITS,
    "with the result": "kill@result:step=13:main=0",
    "in the optimizer step": "kill@update:step=13:main=0",
    "after the optimizer step": "kill@updated:step=13:main=0",
    "in an evaluation": "kill@evaluation:step=19:main=0",
    "between epochs": "kill@epoch:step=19:main=0",
}
MAIN_KILLS = {
    "main, in the backward pass": "kill@backward:step=13:main=1",
    "main, in the optimizer step": "kill@update:step=13:main=1",
    "main, in an evaluation": "kill@evaluation:step=19:main=1",
    "main, writing a snapshot": "kill@snapshot:step=13:main=1",
}
#: In the default run: one moment of each kind of operation.
ALWAYS = {"in the backward pass", "in the exchange"}


def cases(moments: dict[str, str]) -> list[object]:
    return [
        pytest.param(faults, id=name, marks=() if name in ALWAYS else pytest.mark.proof)
        for name, faults in moments.items()
    ]


@pytest.mark.parametrize("faults", cases(KILLS | MAIN_KILLS))
def test_a_worker_is_killed(tmp_path: Path, reference: Reference, faults: str) -> None:
    options = ("--snapshot-every", "3")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0.05) as job:
        a = job.start(slots=2)
        victim = job.struck()
        a.sees("lost")
        survivors = set(job.pids()) - {victim}
        a.sees("recovered")
        job.hurry()
        job.holds(a.finish())
        assert len(survivors) == 1
        assert survivors <= set(job.pids(since_step=20)), "the survivor trained to the end"
        job.repeated_only(victim)


@pytest.mark.proof
def test_main_is_killed_while_it_writes_a_checkpoint_and_the_next_main_writes_the_next(
    tmp_path: Path, reference: Reference
) -> None:
    faults = "kill@checkpoint:step=19"
    with Job(tmp_path, reference, faults=faults, pace_s=0.05) as job:
        a = job.start(slots=2)
        victim = job.struck()
        job.hurry()
        # The others had passed that place already and do not go back.
        job.holds(a.finish(), unwritten=("checkpoint-1",))
        job.repeated_only(victim)


@pytest.mark.proof
def test_a_worker_is_killed_after_the_last_epoch(tmp_path: Path, reference: Reference) -> None:
    with Job(tmp_path, reference, faults="kill@end:main=0", pace_s=0) as job:
        a = job.start(slots=2)
        victim = job.struck()
        job.holds(a.finish())
        job.repeated_only(victim)


def test_a_killed_worker_is_followed_by_a_new_one(tmp_path: Path, reference: Reference) -> None:
    with Job(tmp_path, reference) as job:
        a = job.start(slots=2)
        job.trains_on(2)
        survivor, victim = job.pids()
        kill(victim)
        a.sees("joined")
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        assert survivor in job.pids(since_step=39)
        assert len(job.pids()) == 3
        job.repeated_only(victim)


def test_a_worker_that_stands_still_for_ever_is_killed(
    tmp_path: Path, reference: Reference
) -> None:
    faults, options = "stop@forward:step=13:main=0", ("--hang-timeout", "2")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0.05) as job:
        a = job.start(slots=2)
        victim = job.struck()
        assert a.sees("hung")["silent_s"] >= 2
        a.sees("recovered")
        gone([victim])
        logs = "".join(path.read_text() for path in tmp_path.glob("runs/*/logs/a/*/stderr.log"))
        assert f"Process {victim} in the kernel" in logs
        assert "is stopped by a signal" in logs
        job.hurry()
        job.holds(a.finish())
        job.repeated_only(victim)


@pytest.mark.proof
def test_a_worker_that_stands_still_in_the_exchange_is_killed_before_its_deadline(
    tmp_path: Path, reference: Reference
) -> None:
    # The exchange would end by itself, for all, 5 s after this limit.
    faults, options = "stop@exchange:step=13:main=0" + WAITS, ("--hang-timeout", "6")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0.05) as job:
        a = job.start(slots=2)
        victim = job.struck()
        hung = a.sees("hung")
        assert hung["phase"] == "reduction"
        assert 6 <= hung["silent_s"] < 11
        a.sees("recovered")
        gone([victim])
        job.hurry()
        job.holds(a.finish())
        job.repeated_only(victim)


@pytest.mark.proof
def test_a_worker_that_stands_still_for_half_the_limit_goes_on(
    tmp_path: Path, reference: Reference
) -> None:
    faults, options = "stop@forward:step=13:main=0", ("--hang-timeout", "8")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0.05) as job:
        a = job.start(slots=2)
        late = job.struck()
        job.waits(4)
        thaw(late)
        job.hurry()
        job.holds(a.finish())
        assert a.events("hung") == []
        assert late in job.pids(since_step=39)
        job.repeated_only()


@pytest.mark.proof
def test_a_worker_that_wakes_after_twice_the_limit_has_been_replaced(
    tmp_path: Path, reference: Reference
) -> None:
    faults, options = "stop@backward:step=13:main=0", ("--hang-timeout", "2")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0.05) as job:
        a = job.start(slots=2)
        victim = job.struck()
        job.waits(4)
        thaw(victim)
        a.sees("recovered")
        assert not is_alive(victim)
        job.hurry()
        job.holds(a.finish())
        job.repeated_only(victim)


@pytest.mark.proof
def test_main_may_write_a_checkpoint_for_longer_than_the_hang_limit(
    tmp_path: Path, reference: Reference
) -> None:
    # The others wait in the next exchange meanwhile, beyond its deadline of limit + 5 s too.
    faults, options = "sleep=9@checkpoint:step=9", ("--hang-timeout", "2")
    with Job(tmp_path, reference, faults=faults, options=options, pace_s=0) as job:
        a = job.start(slots=2)
        job.holds(a.finish())
        assert a.events("hung") == []
        assert a.events("lost") == []
        assert len(job.pids()) == 2
        job.repeated_only()


@pytest.mark.parametrize("killed", ["workers", pytest.param("zygote", marks=pytest.mark.proof)])
def test_all_workers_are_killed_and_the_job_goes_on_from_its_snapshot(
    tmp_path: Path, reference: Reference, killed: str
) -> None:
    with Job(tmp_path, reference, options=("--snapshot-every", "4")) as job:
        a = job.start(slots=2)
        a.sees("snapshot", times=2)
        workers = job.pids()
        # The workers die with the zygote that forked them.
        for pid in workers if killed == "workers" else [psutil.Process(workers[0]).ppid()]:
            kill(pid)
        restored = a.sees("restored")
        job.hurry()
        end = a.finish()
        job.holds(end, steps_lost=end["steps_lost"])
        assert restored["step"] >= 8
        assert 0 <= end["steps_lost"] <= 4
        if killed == "zygote":  # it takes all at once: nobody was left to go on
            assert a.events("recovered") == []


@pytest.mark.proof
def test_a_second_worker_is_killed_while_the_others_form_the_next_generation(
    tmp_path: Path, reference: Reference
) -> None:
    faults = "kill@backward:step=13:main=0 kill@forming:step=13:main=0"
    with Job(tmp_path, reference, faults=faults, pace_s=0.05) as job:
        a = job.start(slots=3)
        victims = [job.struck(0), job.struck(1)]
        job.hurry()
        job.holds(a.finish())
        assert len(set(victims)) == 2
        assert len(set(job.pids()[:3]) - set(victims)) == 1
        job.repeated_only(*victims)


@pytest.mark.proof
def test_a_joiner_is_killed_while_it_is_taken_in(tmp_path: Path, reference: Reference) -> None:
    with Job(tmp_path, reference, faults="kill@forming:nth=3") as job:
        a = job.start(slots=2)
        job.trains_on(2)
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:3")
        assert asked.code == 0, asked.stderr
        joiner = job.struck()
        job.goes_on()
        job.trains_on(3)
        job.hurry()
        job.holds(a.finish())
        assert joiner not in job.pids()
        assert set(job.pids()[:2]) <= set(job.pids(since_step=39))
        job.repeated_only()


@pytest.mark.proof
@pytest.mark.parametrize("main", [0, 1])
def test_a_member_is_killed_while_it_takes_a_joiner_in(
    tmp_path: Path, reference: Reference, main: int
) -> None:
    with Job(tmp_path, reference, faults=f"kill@forming:step=1:main={main}") as job:
        a = job.start(slots=2)
        job.reaches(2)
        asked = run_easyscale("devices", job.name, "a", "--set", "cpu:3")
        assert asked.code == 0, asked.stderr
        victim = job.struck()
        job.trains_on(3)
        job.hurry()
        job.holds(a.finish())
        assert len(set(job.pids()[:2]) - {victim}) == 1
        job.repeated_only(victim)
