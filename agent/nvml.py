"""Lists this node's NVIDIA devices as JSON, in a process of its own: a dying GPU may hang NVML.

python -I -S nvml.py        Standard library only; the agent waits with a deadline and may give up.
"""

import ctypes
import json
import sys
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_TEXT_BYTES = 96
_MIG_ENABLED = 1


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class NvmlError(Exception):
    """Raised when a call that must work did not."""


class Nvml:
    """The few calls needed; each returns None where a device does not know."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        if code := library.nvmlInit_v2():
            raise NvmlError(f"nvmlInit: {self._words(code)}")

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
    """Print `{"devices": [...]}` or `{"error": "..."}`."""
    try:
        answer: dict[str, Any] = {"devices": Nvml(ctypes.CDLL(_LIBRARY)).devices()}
    except (OSError, AttributeError, NvmlError) as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
