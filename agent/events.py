"""Everything that can happen to an agent, as one closed union of frozen values.

The driver gathers them, `machine.step` decides on them; a story is a list of them.
"""

import msgspec

from easyscale.messages import FromWorker
from easyscale.model import WorkerId


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all events."""


# --- from the supervisor -----------------------------------------------------------------------


class ZygoteReady(Event, frozen=True, kw_only=True):
    """The zygote has imported torch and can fork workers."""

    torch_version: str
    cpu_kind: str
    seconds: float


class ZygoteLost(Event, frozen=True, kw_only=True):
    """The zygote ended although nobody asked it to; its workers died with it."""

    reason: str


class WorkerForked(Event, frozen=True, kw_only=True):
    worker: WorkerId
    pid: int


class ForkFailed(Event, frozen=True, kw_only=True):
    worker: WorkerId
    reason: str


class WorkerSaid(Event, frozen=True, kw_only=True):
    worker: WorkerId
    message: FromWorker


class WorkerExited(Event, frozen=True, kw_only=True):
    """Exactly one of `exit_code` and `signal` is set; all it wrote has been delivered before."""

    worker: WorkerId
    pid: int
    exit_code: int | None
    signal: int | None
    #: Its last line on stderr, for an ending without a traceback.
    last_words: str
