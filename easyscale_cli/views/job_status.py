"""The one object of `status --json`; pure."""

from typing import Any

import msgspec

from easyscale.job_status import JobStatus
from easyscale_cli.views import plain


def status_json(status: JobStatus) -> str:
    """The one object of `status --json`; its events have the form that `events --json` has."""
    value: dict[str, Any] = msgspec.to_builtins(status)
    value["changes"]["last"] = [plain.event_fields(event) for event in status.changes.last]
    return plain.to_json(value)
