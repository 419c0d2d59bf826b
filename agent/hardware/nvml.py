"""Lists this node's NVIDIA devices as JSON, in a process of its own: a dying GPU may hang NVML.

python -I -S nvml.py        Standard library only; the agent waits with a deadline and may give up.
python -I -S nvml.py watch  A line for each trouble of a device, until nobody reads them.
"""

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_MIG_ENABLED = 1
_LOST = 15
_NOT_LISTED = 0xFFFFFFFF
#: Uncorrectable memory errors, and the driver's numbered critical errors.
_DOUBLE_BIT_ECC, _XID = 0x2, 0x8
#: Devices are looked at as often: in many containers no event ever comes.
_WAIT_MS = 5000


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_ulonglong),
        ("data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class NvmlError(Exception):
    """Raised when a call that must work did not."""


class Nvml:
    """The few calls needed; each returns None where a device does not know."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        if code := library.nvmlInit_v2():
            raise NvmlError(f"nvmlInit: {self._words(code)}")

    def watch(self) -> Iterator[dict[str, Any]]:
        """Troubles of devices as they come: `xid` with its number, `ecc`, `lost`; each names UUIDs.

        An event of a slice names this slice, any other the device and all slices of it. Every
        few seconds without news there is an empty one, for whoever wants to stop.
        """
        watched = self._watched()
        events = ctypes.c_void_p()
        if code := self._library.nvmlEventSetCreate(ctypes.byref(events)):
            raise NvmlError(f"nvmlEventSetCreate: {self._words(code)}")
        for handle, _ in watched:
            known = ctypes.c_ulonglong()
            self._library.nvmlDeviceGetSupportedEventTypes(handle, ctypes.byref(known))
            wanted = known.value & (_DOUBLE_BIT_ECC | _XID)
            if wanted:
                self._library.nvmlDeviceRegisterEvents(handle, ctypes.c_ulonglong(wanted), events)
        lost: set[int] = set()
        while True:
            event = _Event()
            came = not self._library.nvmlEventSetWait_v2(events, ctypes.byref(event), _WAIT_MS)
            if came:
                yield self._trouble(event, watched)
            for number, (handle, parts) in enumerate(watched):
                code = self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(_Memory()))
                if code == _LOST and number not in lost:
                    lost.add(number)
                    yield {"what": "lost", "uuids": list(parts)}
            if not came:
                yield {}

    def _watched(self) -> list[tuple[ctypes.c_void_p, dict[str, int]]]:
        """Every device with the UUIDs that slots on it may have, and their GPU instances."""
        count = ctypes.c_uint()
        self._library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        watched = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue
            parts = {self._text(self._library.nvmlDeviceGetUUID, handle): _NOT_LISTED}
            for _, part in self._slices(handle, index) or []:
                instance = ctypes.c_uint(_NOT_LISTED)
                self._library.nvmlDeviceGetGpuInstanceId(part, ctypes.byref(instance))
                parts[self._text(self._library.nvmlDeviceGetUUID, part)] = instance.value
            watched.append((handle, parts))
        return watched

    def _trouble(
        self, event: _Event, watched: list[tuple[ctypes.c_void_p, dict[str, int]]]
    ) -> dict[str, Any]:
        parts = next((p for handle, p in watched if handle.value == event.device), {})
        one = [uuid for uuid, gpu in parts.items() if gpu == event.gpu_instance != _NOT_LISTED]
        uuids = one or list(parts)
        if event.type == _XID:
            return {"what": "xid", "code": event.data, "uuids": uuids}
        return {"what": "ecc", "uuids": uuids}

    def devices(self) -> list[dict[str, Any]]:
        count = ctypes.c_uint()
        if code := self._library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            raise NvmlError(f"nvmlDeviceGetCount: {self._words(code)}")
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if self._library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
                continue  # lost or forbidden to us: not a place to train on
            slices = self._slices(handle, index)
            found += (
                self._describe_slices(handle, slices)
                if slices is not None
                else [self._describe(handle, index=index, slice_index=None)]
            )
        return found

    def _slices(
        self, handle: ctypes.c_void_p, index: int
    ) -> list[tuple[int, ctypes.c_void_p]] | None:
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        mode = self._library.nvmlDeviceGetMigMode(
            handle, ctypes.byref(current), ctypes.byref(pending)
        )
        if mode or current.value != _MIG_ENABLED:
            return None
        most = ctypes.c_uint()
        self._library.nvmlDeviceGetMaxMigDeviceCount(handle, ctypes.byref(most))
        found = []
        for place in range(most.value):
            part = ctypes.c_void_p()
            if not self._library.nvmlDeviceGetMigDeviceHandleByIndex(
                handle, place, ctypes.byref(part)
            ):
                found.append((index, part))
        return found

    def _describe_slices(
        self, whole: ctypes.c_void_p, slices: list[tuple[int, ctypes.c_void_p]]
    ) -> list[dict[str, Any]]:
        described = []
        for place, (index, handle) in enumerate(slices):
            device = self._describe(handle, index=index, slice_index=place)
            device["capability"] = self._capability(whole)
            described.append(device)
        return described

    def _describe(
        self, handle: ctypes.c_void_p, *, index: int, slice_index: int | None
    ) -> dict[str, Any]:
        memory, busy = _Memory(), _Utilization()
        knows_memory = not self._library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        knows_busy = not self._library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(busy))
        return {
            "index": index,
            "slice": slice_index,
            "uuid": self._text(self._library.nvmlDeviceGetUUID, handle),
            "name": self._text(self._library.nvmlDeviceGetName, handle),
            "capability": self._capability(handle),
            "memory_bytes": memory.total if knows_memory else None,
            "memory_used_bytes": memory.used if knows_memory else None,
            "utilization": busy.gpu / 100 if knows_busy else None,
        }

    def _capability(self, handle: ctypes.c_void_p) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        code = self._library.nvmlDeviceGetCudaComputeCapability(
            handle, ctypes.byref(major), ctypes.byref(minor)
        )
        return "" if code else f"{major.value}.{minor.value}"

    def _text(self, call: Any, handle: ctypes.c_void_p) -> str:  # noqa: ANN401 - a C function
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        return "" if call(handle, buffer, _TEXT_BYTES) else buffer.value.decode(errors="replace")

    def _words(self, code: int) -> str:
        self._library.nvmlErrorString.restype = ctypes.c_char_p
        words: bytes | None = self._library.nvmlErrorString(code)
        return (words or b"").decode(errors="replace") or f"code {code}"


def main() -> int:
    """Print `{"devices": [...]}` or `{"error": "..."}`; as a watch, a line for each trouble."""
    if sys.argv[1:] == ["watch"]:
        return _tell_troubles()
    try:
        answer: dict[str, Any] = {"devices": Nvml(ctypes.CDLL(_LIBRARY)).devices()}
    except (OSError, AttributeError, NvmlError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


def _tell_troubles() -> int:
    """End when the reader has gone, or with a line that says why nothing can be watched."""
    try:
        for trouble in Nvml(ctypes.CDLL(_LIBRARY)).watch():
            sys.stdout.write(json.dumps(trouble) + "\n")
            sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)  # nothing is flushed at an exit without a reader
    except (OSError, AttributeError, NvmlError) as error:
        sys.stdout.write(json.dumps({"error": str(error)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
