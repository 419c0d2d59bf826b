"""Where the snapshots of a job are, as a command finds them: by an agent here, an etcd, a folder.

A job that has ended has no agent any more; its folder still says everything about it.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from easyscale.agent.doors.control import LocalAgent, ask
from easyscale.agent.snapshots import Catalogue, SnapshotEntry
from easyscale.errors import EasyScaleError, FormatError, UsageError
from easyscale.model import Manifest, SnapshotRecord, WorkerId, decode
from easyscale_cli.connection import agents_here
from easyscale_cli.lookup import JobUnknown
from easyscale_cli.views.errors import near_miss, some_of

_ASK_TIMEOUT_S = 5.0
_RUNS = Path("runs")


class SnapshotUnknown(EasyScaleError):
    """Raised when a job has no such snapshot here."""

    code = "snapshot_unknown"


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What an agent or an etcd says of a job's snapshots."""

    folder: str = ""
    #: How many the launch keeps, and after how many steps the next is due.
    keep: int | None = None
    every_steps: int | None = None
    records: tuple[SnapshotRecord, ...] = ()


class Snapshots:
    """The snapshots of one job that this machine can read, and what is known of all of them."""

    def __init__(self, job: str, folder: Path, known: Known, *, is_running: bool) -> None:
        self.job = job
        self.folder = folder
        self.known = known
        self.is_running = is_running
        self.records = {record.name: record for record in known.records}
        self.catalogue = Catalogue(folder, job_id=job, node="")

    def nodes(self, entry: SnapshotEntry) -> tuple[str, ...]:
        """On which nodes it lies, as far as that is known: at least on that of its writer."""
        record = self.records.get(entry.name)
        if record is not None and record.nodes:
            return record.nodes
        if entry.manifest is None:
            return ()
        with contextlib.suppress(FormatError):
            return (WorkerId.parse(entry.manifest.worker).node,)
        return ()

    def elsewhere(self, entries: Sequence[SnapshotEntry]) -> tuple[SnapshotRecord, ...]:
        """Recorded ones that are not in the folder of this machine, newest first."""
        here = {entry.name for entry in entries}
        found = [r for r in self.known.records if r.name not in here and not r.superseded]
        return tuple(sorted(found, key=lambda r: (r.step, r.generation, r.name), reverse=True))

    def choose(self, word: str) -> SnapshotEntry:
        """The snapshot that is meant by a step, a name or its short form; SnapshotUnknown."""
        entries = self.catalogue.entries()
        digits = word.replace(",", "")
        wanted = f"step-{int(digits):08d}" if digits.isdecimal() else word
        found = [entry for entry in entries if wanted in {entry.name, entry.short_name}]
        if len(found) == 1:
            return found[0]
        if found:
            names = [entry.name for entry in found]
            raise UsageError(
                f"{len(found)} snapshots of job {self.job!r} are of {wanted}: {some_of(names)}",
                hint=names[0],
            )
        names = [entry.short_name for entry in entries]
        if not names:
            raise SnapshotUnknown(f"job {self.job!r} has no snapshot in {self.folder}")
        near = near_miss(wanted, names)
        raise SnapshotUnknown(
            f"job {self.job!r} has no snapshot {word!r} in {self.folder}; it has {some_of(names)}",
            hint=near or f"easyscale snapshots ls {self.job}",
        )


def find_snapshots(name: str | None, asked: Mapping[str, Any]) -> Snapshots:
    """The snapshots that are meant; raises JobUnknown or UsageError with what there is instead."""
    given = Path(asked["snapshot_dir"]) if asked["snapshot_dir"] else None
    if given is not None and not given.is_dir():
        raise UsageError(f"--snapshot-dir {given}: no such folder", hint="a folder of snapshots")
    here = agents_here()
    if asked["etcd"]:
        return _stored(name, given, asked)
    if name is None and given is None and len(here) == 1:
        name = next(iter(here))
    if name in here:
        return _told(name, here[name], given)
    if name is None and given is not None:
        return Snapshots(_job_in(given), given, Known(), is_running=False)
    folders = {path.name: path for path in _folders(_RUNS)}
    if name is None and not here and len(folders) == 1:
        name = next(iter(folders))
    if name is None:
        known = sorted({*here, *folders})
        if not known:
            raise JobUnknown("no job here has snapshots", hint="--snapshot-dir DIR, or --etcd")
        raise UsageError(
            f"{len(known)} jobs here: {some_of(known)}", hint=f"easyscale snapshots ls {known[0]}"
        )
    folder = given or folders.get(name)
    if folder is None:
        known = sorted({*here, *folders})
        near = near_miss(name, known)
        has = f"; it has {some_of(known)}" if known else ""
        raise JobUnknown(
            f"no job {name!r} on this machine and no folder {_RUNS / name}{has}",
            hint=f"easyscale snapshots ls {near}" if near else "--snapshot-dir DIR, or --etcd",
        )
    return Snapshots(name, folder, Known(), is_running=False)


def chosen_folder(path: Path) -> SnapshotEntry:
    """One snapshot by the path of its folder, whatever job it is of."""
    try:
        manifest = decode(
            (path / "manifest.json").read_bytes(), Manifest, source=str(path / "manifest.json")
        )
    except OSError as error:
        raise UsageError(
            f"{path}: no snapshot ({(error.strerror or str(error)).lower()})",
            hint="the path of a folder step-...",
        ) from error
    catalogue = Catalogue(path.absolute().parent, job_id=manifest.job_id, node="")
    for entry in catalogue.entries():
        if entry.name == path.name:
            return entry
    raise UsageError(f"{path}: no snapshot has such a name", hint="the path of a folder step-...")


def _told(name: str, agents: Sequence[LocalAgent], given: Path | None) -> Snapshots:
    answer = ask(Path(agents[0].socket), "snapshots", timeout_s=_ASK_TIMEOUT_S)
    known = msgspec.convert(answer, Known)
    return Snapshots(name, given or Path(known.folder), known, is_running=True)


def _stored(name: str | None, given: Path | None, asked: Mapping[str, Any]) -> Snapshots:
    from easyscale_cli import stored

    settings = stored.etcd_settings(asked)
    with contextlib.closing(stored.connect(settings)) as store:
        jobs = stored.stored_jobs(store)
        if name is None and len(jobs) == 1:
            name = jobs[0]
        if name is None or name not in jobs:
            raise JobUnknown(
                f"{'no job' if name is None else f'no job {name!r}'} in {settings}"
                + (f"; it has {some_of(jobs)}" if jobs else ""),
                hint=f"easyscale snapshots ls {jobs[0]}" if jobs else "start one: easyscale launch",
            )
        view = stored.StoredJob(name, store).view()
    known = Known(records=tuple(view.snapshots.values()))
    paths = [Path(record.path).parent for record in known.records if record.path]
    near = next((path for path in paths if path.is_dir()), _RUNS / name)
    return Snapshots(name, given or near, known, is_running=bool(view.nodes))


def _folders(runs: Path) -> list[Path]:
    """Folders below runs/ that hold a snapshot, finished or not."""
    try:
        found = sorted(path for path in runs.iterdir() if path.is_dir())
    except OSError:
        return []
    return [path for path in found if any(path.glob("*step-*"))]


def _job_in(folder: Path) -> str:
    """Of which job the snapshots in a folder are: what the first readable one says."""
    for path in sorted(folder.glob("step-*/manifest.json"), reverse=True):
        with contextlib.suppress(FormatError, OSError):
            return decode(path.read_bytes(), Manifest, source=str(path)).job_id
    raise JobUnknown(f"no snapshot in {folder} says of which job it is", hint="name the job")
