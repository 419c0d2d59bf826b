"""Holds the code that this launch brings against the job's, at the start and before each fork.

The job's code stands in etcd, and beside the snapshots for the launch that goes on from them when
that etcd is no more.
"""

import contextlib
import secrets
from pathlib import Path

from easyscale.agent.script_code import read_code
from easyscale.agent.settings import LaunchSettings
from easyscale.errors import FormatError
from easyscale.model import decode, encode
from easyscale.rendezvous.code_record import (
    CodeRecord,
    agree_on_code,
    allowed,
    describe_change,
    other_code,
)
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Store


def code_file(job_id: str) -> str:
    """Its name beside the snapshots; several jobs may share a folder."""
    return f"code-{job_id}.json"


class CodeCheck:
    """The script's code as it was when this launch began."""

    def __init__(self, settings: LaunchSettings) -> None:
        self._settings = settings
        self._own = CodeRecord(files=self._read())
        self._file = code_file(settings.job_id)

    def agree(self, store: Store, keys: JobKeys) -> str:
        """Bring it into the job; returns what to say aloud. Raises JobConflict for other code."""
        allow = self._settings.allow_code_change
        told = describe_change(self._beside_snapshots(), self._own.files)
        if told and not allow:
            raise other_code(self._settings.job_id, told)
        note = agree_on_code(store, keys, self._own, allow_change=allow)
        self._leave_beside_snapshots()
        return note or (allowed(told) if told else "")

    def changed(self) -> str:
        """What has changed on disk since, which a new worker would run; empty: nothing."""
        if self._settings.allow_code_change:
            return ""
        told = describe_change(self._own.files, self._read())
        return f"{told} since this agent began, and no --allow-code-change" if told else ""

    def _read(self) -> dict[str, str]:
        settings = self._settings
        return read_code(
            settings.script,
            working_directory=Path(settings.working_directory),
            environment=settings.environment,
        )

    @property
    def _folder(self) -> Path:
        return Path(self._settings.working_directory) / self._settings.snapshot_dir

    def _beside_snapshots(self) -> dict[str, str]:
        """The code that the snapshots of this folder are of; ours, where that is not known."""
        own = dict(self._own.files)
        if not any(self._folder.glob("step-*")):
            return own
        try:
            text = (self._folder / self._file).read_bytes()
            return dict(decode(text, CodeRecord, source=self._file).files)
        except (OSError, FormatError):
            return own

    def _leave_beside_snapshots(self) -> None:
        partial = self._folder / f".{self._file}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # a full disk does not keep a job from training
            try:
                partial.write_text(encode(self._own) + "\n", encoding="utf-8")
                partial.replace(self._folder / self._file)
            finally:
                partial.unlink(missing_ok=True)
