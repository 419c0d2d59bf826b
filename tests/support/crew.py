"""Plays the agent for real workers: a real zygote forks them, this end commits generations.

with Crew(zygote, tmp_path, script, logical_workers=8) as crew:
    a, b = crew.start("a"), crew.start("b")
    crew.registered(a, b)
    crew.commit(Mode.RESTORE, {0: range(4), 1: range(4, 8)})
    assert len(crew.finished(a, b)) == 1
"""

import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from easyscale import messages
from easyscale.messages import ForkRequest, FromWorker, FromZygote, ScriptTarget, WorkerSettings
from easyscale.model import (
    Commit,
    Determinism,
    GenerationNumber,
    LogicalRank,
    Member,
    Mode,
    SnapshotReference,
    WorkerId,
)
from easyscale.pulse import Beat, Pulse

M = TypeVar("M")

DEADLINE_S = 60.0
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(slots=True)
class Hand:
    """One worker as its agent sees it."""

    worker: WorkerId
    connection: socket.socket
    pulse: Pulse
    output: Path
    said: list[FromWorker] = field(default_factory=list)
    pid: int = 0
    #: What waitpid gave; None while it lives.
    status: int | None = None
    pending: bytearray = field(default_factory=bytearray)

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.said if isinstance(message, kind)]

    def last(self, kind: type[M]) -> M | None:
        return next(iter(reversed(self.all(kind))), None)

    @property
    def beat(self) -> Beat:
        return self.pulse.read()

    @property
    def text(self) -> str:
        return self.output.read_text()


class Zygote:
    """A real zygote, which several crews may use one after the other: it imports torch once."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        self._pending = bytearray()
        # More workers than cores: it imports for all of them what an optimizer needs.
        parent = ("--parent", str(os.getpid()), "--workers", "99")
        program = (sys.executable, "-P", "-m", "easyscale.runtime.zygote")
        self._process = subprocess.Popen(
            (*program, str(theirs.fileno()), *parent),
            pass_fds=[theirs.fileno()],
            env={**os.environ, **_ENVIRONMENT},
        )
        theirs.close()

    def close(self) -> None:
        self.control.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def replies(self) -> list[FromZygote]:
        """What it has said; blocks until there is something."""
        data = self.control.recv(1 << 16)
        if not data:
            raise AssertionError("the zygote ended")
        *lines, rest = (bytes(self._pending) + data).split(b"\n")
        self._pending = bytearray(rest)
        return [msgspec.json.decode(line, type=FromZygote) for line in lines]


class Crew:
    """Workers of one script; whatever is left of them is killed at the end."""

    def __init__(
        self, zygote: Zygote, folder: Path, script: Path, *arguments: str, **settings: object
    ) -> None:
        self._zygote = zygote
        self._folder = folder
        self._script = ScriptTarget(path=str(script), arguments=arguments)
        self._settings = settings
        self.snapshots = folder / "snapshots"
        self.hands: list[Hand] = []
        self.generation = GenerationNumber(1, 0)
        self.main: WorkerId | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(zygote.control, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hand in self.hands:
            if hand.status is None and hand.pid:
                self.kill(hand)
        self.ended(*self.hands)
        self._selector.close()
        for hand in self.hands:
            hand.connection.close()
            hand.pulse.close()

    def start(
        self, node: str, *, spawn: int = 0, words: tuple[str, ...] = (), **settings: object
    ) -> Hand:
        """Fork a worker; it runs the script, with `words` of its own, up to `register`."""
        worker = WorkerId(node, "i1", "cpu:0", spawn)
        ours, theirs = socket.socketpair()
        page = Pulse.allocate()
        output = self._folder / f"{node}-{spawn}.log"
        log = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
        request = ForkRequest(
            settings=self._worker_settings(worker, settings),
            script=msgspec.structs.replace(
                self._script, arguments=(*self._script.arguments, *words)
            ),
            environment={},
            working_directory=str(self._folder),
        )
        data = msgspec.json.encode(request) + b"\n"
        socket.send_fds(self._zygote.control, [data], [theirs.fileno(), log, log, page])
        hand = Hand(worker, ours, Pulse.attach(page), output)
        for descriptor in (log, page):
            os.close(descriptor)
        theirs.close()
        self.hands.append(hand)
        self._selector.register(ours, selectors.EVENT_READ, hand)
        return hand

    def at_step(self, step: int, *hands: Hand) -> None:
        """Wait until these workers are in that step, or past it."""
        for hand in hands:
            self.until(
                lambda hand=hand: hand.beat.step >= step or hand.status is not None,  # type: ignore[misc]
                f"{hand.worker.node} at step {step}",
            )

    def registered(self, *hands: Hand) -> None:
        for hand in hands:
            self.until(lambda hand=hand: bool(hand.all(messages.Registered)), "registered")  # type: ignore[misc]

    def commit(
        self,
        mode: Mode,
        shares: Mapping[int, Iterable[int]] | None,
        *,
        to: Iterable[Hand] | None = None,
        snapshot: SnapshotReference | None = None,
    ) -> Commit:
        """Commit the next generation; `shares` by index of the hand, None pauses the job."""
        number = self.generation.number + 1
        self.generation = GenerationNumber(self.generation.era, number)
        members = tuple(
            Member(
                self.hands[index].worker,
                self.hands[index].all(messages.Registered)[0].address,
                tuple(LogicalRank(rank) for rank in ranks),
            )
            for index, ranks in (shares or {}).items()
        )
        workers = [member.worker for member in members]
        if members and self.main not in workers:
            self.main = next((one.worker for one in members if 0 in one.ranks), workers[0])
        record = Commit(
            generation=self.generation,
            mode=mode,
            members=members,
            main=self.main,
            reason=f"a test commits {mode}",
            snapshot=snapshot,
        )
        for hand in self.hands if to is None else to:
            self.send(hand, messages.Committed(commit=record))
        return record

    def entered(self, commit: Commit) -> None:
        """Wait until every member has entered."""
        for hand in self.hands:
            if hand.worker in commit.workers:
                self.until(
                    lambda hand=hand: any(  # type: ignore[misc]
                        said.generation == commit.generation for said in hand.all(messages.Entered)
                    ),
                    f"{hand.worker.node} entered {commit.generation}",
                )

    def send(self, hand: Hand, message: messages.ToWorker) -> None:
        if hand.status is None:
            hand.connection.sendall(messages.encode_line(message))

    def kill(self, hand: Hand, number: int = signal.SIGKILL) -> None:
        os.kill(hand.pid, number)

    def ended(self, *hands: Hand) -> None:
        for hand in hands:
            self.until(lambda hand=hand: hand.status is not None, f"{hand.worker.node} ended")  # type: ignore[misc]

    def finished(self, *hands: Hand) -> set[str]:
        """Wait for the end of these workers; returns the digests that they gave."""
        self.ended(*hands)
        for hand in hands:
            if hand.status != 0:
                raise AssertionError(f"{hand.worker.node} ended with {hand.status}\n{self.story()}")
        return {one.digest for hand in hands for one in hand.all(messages.Finished)}

    def until(
        self, condition: Callable[[], bool], name: str, *, within_s: float = DEADLINE_S
    ) -> None:
        """Gather what is said until the condition holds."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {name}\n{self.story()}")
            for key, _ in self._selector.select(0.02):
                if key.data is None:
                    self._hear_zygote()
                else:
                    self._hear(key.data)

    def story(self) -> str:
        """Everything that was said, for a test that failed."""
        lines = []
        for hand in self.hands:
            lines.append(f"--- {hand.worker.node} status {hand.status} {hand.beat}")
            lines += [f"  {message}"[:1500] for message in hand.said[-12:]]
            lines.append(hand.text[-3000:])
        return "\n".join(lines)

    def _hear(self, hand: Hand) -> None:
        try:
            data = hand.connection.recv(1 << 16)
        except ConnectionError:
            data = b""
        if not data:
            self._selector.unregister(hand.connection)
            return
        *lines, rest = (bytes(hand.pending) + data).split(b"\n")
        hand.pending = bytearray(rest)
        for line in lines:
            message = messages.decode_from_worker(line)
            hand.said.append(message)

    def _hear_zygote(self) -> None:
        for reply in self._zygote.replies():
            match reply:
                case messages.Forked(worker=worker, pid=pid):
                    self._hand(worker).pid = pid
                case messages.Exited(worker=worker, status=status):
                    self._hand(worker).status = status
                case messages.ForkRefused(reason=reason):
                    raise AssertionError(reason)
                case _:
                    pass

    def _hand(self, worker: WorkerId) -> Hand:
        return next(hand for hand in self.hands if hand.worker == worker)

    def _worker_settings(self, worker: WorkerId, own: Mapping[str, object]) -> WorkerSettings:
        values: dict[str, Any] = {
            "job_id": "job-of-a-test",
            "token": "token-of-a-test",
            "local_host": "127.0.0.1",
            "logical_workers": 8,
            "seed": None,
            "determinism": Determinism.SAME_KIND,
            "threads_per_worker": 1,
            "partials": "device",
            "snapshot_dir": str(self.snapshots),
            "snapshot_every_steps": None,
            "snapshot_every_s": None,
            "forming_timeout_s": 10.0,
            "exchange_deadline_s": 15.0,
            "linger_timeout_s": 10.0,
        }
        return WorkerSettings(worker=worker, **{**values, **self._settings, **own})


def alone(script: Path, folder: Path, *words: str) -> str:
    """The digest that the script prints when one plain process runs it."""
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    found = re.search(r"digest (\w+)", done.stdout)
    assert found is not None
    return found[1]
