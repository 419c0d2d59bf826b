"""The snapshots in one folder: which are complete, which verify, which may go.

runs/JOB/step-00006400-g1.5-3fa9c2d1/{state.pt,manifest.json}     a snapshot
runs/JOB/.step-00006400-g1.5-3fa9c2d1.partial/                    one that is being written

The manifest is written last and the folder renamed last, so what has a name claims to be whole.
"""

import contextlib
import re
import shutil
import time
from collections.abc import Collection, Iterable
from enum import StrEnum
from pathlib import Path

import msgspec

from easyscale.agent.folders import check_writable
from easyscale.errors import FormatError, JobConflict, SnapshotDamaged
from easyscale.integrity import check_file
from easyscale.model import (
    Determinism,
    GenerationNumber,
    JobSpec,
    Manifest,
    SnapshotRecord,
    SnapshotReference,
    WorkerId,
    decode,
)

MANIFEST = "manifest.json"
_NAME = re.compile(r"step-(\d{8,})-g(\d+)\.(\d+)-([0-9a-f]{8})")
_PARTIAL = re.compile(r"\.(step-.+)\.partial")
#: On its way out: never taken for a snapshot again, whatever happens to the rest of it.
_GOING = re.compile(r"\.(step-.+)\.deleted")
#: A writer that nobody knows may live on another node that shares the folder.
_UNKNOWN_WRITER_S = 3600.0


class SnapshotState(StrEnum):
    COMPLETE = "complete"
    VERIFIED = "verified"
    DAMAGED = "damaged"
    UNFINISHED = "unfinished"


class SnapshotEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot of the folder; COMPLETE says that nobody has read its bytes yet."""

    name: str
    path: str
    state: SnapshotState
    step: int
    manifest: Manifest | None = None
    bytes: int = 0
    #: Why it is damaged.
    reason: str = ""
    #: Wall time of its last change, for its age.
    changed: float = 0.0

    @property
    def short_name(self) -> str:
        return short_name(self.name)

    @property
    def is_good(self) -> bool:
        return self.state in {SnapshotState.COMPLETE, SnapshotState.VERIFIED}

    @property
    def reference(self) -> SnapshotReference:
        """What a commit says of it; only a complete one has one."""
        assert self.manifest is not None
        return SnapshotReference(name=self.name, step=self.step, digest=self.manifest.digest)


class Newest(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot to start from, and the newer ones that were passed over."""

    entry: SnapshotEntry | None
    rejected: tuple[SnapshotEntry, ...] = ()


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshots of a folder for the store, newest first, and those that do not verify.

    Where none does, the records are those, marked so: the job has had snapshots.
    """

    records: tuple[SnapshotRecord, ...]
    rejected: tuple[SnapshotEntry, ...] = ()


class FixedValues(msgspec.Struct, frozen=True, kw_only=True):
    """What another value of would change a job's bits; None where nobody named one."""

    logical_workers: int
    seed: int | None
    determinism: Determinism
    threads_per_worker: int


class Catalogue:
    """The snapshots of one job in one folder, which several nodes may share."""

    def __init__(self, folder: Path, *, job_id: str, node: str) -> None:
        self._folder = folder
        self._job_id = job_id
        self._node = node

    def check_writable(self) -> None:
        """Make the folder and write to it once; raises UsageError before anything has started."""
        check_writable(self._folder, flag="--snapshot-dir")

    def entries(self) -> tuple[SnapshotEntry, ...]:
        """Everything there is, newest first, without reading the states."""
        found = [entry for path in self._paths() if (entry := self._look(path)) is not None]
        return tuple(sorted(found, key=_age_order, reverse=True))

    def verify(self, entry: SnapshotEntry) -> SnapshotEntry:
        """Read all its bytes."""
        if entry.manifest is None or entry.state is SnapshotState.DAMAGED:
            return entry
        try:
            for name, promised in sorted(entry.manifest.files.items()):
                check_file(Path(entry.path) / name, promised)
        except SnapshotDamaged as damage:
            state, reason = SnapshotState.DAMAGED, damage.message
            return msgspec.structs.replace(entry, state=state, reason=reason)
        return msgspec.structs.replace(entry, state=SnapshotState.VERIFIED)

    def newest(self) -> Newest:
        """The newest that verifies; reads no older one."""
        rejected: list[SnapshotEntry] = []
        for entry in self.entries():
            if entry.state is SnapshotState.UNFINISHED:
                continue
            verified = self.verify(entry)
            if verified.state is SnapshotState.VERIFIED:
                return Newest(entry=verified, rejected=tuple(rejected))
            rejected.append(verified)
        return Newest(entry=None, rejected=tuple(rejected))

    def survey(self) -> Survey:
        """What a job can go on from here, and what it cannot.

        The first was read whole; older ones are complete by their size, and are read when their
        turn comes.
        """
        rejected = self.newest().rejected
        passed_over = {entry.name for entry in rejected}
        found = [
            entry for entry in self.entries() if entry.is_good and entry.name not in passed_over
        ]
        if found:
            return Survey(records=tuple(map(self._record, found)), rejected=rejected)
        lost = (self._lost_record(entry) for entry in rejected if self._is_ours(entry))
        return Survey(records=tuple(lost), rejected=rejected)

    def _is_ours(self, entry: SnapshotEntry) -> bool:
        return entry.manifest is None or entry.manifest.job_id == self._job_id

    def _lost_record(self, entry: SnapshotEntry) -> SnapshotRecord:
        parts = _NAME.fullmatch(entry.name)
        assert parts is not None
        return SnapshotRecord(
            name=entry.name,
            step=entry.step,
            epoch=0,
            digest="",
            bytes=entry.bytes,
            generation=GenerationNumber(int(parts[2]), int(parts[3])),
            nodes=(self._node,),
            rejected=entry.reason,
        )

    def refuse_other_values(self, asked: FixedValues) -> None:
        """Raise JobConflict when the newest snapshot's job has other values for life."""
        for entry in self.entries():
            if entry.manifest is not None and entry.is_good:
                refuse_other_values(self._job_id, stands=entry.manifest, asked=asked)
                return

    def _record(self, entry: SnapshotEntry) -> SnapshotRecord:
        manifest = entry.manifest
        assert manifest is not None
        return SnapshotRecord(
            name=entry.name,
            step=entry.step,
            epoch=manifest.epoch,
            digest=manifest.digest,
            bytes=entry.bytes,
            generation=manifest.generation,
            nodes=(self._node,),
        )

    def delete(self, superseded: Collection[str]) -> tuple[str, ...]:
        """Delete what a fenced mark has superseded, oldest first; returns the names.

        Nothing goes while no newer one is complete here: the last good one stays.
        """
        entries = self.entries()
        kept = [entry for entry in entries if entry.is_good and entry.name not in superseded]
        if not kept:
            return ()
        gone = [
            entry.name
            for entry in reversed(entries)
            if entry.name in superseded
            and entry.state is not SnapshotState.UNFINISHED
            and _age_order(entry) < _age_order(kept[0])
        ]
        return tuple(name for name in gone if self._delete(name))

    def remove(self, names: Collection[str]) -> tuple[str, ...]:
        """Delete these, oldest first, because a person said so; returns the names."""
        entries = [entry for entry in reversed(self.entries()) if entry.name in names]
        return tuple(
            entry.name
            for entry in entries
            if entry.state is not SnapshotState.UNFINISHED and self._delete(entry.name)
        )

    def _delete(self, name: str) -> bool:
        """Take it out of the catalogue in one step, then remove its files."""
        going = self._folder / f".{name}.deleted"
        try:
            (self._folder / name).rename(going)
        except OSError:
            return False
        shutil.rmtree(going, ignore_errors=True)
        return True

    def sweep(self, *, live: Collection[WorkerId], now: float | None = None) -> tuple[str, ...]:
        """Remove what dead writers left unfinished, and what was half deleted.

        `live` are the workers known to run; a writer not among them may still run on another
        node, so its folder goes only when nothing in it has changed for an hour.
        """
        writers = {worker.writer for worker in live}
        at = time.time() if now is None else now
        removed = []
        for path in self._hidden():
            partial = _PARTIAL.fullmatch(path.name)
            if partial is not None:
                writer = partial[1].rpartition("-")[2]
                if writer in writers or at - _changed(path) < _UNKNOWN_WRITER_S:
                    continue
            elif _GOING.fullmatch(path.name) is None:
                continue
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path.name)
        return tuple(removed)

    def forget_writer(self, worker: WorkerId) -> None:
        """Remove what a worker that has ended left unfinished."""
        for path in self._hidden():
            partial = _PARTIAL.fullmatch(path.name)
            if partial is not None and partial[1].endswith(f"-{worker.writer}"):
                shutil.rmtree(path, ignore_errors=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted(self._folder.iterdir())
        except OSError:
            return []

    def _hidden(self) -> list[Path]:
        return [path for path in self._paths() if path.name.startswith(".step-")]

    def _look(self, path: Path) -> SnapshotEntry | None:
        partial = _PARTIAL.fullmatch(path.name)
        name = partial[1] if partial is not None else path.name
        parts = _NAME.fullmatch(name)
        if parts is None or not path.is_dir():
            return None
        entry = SnapshotEntry(
            name=name,
            path=str(path),
            state=SnapshotState.UNFINISHED,
            step=int(parts[1]),
            bytes=_size(path),
            changed=_changed(path),
        )
        return entry if partial is not None else self._read(entry)

    def _read(self, entry: SnapshotEntry) -> SnapshotEntry:
        path = Path(entry.path)
        try:
            manifest = decode((path / MANIFEST).read_bytes(), Manifest, source=MANIFEST)
            reason = self._contradiction(entry, manifest)
        except FormatError as error:
            manifest, reason = None, error.message
        except OSError as error:
            manifest, reason = None, f"{MANIFEST}: {error.strerror}"
        state = SnapshotState.DAMAGED if reason else SnapshotState.COMPLETE
        return msgspec.structs.replace(entry, manifest=manifest, state=state, reason=reason)

    def _contradiction(self, entry: SnapshotEntry, manifest: Manifest) -> str:
        if manifest.job_id != self._job_id:
            return f"it is of job {manifest.job_id!r}"
        if manifest.step != entry.step:
            return f"{MANIFEST} says step {manifest.step}"
        if not manifest.files:
            return f"{MANIFEST} names no file"
        for name, promised in sorted(manifest.files.items()):
            if Path(name).name != name:
                return f"{MANIFEST} names {name!r}, which lies outside"
            size = _file_size(Path(entry.path) / name)
            if size is None:
                return f"{name} is missing"
            if size != promised.bytes:
                return f"{name} has {size:,} bytes of {promised.bytes:,}"
        return ""


def short_name(name: str) -> str:
    """What screens show."""
    parts = _NAME.fullmatch(name)
    return f"step-{parts[1]}" if parts is not None else name


def beyond_newest(
    entries: Iterable[SnapshotEntry], newest: Newest, *, keep: int
) -> tuple[SnapshotEntry, ...]:
    """The good ones behind the newest `keep`, of which the first has been verified.

    None where nothing verifies: the last hope of a job is not deleted. `entries` are newest first.
    """
    if newest.entry is None:
        return ()
    passed_over = {entry.name for entry in newest.rejected}
    good = [entry for entry in entries if entry.is_good and entry.name not in passed_over]
    return tuple(good[max(1, keep) :])


def superseded(records: Iterable[SnapshotRecord], *, keep: int) -> tuple[str, ...]:
    """Which recorded snapshots may be marked: all but the newest `keep`."""
    live = [record for record in records if not record.superseded]
    newest_first = sorted(live, key=lambda r: (r.step, r.generation, r.name), reverse=True)
    return tuple(record.name for record in newest_first[max(1, keep) :])


def refuse_other_values(job_id: str, *, stands: JobSpec | Manifest, asked: FixedValues) -> None:
    """Raise JobConflict when a command names a value that was fixed for the job's life."""
    plural = "" if stands.threads_per_worker == 1 else "s"
    n, threads = stands.logical_workers, stands.threads_per_worker
    seed = "the script's own seed" if stands.seed is None else f"seed {stands.seed}"
    for option, stood, wanted, what in (
        ("logical-workers", n, asked.logical_workers, f"{n} logical workers"),
        ("seed", stands.seed, asked.seed, seed),
        (
            "determinism",
            stands.determinism.value,
            asked.determinism.value,
            f"determinism {stands.determinism.value}",
        ),
        (
            "threads-per-worker",
            threads,
            asked.threads_per_worker,
            f"{threads} thread{plural} per worker",
        ),
    ):
        if wanted is None or wanted == stood:
            continue
        same = f"no --{option}" if stood is None else f"--{option} {stood}"
        raise JobConflict(
            f"job {job_id!r} has {what} for life; {wanted} would change its bits",
            hint=f"{same}, or a new job: --rdzv-id NAME",
        )


def _age_order(entry: SnapshotEntry) -> tuple[int, int, int, int, str]:
    parts = _NAME.fullmatch(entry.name)
    assert parts is not None
    position = entry.manifest.position if entry.manifest is not None else 0
    return (entry.step, position, int(parts[2]), int(parts[3]), entry.name)


def _size(folder: Path) -> int:
    return sum(_file_size(path) or 0 for path in _files(folder))


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # gone meanwhile, or not ours to read
        return []


def _file_size(path: Path) -> int | None:
    try:
        return path.stat().st_size if path.is_file() else None
    except OSError:
        return None


def _changed(folder: Path) -> float:
    """When anything in it last changed; files that vanish meanwhile do not count."""
    latest = 0.0
    for path in (folder, *_files(folder)):
        with contextlib.suppress(OSError):
            latest = max(latest, path.stat().st_mtime)
    return latest
