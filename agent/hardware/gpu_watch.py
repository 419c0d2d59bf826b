"""Follows the troubles of this node's GPUs through a child that asks NVML, and tells the agent.

A child that hangs in the driver hears of nothing more and is left behind: the workers' own errors
and pulses still tell.
"""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec

from easyscale.agent.events import DeviceTroubled
from easyscale.agent.hardware import nvml
from easyscale.agent.hardware.gpu_health import Trouble, judge

log = logging.getLogger(__name__)

_CLOSE_S = 1.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What the child says; a line without `what` only says that it lives."""

    what: str = ""
    code: int | None = None
    uuids: tuple[str, ...] = ()
    error: str = ""


class GpuWatch:
    """One child and the thread that reads it."""

    def __init__(
        self, post: Callable[[DeviceTroubled], None], *, python: str = sys.executable
    ) -> None:
        self._post = post
        self._command = [python, "-I", "-S", str(Path(nvml.__file__).resolve()), "watch"]
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._read, name="gpu-watch", daemon=True)

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._thread.start()

    def close(self) -> None:
        """End the child; one that is stuck in the driver is not waited for."""
        if self._process is None:
            return
        self._process.kill()
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            log.warning("the watch of the GPUs is stuck in the driver and is left behind")
            return
        self._thread.join(_CLOSE_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._take(text)

    def _take(self, text: bytes) -> None:
        try:
            line = msgspec.convert(json.loads(text), Line)
        except (ValueError, msgspec.ValidationError):
            log.warning("the watch of the GPUs said %r", text[:200])
            return
        if line.error:
            log.warning("troubles of GPUs are not heard of: %s", line.error)
        trouble, reason = judge(line.what, line.code)
        if trouble is not Trouble.NONE:
            self._post(DeviceTroubled(uuids=line.uuids, trouble=trouble, reason=reason))
