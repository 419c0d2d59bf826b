"""Values of plain jobs that tests begin from."""

import signal

import msgspec

from easyscale.agent.plain import machine
from easyscale.agent.plain.actions import PlainAction
from easyscale.agent.plain.court import Decision, Patience, Waited, decide
from easyscale.agent.plain.events import PlainEvent
from easyscale.agent.plain.settings import Entry, LogSettings, PlainSettings
from easyscale.agent.plain.state import Now, State
from easyscale.agent.plain.values import (
    Fault,
    Offer,
    Outcome,
    Report,
    ReportState,
    Round,
    Sight,
    Terms,
)

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
LONG_S = 1e6


def settings(**changes: object) -> PlainSettings:
    base = PlainSettings(
        job_id="job",
        node_name="a",
        node_is_chosen=False,
        entry=Entry.PYTHON,
        script="train.py",
        arguments=("--lr", "0.1"),
        python="/usr/bin/python3",
        working_directory="/work",
        environment={"HOME": "/home/someone"},
        slots=("local:0", "local:1"),
        logs=LogSettings(folder="logs"),
        stop_signals=tuple(int(number) for number in STOP_SIGNALS),
    )
    return msgspec.structs.replace(base, **changes)


def offer(node: str, *, workers: int = 2, role: str = "default", life: str = "1") -> Offer:
    return Offer(
        node=node,
        incarnation=life,
        boot_id="",
        host=node,
        address=f"{node}.net",
        slots=(),
        role=role,
        places=tuple(f"local:{n}" for n in range(workers)),
        port=4000 + int(life),
    )


def terms(
    least: int = 1, most: int | None = 1, *, restarts: int = 0, packed: int | None = None
) -> Terms:
    return Terms(min_nodes=least, max_nodes=most, max_restarts=restarts, logical_workers=packed)


def fault(rank: int = 0, *, node: str = "a", **changes: object) -> Fault:
    base = Fault(
        headline="ValueError: no",
        rank=rank,
        node=node,
        pid=100 + rank,
        exit_code=1,
        signal=None,
        log="",
    )
    return msgspec.structs.replace(base, **changes)


def report(
    round_: Round, state: ReportState, *, life: str = "1", failed: Fault | None = None
) -> Report:
    return Report(round=round_.number, incarnation=life, state=state, fault=failed)


def decided(
    sight: Sight, wanted: Terms, *, quiet_s: float = LONG_S, short_s: float = 0.0
) -> Decision:
    """What the leader says, with the usual patience."""
    patience = Patience(join_timeout_s=600.0, last_call_s=3.0)
    return decide(sight, wanted, Waited(quiet_s=quiet_s, short_s=short_s), patience)


def round_of(sight: Sight, wanted: Terms) -> Round:
    found = decided(sight, wanted)
    assert isinstance(found, Round)
    return found


def outcome_of(sight: Sight, wanted: Terms) -> Outcome:
    found = decided(sight, wanted)
    assert isinstance(found, Outcome)
    return found


class Agent:
    """A machine under test: feed it events, look at what it does."""

    def __init__(self, wanted: PlainSettings, *, life: str = "1", now: float = 0.0) -> None:
        self.now = now
        self.state: State = machine.begin(wanted, life, Now(s=now, wall_s=now))

    def feed(self, event: PlainEvent, *, after_s: float = 0.0) -> list[PlainAction]:
        self.now += after_s
        self.state, done, _ = machine.step(self.state, event, Now(s=self.now, wall_s=self.now))
        return list(done)
