"""How much memory a worker could take, by the host's word and that of its control groups."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from easyscale.runtime.room import free_bytes, partial_bytes, taken_bytes

CPU = torch.device("cpu")
MB = 1_000_000


class Host:
    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, name: str, text: str) -> "Host":
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return self

    def free(self) -> int | None:
        return free_bytes(CPU, root=self.root)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path).write(
        "proc/meminfo", "MemTotal: 64000000 kB\nMemAvailable:   1000000 kB\nBuffers: 7 kB\n"
    )


def group(host: Host, path: str, *, limit: str, used: int, stat: str = "") -> None:
    folder = f"sys/fs/cgroup/{path}"
    host.write(f"{folder}/memory.max", limit).write(f"{folder}/memory.current", str(used))
    host.write(f"{folder}/memory.stat", stat)


def test_without_a_limit_it_is_what_the_host_has_left(host: Host) -> None:
    assert host.free() == 1_000_000 * 1024
    host.write("proc/self/cgroup", "0::/pods/mine\n")
    group(host, "pods/mine", limit="max", used=5 * MB)
    assert host.free() == 1_000_000 * 1024


def test_the_limit_of_a_container_counts_where_it_is_tighter(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pods/mine\n")
    group(host, "pods/mine", limit=str(100 * MB), used=70 * MB)
    assert host.free() == 30 * MB


def test_any_group_above_may_be_the_tightest(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/pods/mine\n")
    group(host, "pods/mine", limit=str(100 * MB), used=70 * MB)
    group(host, "pods", limit=str(80 * MB), used=75 * MB)
    assert host.free() == 5 * MB


def test_the_cache_of_files_gives_way(host: Host) -> None:
    stat = f"anon 9\ninactive_file {10 * MB}\nactive_file {4 * MB}\nslab_reclaimable {MB}\n"
    host.write("proc/self/cgroup", "0::/pods/mine\n")
    group(host, "pods/mine", limit=str(100 * MB), used=90 * MB, stat=stat)
    assert host.free() == 25 * MB


def test_a_group_beyond_its_limit_has_nothing_free(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/mine\n")
    group(host, "mine", limit=str(10 * MB), used=11 * MB)
    assert host.free() == 0


@pytest.mark.parametrize(("limit", "free"), [(50 * MB, 23 * MB), (9223372036854771712, None)])
def test_the_older_form_of_limits_counts_as_well(host: Host, limit: int, free: int | None) -> None:
    folder = "sys/fs/cgroup/memory/docker/abc"
    host.write("proc/self/cgroup", "4:memory:/docker/abc\n0::/\n")
    host.write(f"{folder}/memory.limit_in_bytes", str(limit))
    host.write(f"{folder}/memory.usage_in_bytes", str(30 * MB))
    host.write(f"{folder}/memory.stat", f"inactive_file 1\ntotal_inactive_file {3 * MB}\n")
    assert host.free() == (1_000_000 * 1024 if free is None else free)


def test_no_limit_in_the_older_form_is_no_number(tmp_path: Path) -> None:
    host = Host(tmp_path).write("proc/self/cgroup", "4:memory:/x\n")
    host.write("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712")
    host.write("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "1")
    assert host.free() is None


def test_where_nothing_says_so_nothing_is_known(tmp_path: Path) -> None:
    assert free_bytes(CPU, root=tmp_path) is None
    assert taken_bytes(CPU, root=tmp_path) is None


def test_what_a_process_has_taken_is_what_is_its_own(host: Host) -> None:
    host.write("proc/self/status", "VmRSS:\t 9000 kB\nRssAnon:\t 4000 kB\nRssFile:\t 5000 kB\n")
    assert taken_bytes(CPU, root=host.root) == 4000 * 1024


def test_of_a_gpu_the_reserve_of_its_allocator_is_as_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 20)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 45)
    assert free_bytes(torch.device("cuda", 0)) == 130
    assert taken_bytes(torch.device("cuda", 0)) == 45


def training(*parameters: torch.Tensor, offload: bool = False) -> Any:  # noqa: ANN401
    things = SimpleNamespace(parameters=dict(enumerate(parameters)))
    return SimpleNamespace(settings=SimpleNamespace(offload_partials=offload), things=things)


def test_a_partial_sum_is_as_large_as_all_that_is_trained() -> None:
    trained = torch.zeros(10, 3, requires_grad=True)
    half = torch.zeros(7, dtype=torch.bfloat16, requires_grad=True)
    assert partial_bytes(training(trained, half, torch.zeros(99))) == 10 * 3 * 4 + 7 * 2


def test_partial_sums_that_wait_on_the_host_take_nothing_of_the_device() -> None:
    assert partial_bytes(training(torch.zeros(9, requires_grad=True), offload=True)) == 0
