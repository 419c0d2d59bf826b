"""Folders that a launch writes to, tried before anything is started."""

import os
import tempfile
from pathlib import Path

from easyscale.errors import UsageError


def check_writable(folder: Path, *, flag: str) -> None:
    """Make the folder and write to it once; raises UsageError that names the flag."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"easyscale")
            os.fsync(probe.fileno())
    except OSError as error:
        raise UsageError(
            f"{flag} {folder}: {(error.strerror or str(error)).lower()}",
            hint=f"{flag} DIR, a folder that this user can write to",
        ) from error
