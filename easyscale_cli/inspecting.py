"""Asks the runtime about snapshots in a child process: the command line itself never loads torch.

The child loads tensors with `weights_only`, so that nothing in a snapshot is executed.
"""

import contextlib
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import IO

from easyscale.errors import EasyScaleError, FormatError, SnapshotError
from easyscale.inspection import Answer, Refusal, Request, read_answer
from easyscale.model import encode

#: To import torch on a busy machine.
_START_S = 120.0
#: Slower than this nobody reads a snapshot: a disk that does not answer is given up.
_LEAST_BYTES_PER_S = 5e6
_END_S = 5.0


class RuntimeSilent(EasyScaleError):
    """Raised when the child that reads tensors did not answer, or not in our language."""

    code = "runtime_silent"


def read_limit_s(size: int) -> float:
    """How long the child may take for so many bytes."""
    return _START_S + size / _LEAST_BYTES_PER_S


def ask_runtime(request: Request, *, sizes: Sequence[int]) -> Generator[Answer]:
    """One answer for each of these sizes; raises RuntimeSilent or what the child refused."""
    if not sizes:
        return
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            # -P: a torch.py of the person's own folder is not the torch that is meant.
            [sys.executable, "-P", "-m", "easyscale.runtime.inspection"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        reader = threading.Thread(target=_read, args=(child.stdout, lines), daemon=True)
        reader.start()
        try:
            assert child.stdin is not None
            with contextlib.suppress(BrokenPipeError), child.stdin:
                child.stdin.write(encode(request).encode())
            for size in sizes:
                yield _next(lines, read_limit_s(size), errors)
        finally:
            child.kill()
            child.wait(_END_S)
            reader.join(_END_S)


def _read(stream: IO[bytes] | None, lines: "queue.SimpleQueue[bytes]") -> None:
    assert stream is not None
    with stream:
        for line in stream:
            lines.put(line)
    lines.put(b"")


def _next(lines: "queue.SimpleQueue[bytes]", limit_s: float, errors: IO[bytes]) -> Answer:
    try:
        line = lines.get(timeout=limit_s)
    except queue.Empty:
        raise RuntimeSilent(f"a snapshot was not read within {limit_s:.0f} s") from None
    if not line:
        raise RuntimeSilent(
            f"the process that reads tensors has ended: {_last_line(errors)}",
            hint=f"{Path(sys.executable).name} -c 'import torch'",
        )
    try:
        answer = read_answer(line.decode(errors="replace"))
    except FormatError as error:
        raise RuntimeSilent(error.message) from error
    if isinstance(answer, Refusal):
        raise SnapshotError(answer.message, hint=answer.hint)
    return answer


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
