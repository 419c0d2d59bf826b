"""Snapshots on disk: written beside training and seen whole or not at all, read with every check.

A folder becomes visible under its name by one rename, after everything in it is durable; its
manifest, written last, says what its files must be.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread
from typing import BinaryIO

import torch

from easyscale.errors import FormatError, SnapshotDamaged
from easyscale.integrity import Digester, check_file
from easyscale.messages import Message, SnapshotFailed, SnapshotWritten
from easyscale.model import (
    Determinism,
    FileDigest,
    GenerationNumber,
    Manifest,
    Position,
    WorkerId,
    decode,
    encode,
)
from easyscale.runtime.state import State

STATE_FILE = "state.pt"
MANIFEST_FILE = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who writes, for which generation of which job; the same for all snapshots of a generation."""

    folder: Path
    job_id: str
    worker: WorkerId
    generation: GenerationNumber


class SnapshotWriter:
    """Writes one snapshot at a time in a background thread and says how it went."""

    def __init__(self, say: Callable[[Message], None]) -> None:
        self._say = say
        self._thread: Thread | None = None
        #: The last that was finished could not be written.
        self.has_failed = False

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, state: State, origin: Origin, *, pause_s: float, last: bool) -> None:
        """Write `state`, which nobody changes any more; waits for the one before."""
        self.finish()
        self._thread = Thread(
            target=self._write, args=(state, origin, pause_s, last), name="snapshot"
        )
        self._thread.start()

    def finish(self) -> None:
        """Wait until what was begun is durable or given up."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _write(self, state: State, origin: Origin, pause_s: float, last: bool) -> None:  # noqa: FBT001 - a thread's arguments
        began = time.monotonic()
        self.has_failed = True
        try:
            name, manifest = write_snapshot(state, origin)
        except FormatError as error:
            self._say(SnapshotFailed(step=state.place.step, reason=error.message))
            return
        except OSError as error:
            # A full disk is a warning, not an end of training.
            reason = f"{error.strerror or error} ({error.filename or origin.folder})"
            self._say(SnapshotFailed(step=state.place.step, reason=reason))
            return
        self.has_failed = False
        written = SnapshotWritten(
            name=name,
            step=manifest.step,
            epoch=manifest.epoch,
            digest=manifest.digest,
            bytes=sum(file.bytes for file in manifest.files.values()),
            generation=manifest.generation,
            pause_s=pause_s,
            seconds=time.monotonic() - began,
            last=last,
        )
        self._say(written)


def write_snapshot(state: State, origin: Origin) -> tuple[str, Manifest]:
    """Write one snapshot durably; returns its name.

    Raises OSError, or FormatError where it could not be read back, and leaves nothing behind.
    """
    name = f"step-{state.place.step:08d}-g{origin.generation}-{origin.worker.writer}"
    target = origin.folder / name
    if target.exists():  # the same boundary once more: a pause right after a periodic one
        text = (target / MANIFEST_FILE).read_bytes()
        return name, decode(text, Manifest, source=str(target / MANIFEST_FILE))
    origin.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = origin.folder / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(mode=0o700)
        written = _write_state(state, partial / STATE_FILE)
        # Structure and plain values by the loader that a restore uses; the tensors' bytes are
        # those that were measured.
        State.read(partial / STATE_FILE, source=f"what was written of {name}")
        manifest = _manifest(state, origin, written)
        _write_durably(partial / MANIFEST_FILE, encode(manifest).encode() + b"\n")
        _sync_folder(partial)
        partial.rename(target)
        _sync_folder(origin.folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return name, manifest


def read_snapshot(folder: Path, name: str) -> State:
    """Read a snapshot whose bytes are what its manifest promises; else SnapshotDamaged."""
    path = folder / name
    try:
        text = (path / MANIFEST_FILE).read_bytes()
        manifest = decode(text, Manifest, source=str(path / MANIFEST_FILE))
        for file, promised in sorted(manifest.files.items()):
            check_file(path / Path(file).name, promised)
        with (path / STATE_FILE).open("rb") as state_file:
            state = State.read(state_file, source=str(path / STATE_FILE))
    except (OSError, FormatError) as error:
        raise SnapshotDamaged(f"snapshot {name} cannot be read: {error}") from error
    if state.digest != manifest.digest:
        raise SnapshotDamaged(
            f"snapshot {name} holds the state {state.digest[:12]}; its manifest promises "
            f"{manifest.digest[:12]}"
        )
    return state


class _Measured:
    """A file that is measured while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digester = Digester()

    @property
    def digest(self) -> FileDigest:
        return self._digester.finish()

    def write(self, data: bytes) -> int:
        self._digester.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def _write_state(state: State, path: Path) -> FileDigest:
    with _private(path) as file:
        measured = _Measured(file)
        try:
            state.write(measured)  # type: ignore[arg-type]  # torch.save asks for write alone
        except RuntimeError as error:
            # torch's zip writer turns a full disk into an error of its own.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise OSError(None, str(error).partition("\n")[0], str(path)) from error
        file.flush()
        os.fsync(file.fileno())
        return measured.digest


def _write_durably(path: Path, data: bytes) -> None:
    with _private(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems cannot
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(state: State, origin: Origin, written: FileDigest) -> Manifest:
    place, fixed = state.place, state.fixed
    return Manifest(
        job_id=origin.job_id,
        step=place.step,
        epoch=place.epoch,
        index=place.index,
        position=Position(place.position),
        digest=state.digest,
        generation=origin.generation,
        worker=str(origin.worker),
        finished=place.finished,
        logical_workers=fixed["logical_workers"],
        seed=fixed["seed"],
        determinism=Determinism(fixed["determinism"]),
        threads_per_worker=fixed["threads_per_worker"],
        torch_version=str(torch.__version__),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files={STATE_FILE: written},
    )
