"""Which cores a worker is bound to, on a machine of files."""

from pathlib import Path

import pytest

from easyscale.agent.plain.numa import Binding, Machine, cores_near, parse_cores
from easyscale.errors import UsageError

#: Eight physical cores with two threads each; a NUMA node and a socket for every four.
THREADS = 16
GPUS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    def put(file: str, text: str) -> None:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    for core in range(THREADS):
        physical = core % 8
        folder = f"sys/devices/system/cpu/cpu{core}"
        put(f"{folder}/topology/physical_package_id", str(physical // 4))
        put(f"{folder}/topology/thread_siblings_list", f"{physical},{physical + 8}")
        pair = physical // 2 * 2
        put(f"{folder}/cache/index0/type", "Data")
        put(f"{folder}/cache/index0/level", "1")
        put(f"{folder}/cache/index0/shared_cpu_list", f"{physical},{physical + 8}")
        put(f"{folder}/cache/index1/type", "Instruction")
        put(f"{folder}/cache/index1/level", "9")
        put(f"{folder}/cache/index1/shared_cpu_list", "0-15")
        put(f"{folder}/cache/index3/type", "Unified")
        put(f"{folder}/cache/index3/level", "3")
        put(f"{folder}/cache/index3/shared_cpu_list", f"{pair}-{pair + 1},{pair + 8}-{pair + 9}")
    put("sys/devices/system/node/node0/cpulist", "0-3,8-11")
    put("sys/devices/system/node/node1/cpulist", "4-7,12-15")
    for uuid, address, node in zip(GPUS, ("00:3b", "00:5e", "01:DC"), (0, 0, 1), strict=True):
        put(f"proc/driver/nvidia/gpus/00{address}:00.0/information", f"GPU UUID: \t {uuid}")
        put(f"sys/bus/pci/devices/00{address.lower()}:00.0/numa_node", str(node))
    return Machine(tmp_path, frozenset(range(THREADS)))


def cores(machine: Machine, binding: Binding) -> list[tuple[int, ...]]:
    return list(cores_near(GPUS, binding, workers=3, machine=machine))


def test_a_worker_gets_the_cores_of_its_gpus_node_or_socket(machine: Machine) -> None:
    near, far = (0, 1, 2, 3, 8, 9, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)
    assert cores(machine, Binding.NODE) == [near, near, far]
    assert cores(machine, Binding.SOCKET) == [near, near, far]


def test_exclusive_shares_are_whole_physical_cores_and_nobody_elses(machine: Machine) -> None:
    shares = cores(machine, Binding.EXCLUSIVE)
    assert shares == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 6, 7, 12, 13, 14, 15)]


def test_core_complexes_share_the_outermost_cache_of_data(machine: Machine) -> None:
    assert cores(machine, Binding.CORE_COMPLEX) == [(0, 1, 8, 9), (2, 3, 10, 11), (4, 5, 12, 13)]


def test_only_cores_that_this_process_may_use_are_given(machine: Machine) -> None:
    few = Machine(machine.root, frozenset({1, 3, 4, 9}))
    assert cores(few, Binding.NODE) == [(1, 3, 9), (1, 3, 9), (4,)]
    assert cores(few, Binding.EXCLUSIVE) == [(1, 9), (3,), (4,)]
    one = Machine(machine.root, frozenset({1, 4}))
    with pytest.raises(UsageError, match="NUMA node 0 has 1 cores for 2 GPUs"):
        cores(one, Binding.EXCLUSIVE)


def test_a_worker_without_a_gpu_has_nothing_to_be_near_to(machine: Machine) -> None:
    with pytest.raises(UsageError, match="4 workers want a GPU each, this node has 3"):
        cores_near(GPUS, Binding.NODE, workers=4, machine=machine)
    with pytest.raises(UsageError, match="does not tell where GPU-x"):
        cores_near(("GPU-x",), Binding.NODE, workers=1, machine=machine)


def test_lists_of_cores_are_read_as_the_kernel_writes_them() -> None:
    assert parse_cores("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cores("") == frozenset()
