"""Folders that a launch writes to, tried before anything is started, and which of them they are."""

import contextlib
import os
import re
import secrets
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


#: In the snapshot folder; hidden, so it is no snapshot.
IDENTITY = ".folder-id"
_MOST_BYTES = 64
_FORM = re.compile(r"[0-9a-f]{16}")


def folder_identity(folder: Path) -> str:
    """What tells this folder from all others, on whatever node and path it is seen; empty: unknown.

    Who comes first writes it; a link does not replace, also on a network's file system.
    """
    path, partial = folder / IDENTITY, folder / f"{IDENTITY}.{secrets.token_hex(4)}"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            partial.write_text(secrets.token_hex(8), encoding="ascii")
            try:
                with contextlib.suppress(FileExistsError):
                    os.link(partial, path)
            finally:
                partial.unlink(missing_ok=True)
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("ascii", errors="replace")
    except OSError:  # a full disk, or one without links: then a snapshot is where it was written
        return ""
    return text if _FORM.fullmatch(text) else ""
