"""What an agent tells people: the values behind the launch stream, `status` and JSON.

The agent makes them, the command line draws them; neither knows the other. A reason is one string
and is the same in the stream, the log, `status` and JSON.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from easyscale.messages import SourceLine

#: What an event's facts may hold.
Fact = str | int | float | bool | None | tuple[int | str, ...]


def stamp(wall_s: float) -> str:
    """Seconds since 1970 as every `at` says them: RFC 3339, UTC, milliseconds."""
    at = datetime.fromtimestamp(wall_s, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class EventKind(StrEnum):
    """Every kind of change; no other verbs are used."""

    MET = "met"
    WAITING = "waiting"
    STARTED = "started"
    JOINED = "joined"
    LOST = "lost"
    RECOVERED = "recovered"
    DRAINED = "drained"
    DRAINING = "draining"
    LEFT = "left"
    REBALANCED = "rebalanced"
    MIGRATED = "migrated"
    RESTORED = "restored"
    SLOW = "slow"
    RECOVERED_SPEED = "recovered_speed"
    HUNG = "hung"
    STORE_AWAY = "store_away"
    STORE_BACK = "store_back"
    SNAPSHOT = "snapshot"
    SNAPSHOT_FAILED = "snapshot_failed"
    NOTE = "note"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


class JobEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One change, as one line shows it. `at` is RFC 3339 UTC with milliseconds."""

    at: str
    job: str
    event: EventKind
    #: None in a job whose steps nobody knows: one without logical workers.
    step: int | None
    era: int
    generation: int
    reason: str
    facts: Mapping[str, Fact] = {}


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """Where training is; shown by the live lines and once per interval in plain output."""

    at: str
    job: str
    step: int
    steps: int | None
    epoch: int
    epochs: int | None
    #: The metric that is drawn, usually `loss`, and its value.
    metric: str | None
    value: float | None
    #: Newest last, at most 64 points.
    history: tuple[float, ...]
    steps_per_s: float | None
    samples_per_s: float | None
    left_s: float | None
    elapsed_s: float
    nodes: int
    slots: int
    era: int
    generation: int
    slow: tuple[str, ...] = ()


class FirstCause(msgspec.Struct, frozen=True, kw_only=True):
    """The earliest failure by causality: the last thing on the screen of every node."""

    job: str
    #: `ValueError: target 11 is out of bounds`, or `killed by SIGKILL: out of memory on node b`.
    headline: str
    rank: int | None
    #: None where the rank is that of a process, whose steps nobody knows.
    step: int | None
    node: str
    slot: str
    pid: int | None
    era: int
    generation: int
    file: str
    line: int
    function: str
    caller: str
    excerpt: tuple[SourceLine, ...]
    hidden_frames: int
    why_ended: str
    #: Other workers that ended because of it.
    victims: int
    #: Other workers that failed by themselves before they were stopped; None: none of them did.
    also_failed: int | None = None
    snapshot: str
    log: str
    next_steps: tuple[str, ...]
    exit_code: int


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The closing lines of a job that finished, or that pauses here with a snapshot."""

    job: str
    finished: bool
    step: int | None
    epochs: int | None
    elapsed_s: float
    exit_code: int
    #: 64 hex digits, empty for a job that did not finish.
    digest: str
    metric: str | None
    value: float | None
    first_value: float | None
    history: tuple[float, ...]
    steps_per_s: float | None
    samples_per_s: float | None
    median_step_s: float | None
    #: Counts by kind of change, in the order of the vocabulary.
    changes: Mapping[str, int]
    paused_s: float
    longest_pause_s: float
    steps_lost: int
    restarts: int
    snapshot_step: int | None
    snapshot_bytes: int | None
    snapshot_path: str
    log_dir: str
    reason: str
    #: How a job that did not finish is gone on with.
    goes_on: str = ""


class Source(msgspec.Struct, frozen=True):
    """Who wrote a piece of worker output."""

    node: str
    slot: str
    pid: int


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class Audience(Protocol):
    """Whoever watches a launch: a terminal, plain lines, JSON lines or a test.

    Called from the agent's loop; must return at once and must not raise.
    """

    def open(self, *, job: str, facts: Mapping[str, Fact]) -> None:
        """The heading: version, job, N, determinism, where snapshots and logs go."""

    def event(self, event: JobEvent) -> None: ...

    def progress(self, progress: Progress) -> None: ...

    def output(self, source: Source, stream: Stream, data: bytes, rank: int | None) -> None: ...

    def fail(self, cause: FirstCause) -> None: ...

    def finish(self, summary: Summary) -> None: ...

    def close(self) -> None:
        """Everything has been said; returns when it is written."""
