"""Plain and packed jobs on several nodes, which meet at an etcd and lose each other again."""

import contextlib
import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.etcd import Server, free_port
from tests.support.processes import Run, launched

SCRIPT = str(Path(__file__).parent / "scripts" / "plain_worker.py")
#: What a worker says first: rank, world size, node number, restarts.
SAID = re.compile(r"rank (\d+) of (\d+) group (\d+) try (\d+)")


@contextlib.contextmanager
def node(folder: Path, name: str, *options: str) -> Iterator[Run]:
    named = ("--node-name", name) if name else ()
    words = ("launch", *named, "--rdzv-id", "job", *options, SCRIPT, "until")
    with launched(*words, cwd=folder) as run:
        yield run


def at(server: Server, nodes: str) -> tuple[str, ...]:
    return ("--nnodes", nodes, "--rdzv-endpoint", str(server.endpoint))


def said(run: Run) -> list[tuple[int, ...]]:
    return [tuple(map(int, each)) for each in SAID.findall(run.stdout)]


def wait_said(run: Run, *facts: int, times: int = 1) -> None:
    rank, world, group, restarts = facts
    line = f"rank {rank} of {world} group {group} try {restarts}"
    run.wait_for(rf"(?s)({line}.*?){{{times}}}", within_s=60)


def test_a_torchrun_line_for_two_nodes_works_as_it_stands(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    line = ("--nnodes", "2", "--nproc_per_node=1", "--rdzv_backend=c10d", "--rdzv_endpoint", where)
    with node(tmp_path, "", *line) as a, node(tmp_path, "", *line) as b:
        for run in (a, b):
            run.wait_for(r"rank \d of 2 group \d try 0", within_s=60)
        (tmp_path / "enough").touch()
        assert (a.wait(30), b.wait(30)) == (0, 0), a.report() + b.report()
        assert sorted(said(a) + said(b)) == [(0, 2, 0, 0), (1, 2, 1, 0)]


def test_nodes_come_and_go_without_a_charge_and_keep_their_ranks(
    tmp_path: Path, etcd: Server
) -> None:
    line = at(etcd, "1:3")
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(node(tmp_path, "a", *line))
        wait_said(a, 0, 1, 0, 0)
        b = stack.enter_context(node(tmp_path, "b", *line))
        wait_said(b, 1, 2, 1, 0)
        wait_said(a, 0, 2, 0, 0)
        c = stack.enter_context(node(tmp_path, "c", *line))
        wait_said(c, 2, 3, 2, 0)
        # The leader, where rank 0 serves the store: the last one takes its number, b keeps its own.
        a.process.send_signal(signal.SIGKILL)
        wait_said(c, 0, 2, 0, 0)
        wait_said(b, 1, 2, 1, 0, times=2)
        c.signal(signal.SIGTERM)
        assert c.wait(20) == 0, c.report()
        wait_said(b, 0, 1, 0, 0)
        (tmp_path / "enough").touch()
        assert b.wait(30) == 0, b.report()
        assert {told[3] for run in (a, b, c) for told in said(run)} == {0}
        ports = re.findall(r"port (\d+)", b.stdout)
        assert len(set(ports)) == len(ports) >= 4


def test_a_failure_is_charged_once_for_all_nodes_and_told_on_all(
    tmp_path: Path, etcd: Server
) -> None:
    line = (*at(etcd, "2"), "--max-restarts", "1")
    with node(tmp_path, "a", *line) as a, node(tmp_path, "b", *line) as b:
        wait_said(a, 0, 2, 0, 0)
        wait_said(b, 1, 2, 1, 0)
        (tmp_path / "fail-1-0").touch()
        wait_said(a, 0, 2, 0, 1)
        wait_said(b, 1, 2, 1, 1)
        (tmp_path / "fail-1-1").touch()
        assert (a.wait(30), b.wait(30)) == (1, 1), a.report() + b.report()
        for run in (a, b):
            box = run.stderr[run.stderr.index("first cause") :]
            assert "ValueError: told to fail, try 1" in box
            assert "rank 1 · node b" in box


def test_etcd_may_be_away_while_workers_work(tmp_path: Path, etcd: Server) -> None:
    line = at(etcd, "2")
    with node(tmp_path, "a", *line) as a, node(tmp_path, "b", *line) as b:
        wait_said(a, 0, 2, 0, 0)
        wait_said(b, 1, 2, 1, 0)
        etcd.kill()
        a.wait_for("event=store_away", within_s=30)
        etcd.start()
        a.wait_for("event=store_back", within_s=30)
        (tmp_path / "enough").touch()
        assert (a.wait(40), b.wait(40)) == (0, 0), a.report() + b.report()
        assert len(said(a)) == len(said(b)) == 1


def test_too_few_nodes_end_with_4_and_say_who_came(tmp_path: Path, etcd: Server) -> None:
    line = (*at(etcd, "2"), "--rdzv-conf", "join_timeout=2")
    with node(tmp_path, "a", *line) as a:
        assert a.wait(40) == 4, a.report()
        assert "1 of 2 nodes came within 2 s: have a" in a.stderr


def test_another_line_is_refused_and_a_late_node_finds_a_finished_job(
    tmp_path: Path, etcd: Server
) -> None:
    with node(tmp_path, "a", *at(etcd, "1:2")) as a:
        wait_said(a, 0, 1, 0, 0)
        with node(tmp_path, "b", *at(etcd, "1:3")) as other:
            assert other.wait(40) == 2, other.report()
            assert "runs with --nnodes 1:2 --max-restarts 0" in other.stderr
        (tmp_path / "enough").touch()
        assert a.wait(40) == 0, a.report()
        assert said(a) == [(0, 1, 0, 0)]
    with node(tmp_path, "b", *at(etcd, "1:2")) as late:
        assert late.wait(40) == 0, late.report()
        assert said(late) == []


def test_a_packed_job_keeps_its_ranks_over_slots_that_change(tmp_path: Path) -> None:
    slots = tmp_path / "slots"
    slots.write_text("cpu:2\n")
    words = ("--packed", "--logical-workers", "3", "--devices-file", str(slots), "--json")
    with node(tmp_path, "a", *words) as run:
        run.wait_for(r"(?s)(of 3 group 0 try 0.*){3}", within_s=40)
        slots.write_text("cpu:1\n")
        run.wait_for(r"(?s)(of 3 group 0 try 0.*){6}", within_s=40)
        (tmp_path / "enough").touch()
        assert run.wait(30) == 0, run.report()
        lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
        assert [line["workers"] for line in lines if line["event"] == "started"] == [3, 3]


@pytest.mark.parametrize("ranks", [(0, 1)])
def test_static_nodes_need_no_etcd(tmp_path: Path, ranks: tuple[int, int]) -> None:
    (tmp_path / "enough").touch()
    port = free_port()
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(
                node(
                    tmp_path, "", "--nnodes", "2", "--node-rank", str(rank),
                    "--master-addr", "127.0.0.1", "--master-port", str(port),
                )
            )
            for rank in ranks
        ]  # fmt: skip
        assert [run.wait(30) for run in runs] == [0, 0]
        assert [said(run) for run in runs] == [[(0, 2, 0, 0)], [(1, 2, 1, 0)]]
        assert all(f"port {port}" in run.stdout for run in runs)
