"""Holds the code that this launch brings against the job's, at the start and before each fork.

The job's code, with its script's arguments, stands in etcd, and beside the snapshots for the launch
that goes on from them when that etcd is no more.
"""

import contextlib
import secrets
from pathlib import Path

from easyscale.agent.script_code import read_code
from easyscale.agent.settings import LaunchSettings
from easyscale.errors import FormatError
from easyscale.model import decode, encode
from easyscale.rendezvous.code_record import (
    Change,
    CodeRecord,
    agree_on_code,
    allowed,
    describe_change,
    other_code,
    without_secrets,
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
        arguments = without_secrets(settings.script.arguments)
        self._own = CodeRecord(files=self._read(), arguments=arguments)
        self._file = code_file(settings.job_id)

    def agree(self, store: Store, keys: JobKeys) -> str:
        """Bring it into the job; returns what to say aloud. Raises JobConflict for other code."""
        allow = self._settings.allow_code_change
        change = Change.between(self._beside_snapshots(), self._own)
        if change and not allow:
            raise other_code(self._settings.job_id, change)
        note = agree_on_code(store, keys, self._own, allow_change=allow)
        self._leave_beside_snapshots()
        return note or (allowed(change) if change else "")

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

    def _beside_snapshots(self) -> CodeRecord:
        """The code that the snapshots of this folder are of; ours, where that is not known."""
        if not any(self._folder.glob("step-*")):
            return self._own
        try:
            text = (self._folder / self._file).read_bytes()
            return decode(text, CodeRecord, source=self._file)
        except (OSError, FormatError):
            return self._own

    def _leave_beside_snapshots(self) -> None:
        partial = self._folder / f".{self._file}.{secrets.token_hex(4)}"
        with contextlib.suppress(OSError):  # a full disk does not keep a job from training
            try:
                partial.write_text(encode(self._own) + "\n", encoding="utf-8")
                partial.replace(self._folder / self._file)
            finally:
                partial.unlink(missing_ok=True)
