"""The newest profile of a job beside its snapshots, where it outlives the job's etcd."""

import os
import tempfile
from pathlib import Path

from easyscale.balance import ProfileRecord
from easyscale.errors import FormatError
from easyscale.model import JobSpec, decode, encode

PROFILE = "profile.json"


def read_profile(folder: Path) -> ProfileRecord | None:
    """What was kept; None where there is none that can be read."""
    try:
        return decode((folder / PROFILE).read_bytes(), ProfileRecord, source=PROFILE)
    except (OSError, FormatError):
        return None


def keep_profile(folder: Path, record: ProfileRecord) -> None:
    """Put it in the place of the one before, whole or not at all; raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{PROFILE}.", dir=folder)  # private to the user
    try:
        with os.fdopen(handle, "w") as file:
            file.write(encode(record))
        Path(name).replace(folder / PROFILE)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


def is_of(record: ProfileRecord, spec: JobSpec) -> bool:
    """It was measured of a job that computes the same, at the same level of determinism."""
    return (record.logical_workers, record.determinism) == (spec.logical_workers, spec.determinism)
