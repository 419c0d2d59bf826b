"""How busy each slot is, for screens: never waits, since a driver in trouble may not answer.

A CPU slot is what its worker uses; a GPU slot is what NVML last said.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping

import msgspec
import psutil

from easyscale.agent.events import Slot
from easyscale.agent.hardware.devices import Gpu, has_driver, read_probe, start_probe

_EVERY_S = 5.0
_GIVEN_UP_S = 30.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """Utilisation as a share of the device (of one core for a CPU slot), memory in bytes."""

    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None


class Meter:
    """Reads the slots of one node, as often as somebody asks."""

    def __init__(
        self,
        slots: Iterable[Slot],
        *,
        clock: Callable[[], float] = time.monotonic,
        python: str = sys.executable,
    ) -> None:
        self._slots = tuple(slots)
        self._clock = clock
        self._python = python
        self._processes: dict[int, psutil.Process] = {}
        self._gpus: dict[str, Gpu] = {}
        self._probe: subprocess.Popen[bytes] | None = None
        self._asked_at: float | None = None

    def read(self, workers: Mapping[str, int]) -> Mapping[str, Reading]:
        """Readings by slot name; `workers` maps slots to the process that runs there."""
        if any(slot.uuid for slot in self._slots):
            self._ask_nvml()
        self._processes = {
            pid: process for pid, process in self._processes.items() if pid in workers.values()
        }
        return {slot.name: self._reading(slot, workers.get(slot.name)) for slot in self._slots}

    def close(self) -> None:
        if self._probe is not None:
            self._probe.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._probe.communicate(timeout=0.5)

    def _reading(self, slot: Slot, pid: int | None) -> Reading:
        if not slot.uuid:
            return self._of_process(pid)
        gpu = self._gpus.get(slot.uuid)
        if gpu is None:
            return Reading()
        return Reading(
            utilization=gpu.utilization,
            memory_used_bytes=gpu.memory_used_bytes,
            memory_bytes=gpu.memory_bytes,
        )

    def _of_process(self, pid: int | None) -> Reading:
        if pid is None:
            return Reading()
        try:
            known = pid in self._processes
            process = self._processes.setdefault(pid, psutil.Process(pid))
            share = process.cpu_percent() / 100
            used = process.memory_info().rss
        except psutil.Error:
            return Reading()
        # The first call has nothing to compare with.
        return Reading(utilization=share if known else None, memory_used_bytes=used)

    def _ask_nvml(self) -> None:
        now = self._clock()
        if self._probe is not None and self._probe.poll() is not None:
            self._collect(self._probe)
        since_s = None if self._asked_at is None else now - self._asked_at
        if self._probe is not None and since_s is not None and since_s > _GIVEN_UP_S:
            self._probe.kill()
            self._gpus.clear()
            self._asked_at = now
        elif self._probe is None and has_driver() and (since_s is None or since_s >= _EVERY_S):
            self._probe = start_probe(self._python)
            self._asked_at = now

    def _collect(self, probe: "subprocess.Popen[bytes]") -> None:
        answer, _ = probe.communicate()
        self._gpus = {gpu.uuid: gpu for gpu in read_probe(answer)}
        self._probe = None
