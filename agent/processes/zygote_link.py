"""The agent's end of the zygote: starts it, hands it requests with their descriptors, reads it.

It must be started from a thread that lives as long as the agent: the kernel's parent-death signal,
which the zygote asks for first of all, belongs to the thread that started it.
"""

import contextlib
import os
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import msgspec

from easyscale.agent.processes.log_files import open_private
from easyscale.baseline import baseline
from easyscale.messages import ForkRequest, FromZygote
from easyscale.model import Determinism

_DECODER = msgspec.json.Decoder(FromZygote)
_TAIL_BYTES = 4096


class ZygoteSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a zygote is started with; all of it is fixed for the agent's life."""

    python: str
    environment: Mapping[str, str]
    log_file: Path
    threads_per_worker: int
    determinism: Determinism
    #: How many workers will be asked for at once.
    workers: int
    preload: tuple[str, ...]
    #: So long after the last request it imports what the first optimizer of a script needs: a
    #: worker that is forked later starts seconds faster, the first ones are not held up.
    quiet_s: float = 10.0


def zygote_environment(settings: ZygoteSettings) -> dict[str, str]:
    """The agent's own environment, and what counts only if set before torch is imported."""
    threads = str(settings.threads_per_worker)
    environment = dict(settings.environment)
    environment.pop("GRPC_ENABLE_FORK_SUPPORT", None)
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if not visible or "MIG" in visible:
        # torch counts MIG devices through CUDA itself, which must not start here; and a preloaded
        # module that found no device at its import would not look again in the worker.
        environment.pop("CUDA_VISIBLE_DEVICES", None)
    environment |= {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        # It starts its threads when NumPy is imported, and a fork with threads is unsafe.
        "OPENBLAS_NUM_THREADS": "1",
        # gloo looks addresses up in reverse; one lost answer costs five seconds otherwise.
        "RES_OPTIONS": f"{environment.get('RES_OPTIONS', '')} timeout:1 attempts:1".strip(),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
    if settings.determinism is Determinism.HETEROGENEOUS:
        environment |= baseline()
    return environment


class ZygoteLink:
    """One zygote process. Everything but `spawn` is called from the supervisor's thread."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, log: Path) -> None:
        self.control = control
        self._process = process
        self._log = log
        self._received = bytearray()
        #: What is still to be sent, with the descriptors that go with its first byte.
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()

    @classmethod
    def spawn(cls, settings: ZygoteSettings) -> "ZygoteLink":
        """Start the process and return at once; it says Imported when it can fork."""
        mine, theirs = socket.socketpair()
        output = open_private(settings.log_file)
        try:
            process = subprocess.Popen(
                _command(settings, theirs.fileno()),
                env=zygote_environment(settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                # Its own session: a terminal's Ctrl-C reaches the agent only.
                start_new_session=True,
            )
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
            os.close(output)
        mine.settimeout(0)
        return cls(process, mine, settings.log_file)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_outgoing(self) -> bool:
        return bool(self._outgoing)

    def ask(self, request: ForkRequest, descriptors: tuple[int, ...]) -> None:
        """Queue a request; the descriptors are closed here once they were sent."""
        self._outgoing.append((msgspec.json.encode(request) + b"\n", descriptors))

    def flush(self) -> None:
        """Send what the socket takes now; raises OSError when the zygote is gone."""
        while self._outgoing:
            data, descriptors = self._outgoing[0]
            try:
                sent = socket.send_fds(self.control, [data], list(descriptors))
            except BlockingIOError:
                return
            for descriptor in descriptors:
                os.close(descriptor)
            self._outgoing[0] = (data[sent:], ())
            if sent == len(data):
                self._outgoing.popleft()

    def read(self) -> tuple[list[FromZygote], bool]:
        """What it said since last time, and whether it still can."""
        while True:
            try:
                data = self.control.recv(65536)
            except BlockingIOError:
                return self._messages(), True
            except OSError:
                data = b""
            if not data:
                return self._messages(), False
            self._received += data

    def _messages(self) -> list[FromZygote]:
        *lines, rest = self._received.split(b"\n")
        self._received = rest
        return [_DECODER.decode(line) for line in lines]

    def stop(self, *, deadline_s: float) -> None:
        """End it wherever it is: while it imports it does not see that it was closed."""
        self._process.terminate()
        self.end(deadline_s=deadline_s)

    def end(self, *, deadline_s: float) -> str:
        """Close it, wait for its end, force it when late; returns how it ended."""
        self.control.close()
        for _, descriptors in self._outgoing:
            for descriptor in descriptors:
                os.close(descriptor)
        self._outgoing.clear()
        try:
            code = self._process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        words = self._last_words()
        return f"{how}: {words}" if words else how

    def _last_words(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - _TAIL_BYTES))
                lines = log.read().decode(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _command(settings: ZygoteSettings, descriptor: int) -> list[str]:
    # -P: the folder one stands in must not shadow torch or us; a worker adds its script's own.
    command = [settings.python, "-P", "-m", "easyscale.runtime.zygote", str(descriptor)]
    command += ["--parent", str(os.getpid()), "--workers", str(settings.workers)]
    command += ["--threads", str(settings.threads_per_worker), "--quiet-s", str(settings.quiet_s)]
    if settings.preload:
        command += ["--preload", ",".join(settings.preload)]
    return command
