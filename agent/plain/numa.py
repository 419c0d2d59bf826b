"""Which cores lie near which GPU: what `--numa-binding` gives to each worker of a node.

Read from the kernel's own files; `root` is where they are looked for.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from easyscale.errors import UsageError

Cores = frozenset[int]


class Binding(StrEnum):
    """How much of its neighbourhood a worker gets."""

    #: All cores of the GPU's NUMA node.
    NODE = "node"
    #: All cores of that node's socket.
    SOCKET = "socket"
    #: A share of the node's cores that no other worker has.
    EXCLUSIVE = "exclusive"
    #: Cores of that node that share a cache, another group for each worker as far as they reach.
    CORE_COMPLEX = "core-complex"


@dataclass(frozen=True, slots=True)
class Machine:
    """The cores and GPUs of this node, as the kernel shows them."""

    root: Path
    #: The cores this process may use.
    allowed: Cores

    @classmethod
    def here(cls) -> "Machine":
        return cls(Path("/"), frozenset(os.sched_getaffinity(0)))

    def node_of(self, uuid: str) -> int:
        """The NUMA node of a GPU; a machine with one node may not say any."""
        address = self._address_of(uuid).lower()
        text = self._read(f"sys/bus/pci/devices/{address}/numa_node")
        return max(int(text), 0)

    def cores_of_node(self, node: int) -> Cores:
        return parse_cores(self._read(f"sys/devices/system/node/node{node}/cpulist")) & self.allowed

    def socket_of(self, core: int) -> int:
        return int(self._read(f"sys/devices/system/cpu/cpu{core}/topology/physical_package_id"))

    def siblings_of(self, core: int) -> Cores:
        """The hardware threads of the same physical core."""
        file = f"sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list"
        return parse_cores(self._read(file))

    def cache_of(self, core: int) -> Cores:
        """The cores that share this one's outermost cache."""
        folder = f"sys/devices/system/cpu/cpu{core}/cache"
        found = []
        for index in sorted((self.root / folder).glob("index[0-9]*")):
            if (index / "type").read_text().strip() in {"Unified", "Data"}:
                level = int((index / "level").read_text())
                found.append((level, parse_cores((index / "shared_cpu_list").read_text())))
        return max(found, key=lambda pair: pair[0], default=(0, frozenset({core})))[1]

    def _address_of(self, uuid: str) -> str:
        for folder in sorted((self.root / "proc/driver/nvidia/gpus").glob("*")):
            if uuid in (folder / "information").read_text():
                return folder.name
        raise OSError(f"the driver does not tell where {uuid} is plugged in")

    def _read(self, file: str) -> str:
        return (self.root / file).read_text().strip()


def cores_near(
    gpus: Sequence[str], binding: Binding, *, workers: int, machine: Machine
) -> tuple[tuple[int, ...], ...]:
    """The cores of each local rank, whose GPU is that of the same number; `gpus` are their UUIDs.

    Raises UsageError where there is nothing to be near to.
    """
    if len(gpus) < workers:
        raise UsageError(
            f"--numa-binding {binding}: {workers} workers want a GPU each, this node has"
            f" {len(gpus)}",
            hint="leave --numa-binding out",
        )
    try:
        nodes = [machine.node_of(uuid) for uuid in gpus]
        choose = _CHOICES[binding]
        return tuple(tuple(sorted(choose(machine, nodes, number))) for number in range(workers))
    except (OSError, ValueError) as error:
        raise UsageError(f"--numa-binding {binding}: {error}", hint="leave it out") from error


def parse_cores(text: str) -> Cores:
    """Read `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def _node(machine: Machine, nodes: Sequence[int], number: int) -> Cores:
    return machine.cores_of_node(nodes[number])


def _socket(machine: Machine, nodes: Sequence[int], number: int) -> Cores:
    socket = machine.socket_of(min(_node(machine, nodes, number)))
    return frozenset(core for core in machine.allowed if machine.socket_of(core) == socket)


def _exclusive(machine: Machine, nodes: Sequence[int], number: int) -> Cores:
    groups = _groups(_node(machine, nodes, number), machine.siblings_of)
    physical = [groups[first] for first in sorted(groups)]
    place, sharers = _place(nodes, number)
    each, more = divmod(len(physical), sharers)
    if each == 0:
        raise ValueError(f"NUMA node {nodes[number]} has {len(physical)} cores for {sharers} GPUs")
    begin = place * each + min(place, more)
    return frozenset().union(*physical[begin : begin + each + (place < more)])


def _core_complex(machine: Machine, nodes: Sequence[int], number: int) -> Cores:
    groups = _groups(_node(machine, nodes, number), machine.cache_of)
    largest_first = sorted(groups, key=lambda first: (-len(groups[first]), first))
    place, _ = _place(nodes, number)
    return groups[largest_first[place % len(largest_first)]]


_CHOICES: dict[Binding, Callable[[Machine, Sequence[int], int], Cores]] = {
    Binding.NODE: _node,
    Binding.SOCKET: _socket,
    Binding.EXCLUSIVE: _exclusive,
    Binding.CORE_COMPLEX: _core_complex,
}


def _groups(cores: Cores, together: Callable[[int], Cores]) -> dict[int, Cores]:
    """Cores by what they share, under the least number of those who share it."""
    groups: dict[int, Cores] = {}
    for core in sorted(cores):
        first = min(together(core))
        groups[first] = groups.get(first, frozenset()) | {core}
    return groups


def _place(nodes: Sequence[int], number: int) -> tuple[int, int]:
    """Which of the GPUs on its NUMA node this one is, and how many they are."""
    beside = [other for other, node in enumerate(nodes) if node == nodes[number]]
    return beside.index(number), len(beside)
