"""The loop of a plain or packed launch: gathers events, asks the pure machine, does what it says.

`easyscale launch` is this node's agent: the loop runs in the main thread of that process.
"""

import contextlib
import json
import logging
import queue
import secrets
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import assert_never

import msgspec

from easyscale.agent.doors.chronicle import Chronicle
from easyscale.agent.doors.door import Door
from easyscale.agent.plain import actions, contract, events, lead, machine
from easyscale.agent.plain.crew import Crew
from easyscale.agent.plain.meeting import LocalMeeting, Meeting
from easyscale.agent.plain.ports import HeldPort
from easyscale.agent.plain.settings import PlainSettings
from easyscale.agent.plain.slot_finder import SlotFinder
from easyscale.agent.plain.state import Now
from easyscale.agent.plain.values import Fault, Offer
from easyscale.agent.plain.view import PlainView
from easyscale.errors import EasyScaleError
from easyscale.reports import (
    Audience,
    EventKind,
    Fact,
    JobEvent,
    Source,
    Stream,
    Summary,
    stamp,
)

log = logging.getLogger(__name__)

_TICK_S = 0.5
#: Passed on to the scripts wherever they do not end the job: schedulers announce an end by them.
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_PARENTS_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


class Failed(msgspec.Struct, frozen=True):
    """A thread of ours met what ends the launch."""

    error: EasyScaleError


def launch(settings: PlainSettings, audience: Audience, *, notes: Sequence[str] = ()) -> int:
    """Be this node's agent until its part in the job ends; returns the exit code.

    Raises EasyScaleError for what makes the launch impossible. Call it in the main thread.
    """
    with contextlib.ExitStack() as undo:
        if settings.meets:
            from easyscale.agent.node_name import claim_name  # noqa: PLC0415 - loads much

            claimed = undo.enter_context(
                claim_name(
                    settings.node_name,
                    job=settings.job_id,
                    endpoints=settings.store.endpoints,
                    is_chosen=settings.node_is_chosen,
                )
            )
            settings = msgspec.structs.replace(settings, node_name=claimed.name)
            notes = (*notes, *filter(None, (claimed.note,)))
        undo.callback(audience.close)
        driver = Driver(settings, audience)
        undo.callback(driver.close)
        return driver.run(notes=notes)


class Driver:
    """One launch: the machine's state and everything that carries out its actions."""

    def __init__(self, settings: PlainSettings, audience: Audience) -> None:
        self._settings = settings
        self._audience = Chronicle(audience)
        self._inbox: queue.SimpleQueue[events.PlainEvent | Failed] = queue.SimpleQueue()
        self._incarnation = secrets.token_hex(4)
        self._state = machine.begin(settings, self._incarnation, _now())
        self._ports: list[HeldPort] = []
        self._address = settings.local_address or "127.0.0.1"
        self._exit: actions.Exit | None = None
        self._crew = Crew(settings, post=self._inbox.put, show=self._show, tell=self._note)
        self._meeting: Meeting = self._open_meeting()
        self._finder = SlotFinder(
            settings, see=self._crew.see_slots, post=self._inbox.put, tell=self._note
        )
        self._view = PlainView(
            self._audience,
            self._crew.logs.kept,
            self._meeting,
            self._finder,
            state=lambda: self._state,
            post=self._inbox.put,
        )
        self._door = Door(self._view, self._audience, environment=settings.environment)

    def run(self, *, notes: Sequence[str]) -> int:
        for number in {*self._settings.stop_signals, *_PASSED_ON}:
            # Under nohup a closed terminal is nothing to end for.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._take_signal)
        self._open_audience(notes)
        self._meeting.start()
        self._finder.start()
        while self._exit is None:
            self._handle(self._next_event())
        log.info("agent ends", extra={"code": self._exit.code, "reason": self._exit.reason})
        return self._exit.code

    def close(self) -> None:
        """End everything this agent started; who watches the job is told first how it ended."""
        if self._exit is not None:
            self._door.say_last_word(code=self._exit.code, reason=self._exit.reason)
        self._door.close()
        self._finder.close()
        self._crew.close()
        self._meeting.close()
        for port in self._ports:
            port.release()
        self._crew.logs.remove_empty()

    def _open_meeting(self) -> Meeting:
        settings = self._settings
        if not settings.meets:
            return LocalMeeting(self._inbox.put, node=settings.node_name)
        from easyscale.agent.plain.etcd_meeting import EtcdMeeting  # noqa: PLC0415 - loads much

        return EtcdMeeting(
            settings,
            lead.terms_of(self._state),
            incarnation=self._incarnation,
            keeper_pid=self._crew.keeper_pid,
            post=self._inbox.put,
            tell=self._note,
            fail=lambda error: self._inbox.put(Failed(error)),
        )

    # --- events --------------------------------------------------------------------------------

    def _take_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._inbox.put(events.Signalled(number=number))

    def _next_event(self) -> events.PlainEvent:
        due_s = machine.deadline(self._state)
        left_s = _TICK_S if due_s is None else due_s - time.monotonic()
        try:
            event = self._inbox.get(timeout=min(left_s, _TICK_S) if left_s > 0 else _TICK_S)
        except queue.Empty:
            return events.Ticked()
        if isinstance(event, Failed):
            raise event.error
        return event

    def _handle(self, event: events.PlainEvent) -> None:
        if isinstance(event, events.Met):
            self._meet(event)
        elif isinstance(event, events.Seen) and event.sight.terms is not None:
            # A job that was begun anew while this node was away has another token.
            self._view.meet(event.sight.terms.token)
        self._state, wanted, reason = machine.step(self._state, event, _now())
        if reason:
            log.info("%s", reason, extra={"event": type(event).__name__})
            self._view.note(type(event).__name__, reason)
        for action in wanted:
            self._perform(action)

    def _meet(self, event: events.Met) -> None:
        """Other nodes can reach this one from now on, and so can who asks about the job."""
        self._address = self._settings.local_address or event.address or self._address
        self._view.meet(event.token)
        if event.token:
            self._door.bind(self._address)
        self._door.open()
        self._perform(actions.Offer(places=self._settings.slots))

    # --- actions -------------------------------------------------------------------------------

    def _perform(self, action: actions.PlainAction) -> None:
        match action:
            case actions.Offer(places=places):
                self._meeting.offer(self._offer(places))
            case actions.Write():
                self._meeting.decide(action)
            case actions.Publish(report=report):
                self._meeting.publish(report)
            case actions.Ask():
                self._meeting.ask(action)
            case actions.Settle():
                self._meeting.settle(action)
            case actions.FindSlots():
                self._finder.grant(action)
            case actions.StartWorkers(round=round_, member=member):
                self._crew.start(round_, member)
                # The next round gets another port: what is left of this one's store may linger.
                self._meeting.offer(self._offer(self._state.places))
            case actions.SignalWorkers(local_ranks=local_ranks, number=number):
                self._crew.signal(local_ranks, number)
            case actions.KillWorkers(local_ranks=local_ranks):
                self._crew.kill(local_ranks)
            case actions.Announce(event=event):
                self._audience.event(event)
            case actions.ReportCause(cause=cause, fault=fault):
                self._hand_error_up(fault)
                self._audience.fail(cause)
            case actions.Conclude(summary=summary):
                self._audience.finish(self._with_logs(summary))
            case actions.Exit():
                self._exit = action
            case _:
                assert_never(action)

    def _offer(self, places: tuple[str, ...]) -> Offer:
        self._ports.append(HeldPort.take())
        while len(self._ports) > 2:  # noqa: PLR2004 - that of the present round, and the next one
            self._ports.pop(0).release()
        return Offer(
            node=self._settings.node_name,
            incarnation=self._incarnation,
            boot_id="",
            host=socket.gethostname(),
            address=self._address,
            slots=(),
            role=self._settings.role,
            places=places,
            port=self._ports[-1].number,
            door=self._door.address,
        )

    def _with_logs(self, summary: Summary) -> Summary:
        kept = any(path.is_file() for path in self._crew.logs.folder.rglob("*"))
        folder = _from_here(self._crew.logs.folder) if kept else ""
        return msgspec.structs.replace(summary, log_dir=folder)

    def _hand_error_up(self, fault: Fault) -> None:
        """Give whoever launched us the error file of the first cause, as torchrun does."""
        wanted = self._settings.environment.get(_PARENTS_ERROR_FILE)
        if not wanted or not fault.error_file or fault.node != self._settings.node_name:
            return
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(Path(fault.error_file).read_bytes())
            if isinstance(content, dict) and isinstance(content.get("message"), dict):
                number = fault.exit_code if fault.signal is None else -fault.signal
                content["message"]["errorCode"] = number
            Path(wanted).write_text(json.dumps(content), encoding="utf-8")

    def _show(self, source: Source, stream: Stream, data: bytes) -> None:
        self._audience.output(source, stream, data, None)

    def _open_audience(self, notes: Sequence[str]) -> None:
        settings = self._settings
        facts: dict[str, Fact] = {
            "node": settings.node_name,
            "mode": "packed" if settings.is_packed else "plain",
        }
        if settings.logical_workers is not None:
            facts["logical_workers"] = settings.logical_workers
        if settings.logs.keeps_output:
            facts["log_dir"] = _from_here(self._crew.logs.folder)
        self._audience.open(job=settings.job_id, facts=facts)
        for text in notes:
            self._note(text)
        if contract.sets_threads(settings):
            self._note("OMP_NUM_THREADS is not set: each worker gets 1 thread")

    def _note(self, text: str) -> None:
        self._audience.event(
            JobEvent(
                at=stamp(time.time()),
                job=self._settings.job_id,
                event=EventKind.NOTE,
                step=None,
                era=1,
                generation=0,
                reason=text,
            )
        )


def _now() -> Now:
    return Now(s=time.monotonic(), wall_s=time.time())


def _from_here(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
