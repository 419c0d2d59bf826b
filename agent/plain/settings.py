"""What a plain or packed launch was asked for, as one frozen value."""

import signal
from collections.abc import Mapping
from enum import IntFlag, StrEnum

import msgspec

from easyscale.agent.settings import StoreSettings
from easyscale.errors import UsageError

#: `watchdog`: a pipe of our own.
NEW_PIPE = "new"
DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class Entry(StrEnum):
    """How SCRIPT is started."""

    PYTHON = "python"
    MODULE = "module"
    PROGRAM = "program"
    RUN_PATH = "run_path"


class Std(IntFlag):
    """Which streams `--redirects` and `--tee` mean."""

    NONE = 0
    OUT = 1
    ERR = 2
    BOTH = 3


class StdChoice(msgspec.Struct, frozen=True):
    """One word for all local ranks, or one for each that is named; others have none."""

    everywhere: Std = Std.NONE
    by_rank: Mapping[int, Std] | None = None

    def of(self, local_rank: int) -> Std:
        if self.by_rank is None:
            return self.everywhere
        return self.by_rank.get(local_rank, Std.NONE)


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the output of workers goes."""

    folder: str
    #: Nobody chose the folder: it goes with the last file in it.
    is_default: bool = False
    redirects: StdChoice = StdChoice()
    tee: StdChoice = StdChoice()
    #: The local ranks whose lines reach the console; None: all.
    shown_ranks: frozenset[int] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()

    @property
    def keeps_output(self) -> bool:
        """Whether anything that workers print goes to files."""
        return any(choice.by_rank or choice.everywhere for choice in (self.redirects, self.tee))


class StaticPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that do not meet: each is told its number and where rank 0 is."""

    nodes: int
    node_rank: int
    master_addr: str
    master_port: int


class PlainSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One launch on one node of a script that does not call easyscale."""

    job_id: str
    node_name: str
    #: The person chose the name: it is refused when taken instead of getting a number.
    node_is_chosen: bool
    entry: Entry
    script: str
    arguments: tuple[str, ...]
    #: The interpreter that runs it.
    python: str
    working_directory: str
    environment: Mapping[str, str]
    #: Workers of this node; in packed mode the slots on which ranks are put.
    slots: tuple[str, ...]
    #: What a worker on a slot sees more than others; by name of the slot.
    slot_environments: Mapping[str, Mapping[str, str]] = {}
    #: The ranks of a packed job; None: a plain one.
    logical_workers: int | None = None
    #: A file that says the slots of a packed job's node and is followed; empty: there is none.
    devices_file: str = ""
    min_nodes: int = 1
    max_nodes: int | None = 1
    #: None: nodes meet at the store, or there is only one.
    static: StaticPlace | None = None
    #: Whether there may be other nodes to meet.
    meets: bool = False
    store: StoreSettings = StoreSettings()
    local_address: str = ""
    role: str = "default"
    max_restarts: int = 0
    logs: LogSettings
    #: A signal that ends the job here; others that a scheduler sends are only passed on.
    stop_signals: tuple[int, ...]
    shutdown_timeout_s: float = 30.0
    virtual_local_rank: bool = False
    #: Workers may set timers that kill them; "" where none may, else the pipe's path or `new`.
    watchdog: str = ""
    #: The cores of each local rank; (): all cores for all.
    cores: tuple[tuple[int, ...], ...] = ()
    join_timeout_s: float = 600.0
    #: Nodes beyond the least are waited for so long after the latest one came.
    last_call_s: float = 3.0

    @property
    def is_packed(self) -> bool:
        return self.logical_workers is not None


def parse_signals(text: str) -> tuple[int, ...]:
    """Read `SIGTERM,SIGINT`; raises UsageError for a word that is no signal."""
    numbers = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        try:
            number = signal.Signals[word]
        except KeyError:
            message = f"--signals-to-handle {text}: {word} is no signal"
            raise UsageError(message, hint=f"--signals-to-handle {DEFAULT_SIGNALS}") from None
        if number in {signal.SIGKILL, signal.SIGSTOP}:
            raise UsageError(f"--signals-to-handle {text}: nobody can handle {word}")
        numbers.append(int(number))
    return tuple(numbers)


def parse_std(text: str, *, option: str) -> StdChoice:
    """Read `3`, or `0:1,12:3` by local rank."""
    hint = f"{option} 3, or {option} 0:1,1:2"
    words = [word.strip() for word in text.split(",")]
    if len(words) == 1 and words[0] in {"0", "1", "2", "3"}:
        return StdChoice(Std(int(words[0])))
    by_rank = {}
    for word in words:
        rank, colon, value = word.partition(":")
        if not (colon and rank.isdecimal() and value in {"0", "1", "2", "3"}):
            raise UsageError(f"{option} {text}: neither 0 to 3 nor RANK:0-3 with commas", hint=hint)
        by_rank[int(rank)] = Std(int(value))
    return StdChoice(by_rank=by_rank)
