"""Every error that easyscale raises on purpose: one base, few families, named for the fact.

A message says what happened, with values, and then what follows or what to do. The command line
prints it as two lines (`error:` and `try:`) and ends with the family's exit code.
"""

from collections.abc import Sequence
from enum import IntEnum

from easyscale import guide
from easyscale.guide import Paragraph


class ExitCode(IntEnum):
    """How a command ends; 128 + n stands for signal n."""

    DONE = 0
    JOB_FAILED = 1
    USAGE = 2
    STORE_OUT_OF_REACH = 3
    TOO_FEW_NODES = 4
    RESTART_BUDGET_SPENT = 5


class EasyScaleError(Exception):
    """Base of all errors raised on purpose; `hint` is the one thing to try."""

    exit_code: ExitCode = ExitCode.JOB_FAILED
    #: Stable snake_case name of the fact, for JSON readers.
    code: str = "error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ThreadBroke(EasyScaleError):
    """Raised in the loop of an agent whose thread ended by an error that nobody foresaw."""

    code = "thread_broke"

    @classmethod
    def of(cls, error: Exception, *, name: str) -> EasyScaleError:
        """What to tell of an error that ends a thread; one of ours says itself what it is."""
        if isinstance(error, EasyScaleError):
            return error
        return cls(f"the thread {name} of this agent broke: {type(error).__name__}: {error}")


class UsageError(EasyScaleError):
    """Raised when what the person asked for cannot be meant: wrong flags, values or files."""

    exit_code = ExitCode.USAGE
    code = "usage"


class ScriptError(EasyScaleError):
    """Raised inside a training script that uses the API in a way that would change its bits.

    `see` is the paragraph of the guide that says what to write instead.
    """

    code = "script"

    def __init__(self, message: str, *, hint: str = "", see: Paragraph | None = None) -> None:
        paragraph = "" if see is None else guide.see(see)
        super().__init__(
            message, hint=f"{hint} ({paragraph})" if hint and see else hint or paragraph
        )


class IncompleteStep(ScriptError):
    """Raised at the boundary after a script left the inner loop before its last micro-step."""

    code = "incomplete_step"


class StoreError(EasyScaleError):
    """Base of what etcd answers or fails to answer; `words` are its own where it refuses."""

    exit_code = ExitCode.STORE_OUT_OF_REACH
    code = "store"

    def __init__(self, message: str, *, hint: str = "", words: str = "") -> None:
        super().__init__(message, hint=hint)
        self.words = words


class StoreUnreachable(StoreError):
    """Raised when no endpoint of etcd answered within the deadline."""

    code = "store_unreachable"


class StoreExhausted(StoreUnreachable):
    """Raised when etcd takes nothing for now, being full or asked too much; nothing was written."""

    code = "store_exhausted"


class StoreRefused(StoreError):
    """Raised when etcd answers but cannot be used: its version, a certificate, a password."""

    code = "store_refused"


class TransactionInvalid(StoreRefused):
    """Raised when no etcd would ever take a transaction, whatever state it is in."""

    code = "transaction_invalid"


class StoreClosed(StoreError):
    """Raised by a store that we closed ourselves; the world did not break it."""

    code = "store_closed"


class OutcomeUnknown(StoreError):
    """Raised when a transaction was sent and its answer was lost: read back before acting."""

    code = "outcome_unknown"


class LeaseLost(StoreError):
    """Raised when a lease ended on the server although its owner is alive."""

    code = "lease_lost"


class TooFewNodes(EasyScaleError):
    """Raised when the nodes a job needs to start did not come in time."""

    exit_code = ExitCode.TOO_FEW_NODES
    code = "too_few_nodes"


class JobConflict(UsageError):
    """Raised when a command names a value that was fixed for the job's life as another one."""

    code = "job_conflict"


class AlreadyRunning(UsageError):
    """Raised when a second launch would train a job that runs on this machine, beside the first."""

    code = "already_running"


class FormatError(EasyScaleError):
    """Raised when a record, message or file is not of the form and version it claims."""

    code = "format"


class SnapshotError(EasyScaleError):
    """Base of what is wrong with a snapshot on disk."""

    code = "snapshot"


class SnapshotDamaged(SnapshotError):
    """Raised when the bytes of a snapshot are not those that its manifest promises."""

    code = "snapshot_damaged"


class WorkerFailed(EasyScaleError):
    """Raised when a worker process ended in another way than it was asked to."""

    code = "worker_failed"


class RestartBudgetSpent(EasyScaleError):
    """Raised when one failure without progress more than `--max-restarts` bears has happened."""

    exit_code = ExitCode.RESTART_BUDGET_SPENT
    code = "restart_budget_spent"


class GenerationBroken(EasyScaleError):
    """Raised inside the runtime when a wait of a generation ended without its result.

    It never reaches user code: the runtime catches it at its touch points. `suspects` are the
    process ranks that the wait may have ended for.
    """

    code = "generation_broken"

    def __init__(self, message: str, *, suspects: Sequence[int] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.suspects = tuple(suspects)


class Fenced(EasyScaleError):
    """Raised inside the runtime when a newer generation goes on without this worker."""

    code = "fenced"
