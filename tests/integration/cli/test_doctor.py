"""`easyscale doctor` on this machine, and on two nodes that meet in a real etcd."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.etcd import connect
from tests.support.processes import launched, run_easyscale


@pytest.fixture
def etcd() -> Iterator[EmbeddedEtcd]:
    server = EmbeddedEtcd.start()
    yield server
    server.stop()


def checks_of(text: str) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(text)["checks"]}


def test_one_machine_is_examined_without_an_etcd(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import easyscale\njob = easyscale.init()\n")
    ended = run_easyscale("doctor", "train.py", "--json", cwd=tmp_path)
    checks = checks_of(ended.stdout)
    assert "a launch serves its own" in checks["etcd"]["facts"]
    assert checks["torch"]["level"] == "good"
    assert checks["script"]["facts"] == "train.py calls easyscale.init: elastic mode"
    assert "clocks" not in checks
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_an_etcd_that_is_away_is_one_fault_among_the_other_checks(tmp_path: Path) -> None:
    ended = run_easyscale("doctor", "--etcd", "127.0.0.1:1", cwd=tmp_path)
    assert ended.code == 1
    assert "✗ etcd" in ended.stdout or "x etcd" in ended.stdout
    assert "ports" in ended.stdout


def test_two_nodes_find_each_other_and_say_the_same(tmp_path: Path, etcd: EmbeddedEtcd) -> None:
    words = ("doctor", "--nnodes", "2", "--json", "--etcd", str(etcd.settings))
    with launched(*words, "--node-name", "b", cwd=tmp_path) as other:
        own = run_easyscale(*words, "--node-name", "a", cwd=tmp_path)
        assert other.wait() == own.code
    mine, theirs = checks_of(own.stdout), checks_of(other.stdout)
    assert mine["ports"]["facts"].startswith("a, b 0.")
    assert mine["clocks"]["level"] == "good"
    assert "shared by all" in mine["shared folder"]["facts"]
    assert {name: check["level"] for name, check in mine.items()} == {
        name: check["level"] for name, check in theirs.items()
    }
    store = connect(etcd.settings, timeout_s=5.0)
    assert dict(store.read("/easyscale/", timeout_s=5.0).entries) == {}
    store.close()


def test_a_node_that_does_not_come_is_waited_for_and_no_longer(
    tmp_path: Path, etcd: EmbeddedEtcd
) -> None:
    ended = run_easyscale(
        "doctor", "--nnodes", "2", "--wait", "1", "--etcd", str(etcd.settings), cwd=tmp_path
    )
    assert ended.code == 4
    assert "1 of 2 nodes came to the checkup" in ended.stderr
