"""SIGTERM is a notice: who takes over stands ready, and what feeds a worker lives as long as it."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from easyscale.rendezvous.keys import JobKeys
from tests.support.etcd import Server
from tests.support.nodes import Job, Node, Reference, freeze, gone, is_alive, no_doors


@pytest.mark.proof
def test_a_node_beyond_the_most_takes_over_from_the_only_one_at_work(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd, options=("--nodes", "1:1")) as job:
        a = job.start("a")
        job.reaches(0)
        b = job.start("b")
        job.stands_by("b")
        job.goes_on()
        assert len(job.pids()) == 1, "the job takes one node"
        a.run.signal(signal.SIGTERM)
        assert a.finish()["event"] in ("left", "drained")
        job.hurry()
        job.holds(b.finish())
        assert len(job.pids()) == 2
        job.repeated_only()


def standbys(node: Node) -> list[int]:
    """The workers of a node, all of which wait for ranks; a worker is a child of the zygote."""
    zygotes = [
        process
        for process in map(psutil.Process, node.descendants())
        if any("runtime.zygote" in word for word in process.cmdline())
        and process.ppid() == node.run.process.pid
    ]
    return sorted(child.pid for zygote in zygotes for child in zygote.children())


@pytest.mark.proof
def test_a_stopped_standby_keeps_nobody_from_taking_over(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    with Job(tmp_path, reference, etcd=etcd, options=("--nodes", "1:1")) as job:
        a = job.start("a")
        job.reaches(0)
        b = job.start("b", slots=2)
        job.stands_by("b")
        key = JobKeys.of(job.name).node("b")
        job.until(lambda: job.stored(key).count('"standby"') == 2, "both stand by")
        stopped = standbys(b)[-1]
        freeze(stopped)
        a.run.signal(signal.SIGTERM)
        assert a.finish(within_s=28.0)["event"] in ("left", "drained")
        assert a.events("draining"), job.report()
        # Its agent kills it within the limit of a hang.
        gone([stopped], within_s=20.0)
        assert b.sees("hung")["slot"]
        job.hurry()
        job.holds(b.finish())
        assert stopped not in job.pids()
        job.repeated_only()


def feeders(worker: int) -> set[int]:
    """The loader workers of a worker."""
    return {child.pid for child in psutil.Process(worker).children()}


def watched(node: Node, pids: set[int]) -> list[tuple[float, set[int]]]:
    """Until the node has ended: who of these had gone, and when that was seen."""
    seen = []
    while node.run.process.poll() is None:
        seen.append((time.time(), {pid for pid in pids if not is_alive(pid)}))
        time.sleep(0.02)
    return seen


def test_loader_workers_are_left_alone_until_their_worker_has_drained(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    arguments = ("--loader-workers", "2")
    with Job(tmp_path, reference, etcd=etcd, arguments=arguments) as job:
        a = job.start("a")
        job.reaches(0)
        b = job.start("b")
        job.trains_on(2)
        worker = next(pid for pid in job.pids() if pid in b.descendants())
        # Far from an epoch's end, at which others take their places.
        job.until(
            lambda: job.step() % 10 in (1, 2, 3) and len(feeders(worker)) == 2, "it is fed by two"
        )
        fed_by = feeders(worker)
        below = sorted(b.descendants())
        b.run.signal(signal.SIGTERM)
        seen = watched(b, fed_by)
        assert b.finish()["event"] in ("left", "drained")
        last = max(it.step for it in job.trail() if it.pid == worker)
        drained_s = (job.out / f"step-{last}").stat().st_mtime
        before = [lost for at, lost in seen if at < drained_s]
        assert before, job.report()
        assert set().union(*before) == set(), job.report()
        logs = [p.read_text() for p in tmp_path.glob("runs/*/logs/b/*/std*.log")]
        assert logs, job.report()
        assert [text for text in logs if text.strip()] == [], job.report()
        gone(below)
        job.hurry()
        job.holds(a.finish())
        assert len(job.pids()) == 2
        job.repeated_only()
        no_doors()
