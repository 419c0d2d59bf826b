"""`torchrun --rdzv-backend easyscale`: its own agents meet, grow and notice a loss through etcd."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import Server
from tests.support.processes import Run, started

SCRIPT = Path(__file__).parent / "scripts" / "torchrun_worker.py"
#: Short enough for a test; as many words as a person would give.
CONF = "last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=2"


@contextlib.contextmanager
def torchrun(etcd: Server, stop: Path, *options: str) -> Iterator[Run]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "easyscale",
        "--rdzv-endpoint", str(etcd.endpoint), "--rdzv-id", "a run 1", "--rdzv-conf", CONF,
        "--nproc-per-node", "1", *options, str(SCRIPT), str(stop),
    ]  # fmt: skip
    with started(command, cwd=stop.parent, env={"LOGLEVEL": "INFO", "OMP_NUM_THREADS": "1"}) as run:
        yield run


def test_two_agents_of_torchrun_meet_and_train_to_the_end(etcd: Server, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    with (
        torchrun(etcd, stop, "--nnodes", "2") as first,
        torchrun(etcd, stop, "--nnodes", "2") as second,
    ):
        assert [first.wait(), second.wait()] == [0, 0], first.report() + second.report()
        said = first.stdout + second.stdout
        for rank in (0, 1):
            assert f"rank {rank} of 2 ends, all equal: True" in said
    late = tmp_path / "late"
    with torchrun(etcd, late, "--nnodes", "1:2") as third:
        assert third.wait() == 1, "a late node does not begin a run that has ended"
        assert "the run 'a run 1' is closed" in third.stderr


@pytest.mark.proof
def test_a_late_node_joins_and_a_frozen_one_is_left_behind(etcd: Server, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    with torchrun(etcd, stop, "--nnodes", "1:2", "--max-restarts", "0") as first:
        first.wait_for("rank 0 of 1 trains, restart 0")
        with torchrun(etcd, stop, "--nnodes", "1:2", "--max-restarts", "0") as second:
            second.wait_for("rank 1 of 2 trains")
            first.wait_for("rank 0 of 2 trains, restart 0")
            for process in [*second.descendants()]:
                process.suspend()
            second.signal(signal.SIGSTOP)
            first.wait_for("rank 0 of 2 trains[\\s\\S]*rank 0 of 1 trains, restart 0")
            stop.touch()
            assert first.wait() == 0, first.report()
            second.signal(signal.SIGKILL)
        assert "rank 0 of 1 ends, all equal: True" in first.stdout
