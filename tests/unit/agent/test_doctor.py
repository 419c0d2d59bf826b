"""A checkup tells what is good, what is worth a look and what stops a job, with a cure for each."""

from pathlib import Path

import msgspec
import pytest

from easyscale.agent.checkup.doctor import ScriptFacts, StoreFacts, judge
from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale.agent.checkup.node_facts import (
    FolderFacts,
    NodeFacts,
    Reached,
    TorchFacts,
    driver_version,
    folder_facts,
    marked,
    marks_in,
    ports_fault,
    read_torch_version,
    torch_facts,
)
from tests.support.checkup import met, node

GOOD, WARNING, FAULT = Level.GOOD, Level.WARNING, Level.FAULT
STORE = StoreFacts(endpoints=3, version="3.5.21", put_s=0.0012, slowest_put_s=0.004)


def check(name: str, *nodes: NodeFacts, store: StoreFacts = STORE) -> Check:
    [found] = [each for each in judge(store, nodes or (node(),)) if each.name == name]
    return found


def test_sound_nodes_are_good_in_every_check() -> None:
    script = ScriptFacts(name="train.py", calls_init=True)
    checks = judge(STORE, met(node("a"), node("b"), node("c")), script)
    assert {each.level for each in checks} == {GOOD}
    assert [each.name for each in checks] == [
        "etcd", "clocks", "ports", "devices", "torch", "cores", "file limit", "/dev/shm",
        "shared folder", "script",
    ]  # fmt: skip
    assert all(each.cure == "" for each in checks)


@pytest.mark.parametrize(
    ("name", "changes", "level", "fact", "cure"),
    (
        ("devices", {"gpus": ()}, FAULT, "64 CPU slots", "shows no GPU"),
        ("torch", {"torch": TorchFacts()}, FAULT, "none", "pip install 'torch>=2.11'"),
        ("torch", {"torch": TorchFacts(version="2.9.1")}, FAULT, "2.9.1", "torch>=2.11"),
        ("torch", {"torch": TorchFacts(version="2.13.0+cpu")}, FAULT, "+cpu", "knows no CUDA"),
        ("file limit", {"open_files": 1024}, WARNING, "1,024 open files", "ulimit -n 65536"),
        (
            "file limit",
            {"open_files": 1024, "most_open_files": 1024},
            WARNING,
            "1,024",
            "limits.conf",
        ),
        ("/dev/shm", {"shm_bytes": 64_000_000}, WARNING, "64 MB", "--shm-size 2g"),
        ("ports", {"ports_fault": "permission denied"}, FAULT, "permission denied", "let them"),
        (
            "shared folder",
            {"folder": FolderFacts(path="runs", fault="read-only file system")},
            FAULT,
            "runs cannot be written (read-only file system)",
            "mount it rw",
        ),
        (
            "shared folder",
            {"folder": FolderFacts(path="runs", free_bytes=100_000_000)},
            WARNING,
            "100 MB free",
            "--snapshot-keep 1",
        ),
    ),
)
def test_what_is_wrong_with_a_node_is_said_with_its_cure(
    name: str, changes: dict[str, object], level: Level, fact: str, cure: str
) -> None:
    found = check(name, node(**changes))  # type: ignore[arg-type]
    assert found.level is level
    assert fact in found.facts
    assert cure in found.cure


def test_a_container_is_told_by_its_cores() -> None:
    assert check("cores", node(cores=2)).facts == "2 of 64, by quota or affinity"


def test_an_unlimited_number_of_open_files_is_not_few() -> None:
    found = check("file limit", node(open_files=-1, most_open_files=-1))
    assert (found.level, found.facts) == (GOOD, "unlimited open files")


@pytest.mark.parametrize(
    ("store", "level", "fact", "cure"),
    (
        (StoreFacts(version="bundled 3.5.1"), GOOD, "serves its own, bundled 3.5.1", ""),
        (
            StoreFacts(endpoints=1, version="3.5.1", warning="can lose entries"),
            WARNING,
            "3.5.1 at 1 endpoint",
            "can lose entries",
        ),
        (
            StoreFacts(endpoints=1, version="3.5.9", put_s=0.2, slowest_put_s=0.5),
            WARNING,
            "put 200 ms p50, 500 ms at worst",
            "a faster disk",
        ),
        (StoreFacts(endpoints=1, fault="no answer", hint="start etcd"), FAULT, "no", "start etcd"),
    ),
)
def test_etcd_is_judged_by_its_answer_its_version_and_its_speed(
    store: StoreFacts, level: Level, fact: str, cure: str
) -> None:
    found = check("etcd", store=store)
    assert (found.level, found.cure == "") == (level, cure == "")
    assert fact in found.facts
    assert cure in found.cure


def test_clocks_that_disagree_are_worth_a_look_and_no_fault() -> None:
    found = check("clocks", *met(node("a"), node("b"), clock_s=2.5))
    assert (found.level, found.facts) == (WARNING, "b is 2.5 s ahead of a")
    assert "decisions do not use them" in found.cure


def test_a_node_that_is_not_reached_is_a_fault_with_both_names() -> None:
    barred = node("a", reached=(Reached(node="b", fault="10.0.0.2:4001: timed out"),))
    found = check("ports", *met(barred, node("b")))
    assert found.level is FAULT
    assert found.facts == "a does not reach b at 10.0.0.2:4001: timed out"
    assert found.nodes == ("a",)


def test_a_far_pair_slows_every_step() -> None:
    assert check("ports", *met(node("a"), node("b"), trip_s=0.05)).level is WARNING


def test_the_odd_torch_of_some_nodes_is_named_with_what_to_install() -> None:
    odd = node("c", torch=TorchFacts(version="2.12.1+cu128", cuda="12.8"))
    found = check("torch", *met(node("a"), node("b"), odd))
    assert found.facts == "a, b 2.13.0+cu128; c 2.12.1+cu128"
    assert found.nodes == ("c",)
    assert found.cure.endswith("pip install torch==2.13.0 on c")


def test_nodes_without_gpus_beside_others_are_worth_a_look() -> None:
    found = check("devices", *met(node("a"), node("b", gpus=(), driver="")))
    assert (found.level, found.nodes) == (WARNING, ("b",))


def test_versions_that_do_not_read_each_other_are_a_fault_of_the_older() -> None:
    assert [c for c in judge(STORE, met(node("a"), node("b"))) if c.name == "easyscale"] == []
    newer = check("easyscale", *met(node("a"), node("b", release="0.2.0")))
    assert newer.level is WARNING
    found = check("easyscale", *met(node("a"), node("b", release="0.2.0", format=2)))
    assert (found.level, found.nodes) == (FAULT, ("a",))
    assert found.cure.endswith("on a")


def test_a_folder_that_is_not_shared_loses_snapshots_with_its_node() -> None:
    found = check("shared folder", *met(node("a", sees=("a",)), node("b")))
    assert (found.level, found.nodes) == (WARNING, ("a",))


@pytest.mark.parametrize(
    ("script", "level"),
    (
        (ScriptFacts(name="t.py", fault="no such file or directory"), FAULT),
        (ScriptFacts(name="t.py"), WARNING),
        (ScriptFacts(name="t.py", calls_init=True, by_process=("DistributedSampler",)), WARNING),
        (ScriptFacts(name="t.py", calls_init=True), GOOD),
    ),
)
def test_a_script_is_judged_by_what_it_says(script: ScriptFacts, level: Level) -> None:
    assert judge(STORE, (node(),), script)[-1].level is level


# --- what a node tells of itself ----------------------------------------------------------------


def test_torch_is_described_without_being_imported() -> None:
    text = (
        "__all__ = ['x']\n__version__ = '2.13.0+cu128'\ncuda: Optional[str] = '12.8'\nhip = None\n"
    )
    assert read_torch_version(text) == TorchFacts(version="2.13.0+cu128", cuda="12.8")
    assert read_torch_version("cuda: Optional[str] = None\n") == TorchFacts()
    assert torch_facts().version.startswith("2.")


def test_the_driver_is_the_kernels(tmp_path: Path) -> None:
    path = tmp_path / "proc" / "driver" / "nvidia"
    path.mkdir(parents=True)
    (path / "version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed\nGCC version: 12\n"
    )
    assert driver_version(tmp_path) == "570.124.06"
    assert driver_version(tmp_path / "none") == ""


def test_a_probe_of_a_folder_leaves_it_as_it_was(tmp_path: Path) -> None:
    found = folder_facts(tmp_path / "runs" / "job")
    assert (found.fault, (found.free_bytes or 0) > 0) == ("", True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert folder_facts(tmp_path / "file" / "runs").fault != ""


def test_marks_are_seen_while_they_are_there(tmp_path: Path) -> None:
    with marked(tmp_path / "runs", "a"), marked(tmp_path / "runs", "b"):
        assert marks_in(tmp_path / "runs") == ("a", "b")
    assert list(tmp_path.iterdir()) == []


def test_a_node_fits_into_the_store_and_back() -> None:
    [one, _] = met(node("a"), node("b"))
    assert msgspec.json.decode(msgspec.json.encode(one), type=NodeFacts) == one
    assert ports_fault() == ""
