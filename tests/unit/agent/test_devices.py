"""The operator's word becomes slots, or one sentence that says why not."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from easyscale.agent.events import Slot
from easyscale.agent.hardware.cores import usable_cores
from easyscale.agent.hardware.devices import (
    Gpu,
    Machine,
    devices_of_nproc,
    parse_devices,
    read_probe,
    resolve,
    select_visible,
    slot_environment,
)
from easyscale.errors import ExitCode, UsageError

FOUR = tuple(Gpu(index=index, uuid=f"GPU-{index}", name="A100") for index in range(4))


@dataclass(frozen=True, slots=True)
class Node:
    gpu: tuple[Gpu, ...] = ()
    core: int = 8

    def gpus(self) -> tuple[Gpu, ...]:
        return self.gpu

    def cores(self) -> int:
        return self.core


def names(word: str, node: Node, *, threads: int = 1) -> list[str]:
    offer = resolve(parse_devices(word), node, threads_per_worker=threads)
    return [slot.name for slot in offer.slots]


@pytest.mark.parametrize(
    ("word", "node", "slots"),
    [
        ("auto", Node(FOUR), ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]),
        ("auto", Node(core=3), ["cpu:0", "cpu:1", "cpu:2"]),
        ("cuda", Node(FOUR[:1]), ["cuda:0"]),
        ("cuda:3,1", Node(FOUR), ["cuda:3", "cuda:1"]),
        ("cpu", Node(FOUR, core=2), ["cpu:0", "cpu:1"]),
        ("cpu:3", Node(core=2), ["cpu:0", "cpu:1", "cpu:2"]),
    ],
)
def test_a_word_names_its_slots(word: str, node: Node, slots: list[str]) -> None:
    assert names(word, node) == slots


def test_threads_of_a_worker_take_cores_from_the_slots() -> None:
    assert names("auto", Node(core=8), threads=3) == ["cpu:0", "cpu:1"]
    assert names("auto", Node(core=2), threads=4) == ["cpu:0"]


@pytest.mark.parametrize(
    ("word", "node", "said", "hint"),
    [
        ("cpu:0", Node(), "--devices cpu:0: a node takes part with at least 1 slot", "auto"),
        ("cpu:129", Node(core=2), "129 CPU slots on 2 cores; the most is 128", "cpu:2"),
        ("cuda", Node(), "--devices cuda: there is no GPU on this node", "cpu"),
        ("cuda:4", Node(FOUR), "this node has 4 GPUs and no cuda:4", "cuda:0,1,2,3"),
        ("cuda:1,1", Node(FOUR), "cuda:1 is named twice", "cuda"),
        ("cuda:", Node(FOUR), "the forms are auto, cuda, cuda:0,2, cpu or cpu:4", "auto"),
        ("cpu:-1", Node(), "the forms are", "auto"),
        ("cpu:x", Node(), "the forms are", "auto"),
        ("gpu", Node(), "the forms are", "auto"),
        ("", Node(), "the forms are", "auto"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(
    word: str, node: Node, said: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        names(word, node)
    assert said in refused.value.message
    assert refused.value.hint == f"--devices {hint}"
    assert refused.value.exit_code is ExitCode.USAGE


def test_the_sixty_fourth_slot_of_a_core_is_the_last() -> None:
    assert len(names("cpu:128", Node(core=2))) == 128


def test_more_slots_than_cores_are_noted() -> None:
    offer = resolve(parse_devices("cpu:4"), Node(core=2), threads_per_worker=1)
    assert offer.notes == ("4 CPU slots on 2 cores: each runs slower",)
    threads = resolve(parse_devices("cpu:1"), Node(core=2), threads_per_worker=4)
    assert threads.notes == ("1 CPU slot of 4 threads on 2 cores: each runs slower",)
    assert resolve(parse_devices("cpu:2"), Node(core=2), threads_per_worker=1).notes == ()


@pytest.mark.parametrize(
    ("word", "node", "devices"),
    [
        ("2", Node(FOUR), "cuda:0,1"),
        ("2", Node(), "cpu:2"),
        ("gpu", Node(FOUR[:1]), "cuda"),
        ("cpu", Node(FOUR, core=1), "cpu"),
        ("auto", Node(FOUR[:2]), "auto"),
    ],
)
def test_torchruns_words_are_said_as_devices(word: str, node: Node, devices: str) -> None:
    assert devices_of_nproc(word, inventory=node) == devices
    assert names(devices, node)


def test_more_processes_than_gpus_are_refused() -> None:
    with pytest.raises(UsageError, match="--nproc-per-node 8: this node has 4 GPUs") as refused:
        devices_of_nproc("8", inventory=Node(FOUR))
    assert refused.value.hint == "--nproc-per-node 4, or --devices cpu:8"


@pytest.mark.parametrize("word", ["0", "xpu", "-1", "1.5", ""])
def test_other_words_of_nproc_are_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--nproc-per-node"):
        devices_of_nproc(word, inventory=Node())


def test_a_worker_sees_its_own_device_only() -> None:
    offer = resolve(parse_devices("cuda:2"), Node(FOUR), threads_per_worker=1)
    assert slot_environment(offer.slots[0])["CUDA_VISIBLE_DEVICES"] == "GPU-2"
    cpu = resolve(parse_devices("cpu:1"), Node(FOUR), threads_per_worker=1)
    assert slot_environment(cpu.slots[0])["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("visible", "indices"),
    [
        (None, [0, 1, 2, 3]),
        ("2,0", [2, 0]),
        ("GPU-3", [3]),
        ("1,9,2", [1]),
        ("", []),
        ("-1", []),
        ("1,1", [1]),
    ],
)
def test_visible_devices_are_kept_in_their_order(visible: str | None, indices: list[int]) -> None:
    assert [gpu.index for gpu in select_visible(FOUR, visible)] == indices


def test_slots_count_the_visible_devices_as_cuda_does() -> None:
    node = Node(select_visible(FOUR, "2,3"))
    offer = resolve(parse_devices("cuda:0"), node, threads_per_worker=1)
    assert (offer.slots[0].name, offer.slots[0].uuid) == ("cuda:0", "GPU-2")


def test_slices_of_a_device_are_slots_of_their_own() -> None:
    sliced = (
        Gpu(index=0, uuid="GPU-0"),
        Gpu(index=1, slice=0, uuid="MIG-a"),
        Gpu(index=1, slice=1, uuid="MIG-b"),
    )
    assert names("auto", Node(sliced)) == ["cuda:0", "cuda:1/0", "cuda:1/1"]


@pytest.mark.parametrize("answer", [b"", b"{", b'{"error": "no driver"}', b'{"devices": [{}]}'])
def test_an_answer_that_is_none_means_no_device(answer: bytes) -> None:
    assert read_probe(answer) == ()


def test_a_probe_answer_becomes_devices() -> None:
    text = b'{"devices": [{"index": 0, "slice": null, "uuid": "GPU-a", "name": "H200", "more": 1}]}'
    assert read_probe(text) == (Gpu(index=0, uuid="GPU-a", name="H200"),)


def test_this_machine_offers_at_least_one_slot() -> None:
    assert resolve(parse_devices("cpu"), Machine(), threads_per_worker=1).slots


def quota(root: Path, name: str, text: str) -> None:
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def cgroup(root: Path, text: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(text)


@pytest.fixture
def _many_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(16)))


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(
    ("own", "above", "cores"),
    [
        ("max 100000", "max 100000", 16),
        ("250000 100000", "max 100000", 2),
        ("max 100000", "400000 100000", 4),
        ("800000 100000", "300000 100000", 3),
        ("50000 100000", "max 100000", 1),
        ("nonsense", "", 16),
    ],
)
def test_the_tightest_quota_of_all_groups_counts(
    tmp_path: Path, own: str, above: str, cores: int
) -> None:
    cgroup(tmp_path, "0::/pods/mine\n")
    quota(tmp_path, "pods/mine/cpu.max", own)
    quota(tmp_path, "pods/cpu.max", above)
    assert usable_cores(root=tmp_path) == cores


@pytest.mark.usefixtures("_many_cores")
@pytest.mark.parametrize(("text", "cores"), [("300000", 3), ("-1", 16)])
def test_the_older_form_of_quotas_counts_as_well(tmp_path: Path, text: str, cores: int) -> None:
    cgroup(tmp_path, "4:memory:/x\n3:cpu,cpuacct:/docker/abc\n0::/\n")
    quota(tmp_path, "cpu,cpuacct/docker/abc/cpu.cfs_quota_us", text)
    quota(tmp_path, "cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000")
    assert usable_cores(root=tmp_path) == cores


@pytest.mark.usefixtures("_many_cores")
def test_without_control_groups_the_affinity_counts(tmp_path: Path) -> None:
    assert usable_cores(root=tmp_path) == 16


def test_several_workers_share_each_device_as_slots_of_their_own() -> None:
    def slots(word: str) -> list[Slot]:
        choice = parse_devices(word)
        offer = resolve(choice, Node(FOUR, core=4), threads_per_worker=1, workers_per_device=2)
        return list(offer.slots)

    assert [slot.name for slot in slots("cpu:2")] == ["cpu:0/0", "cpu:0/1", "cpu:1/0", "cpu:1/1"]
    assert [slot.name for slot in slots("cuda:3")] == ["cuda:3/0", "cuda:3/1"]
    sees = {slot_environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in slots("cuda:3")}
    assert sees == {"GPU-3"}
