"""What an unprivileged process can know of the kernel's out-of-memory killer."""

from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.agent.hardware.kernel_kills import KernelKills

LOG = b"4,812,99000000,-;Memory cgroup out of memory: Killed process %d (python) total-vm:9kB\n"
COUNTED = "out of memory, by the kernel's count of kills in {}"


class Kernel:
    """Files as the kernel writes them, below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/self/cgroup", "0::/pods/mine\n")

    def write(self, name: str, text: str | bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def has_killed(self, count: int) -> None:
        self.write("sys/fs/cgroup/pods/mine/memory.events", f"oom 9\noom_kill {count}\n")

    def has_killed_of_old(self, count: int) -> None:
        self.write("proc/self/cgroup", "4:memory:/x\n0::/\n")
        self.write("sys/fs/cgroup/memory/x/memory.oom_control", f"under_oom 0\noom_kill {count}\n")

    def has_killed_on_host(self, count: int) -> None:
        self.write("proc/vmstat", f"pgfault 7\noom_kill {count}\n")


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


@pytest.mark.parametrize(
    ("told", "where"),
    [
        (Kernel.has_killed, "its control group"),
        (Kernel.has_killed_of_old, "its control group"),
        (Kernel.has_killed_on_host, "the host"),
    ],
)
def test_a_kill_that_the_kernel_counted_is_the_cause(
    kernel: Kernel, told: Callable[[Kernel, int], None], where: str
) -> None:
    told(kernel, 3)
    kills = KernelKills(root=kernel.root)
    assert kills.explain(71) == ""  # somebody sent it by hand
    told(kernel, 4)
    assert kills.explain(72) == COUNTED.format(where)


def test_each_kill_explains_one_end(kernel: Kernel) -> None:
    kernel.has_killed(0)
    kills = KernelKills(root=kernel.root)
    kernel.has_killed(2)
    assert [bool(kills.explain(pid)) for pid in (71, 72, 73)] == [True, True, False]


def test_kills_before_a_worker_began_are_not_its_own(kernel: Kernel) -> None:
    kernel.has_killed(0)
    kills = KernelKills(root=kernel.root)
    kernel.has_killed(1)  # a process of somebody else's
    kills.look()
    assert kills.explain(71) == ""


def test_the_log_names_the_process_where_it_may_be_read(kernel: Kernel) -> None:
    kernel.has_killed(0)
    kills = KernelKills(root=kernel.root)
    kernel.has_killed(2)
    kernel.write("dev/kmsg", b"6,811,98000000,-;eth0: link up\n" + LOG % 71)
    assert kills.explain(71) == "out of memory, says the kernel's log"
    assert kills.explain(7) == COUNTED.format("its control group")


def test_a_log_of_long_ago_explains_nothing(kernel: Kernel) -> None:
    kernel.has_killed(1)
    kernel.write("dev/kmsg", LOG % 71)
    assert KernelKills(root=kernel.root).explain(71) == ""


def test_a_kernel_that_says_nothing_explains_nothing(tmp_path: Path) -> None:
    assert KernelKills(root=tmp_path).explain(71) == ""
