"""What a comparison of runs has come to, as frozen values that `verify` draws or prints as JSON."""

from enum import StrEnum

import msgspec


class Verdict(StrEnum):
    """In the order of trust."""

    SAME_BITS = "same_bits"
    BITS_DIFFER = "bits_differ"
    #: The fixed run is not even equal to itself.
    NOT_COMPARABLE = "not_comparable"
    #: A run did not come to its end.
    NOT_FINISHED = "not_finished"

    @property
    def words(self) -> str:
        return self.value.replace("_", " ")


class Cause(StrEnum):
    """What usually makes layouts differ."""

    UNREGISTERED_STATE = "unregistered_state"
    GLOBAL_COUNTER = "global_counter"
    OWN_GENERATOR = "own_generator"
    WALL_TIME = "wall_time"
    SET_ORDER = "set_order"
    OPERATOR = "operator"
    UNKNOWN = "unknown"

    @property
    def words(self) -> str:
        return {
            Cause.GLOBAL_COUNTER: "a counter of the process",
            Cause.OWN_GENERATOR: "an own generator",
            Cause.WALL_TIME: "the time of day",
            Cause.SET_ORDER: "the order of a set",
            Cause.OPERATOR: "an operator",
        }.get(self, self.value.replace("_", " "))


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run as a table shows it; `same` is None for the one that others are held against."""

    name: str
    layout: str
    changes: str
    digest: str | None
    seconds: float | None
    same: bool | None
    #: Of a run that goes on: the step that it is in.
    step: int | None = None


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Where two runs first differ; values are None where no tensor could be kept."""

    run: str
    step: int
    rank: int | None
    #: What differs there: batch, gradient, mean gradient, evaluation, state or outside.
    where: str
    tensor: str
    same_batch: bool
    registered: bool
    index: tuple[int, ...] = ()
    expected: str | None = None
    expected_bits: str | None = None
    got: str | None = None
    got_bits: str | None = None
    #: It is what it was when the script began.
    as_at_begin: bool = False
    then: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """A guess with its evidence, and what was ruled out."""

    cause: Cause
    told: str
    evidence: tuple[str, ...] = ()
    ruled_out: tuple[str, ...] = ()
    advice: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run did not come to its end."""

    run: str
    reason: str
    place: str = ""
    log: str = ""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    verdict: Verdict
    script: str
    steps: int
    asked_steps: int
    logical_workers: int
    level: str
    runs: tuple[RunRow, ...]
    not_started: int
    batches: int
    digest: str | None = None
    first_difference: FirstDifference | None = None
    diagnosis: Diagnosis | None = None
    failed: Failed | None = None
    notes: tuple[str, ...] = ()
    kept: str = ""
