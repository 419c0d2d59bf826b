"""Kills a member of a real group at a chosen moment and lets the others go on, again and again.

One process imports torch and runs no kernel; every member is forked from it. Run as
`python -m tests.support.drill NAME`, it prints one JSON line per moment.
"""

import hashlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from easyscale.errors import GenerationBroken
from easyscale.model import Commit, GenerationNumber, Mode, Span, decode, encode
from easyscale.runtime import tree
from easyscale.runtime.buckets import TensorLayout
from easyscale.runtime.entry import Arrival, EntryLayout, arrange
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Group, Membership, Wait, form
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.partials import Partials
from easyscale.runtime.record import Record
from tests.support import members

SHAPES = ((40,), (3, 7), (25,))
STEPS = 4
#: The step in which the fault is injected: the third, whose exchange starts during backward.
FAULTY = 2
LAYOUTS = {
    "pairs": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "scattered": [[0, 3], [1, 4], [2]],
}
#: Calls of the transport in one step that starts early: header, two buckets (six cells to receive
#: and six to send, or all-to-all and all-gather), header, buffers.
CALLS = {"pairs": 27, "scattered": 7}
KILLS = {"pairs": (-1, 0, 1, 7, 10, 13, 22, 26), "scattered": (-1, 0, 1, 2, 3, 5, 6)}
STOPS = {"pairs": (0, 10), "scattered": (1, 4)}
#: Exit code of a member that finds the others have gone on without it.
FENCED = 7
NONE = GenerationNumber(0, 0)
CPU = [torch.device("cpu")] * len(SHAPES)


def leaf(rank: int, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) * 10.0**rank for shape in SHAPES]


def buffer_of(step: int) -> list[torch.Tensor]:
    return [torch.full((3,), 1.5 * step)]


def digest(tensors: Sequence[torch.Tensor | None]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        assert tensor is not None
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()


class Lines:
    """JSON lines over a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""

    def send(self, **message: object) -> None:
        self._end.sendall(json.dumps(message).encode() + b"\n")

    def ready(self, timeout_s: float = 0.0) -> bool:
        return b"\n" in self._rest or bool(select.select([self._end], [], [], timeout_s)[0])

    def receive(self) -> dict[str, Any]:
        while b"\n" not in self._rest:
            part = self._end.recv(1 << 16)
            if not part:
                raise EOFError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


@dataclass
class Fault:
    """What happens to one member in the faulty step."""

    victim: int
    #: Kill it before the n-th call of its transport; -1 kills it when it holds the result.
    call: int = 0
    #: Do not kill it: throw its result away, as if its last receive had failed.
    loses: bool = False
    #: Stop it instead, and wake it when the others have gone on without it.
    stops: bool = False


class Counting:
    """A transport that dies or freezes before its n-th call."""

    def __init__(self, inner: Any) -> None:  # noqa: ANN401  stands before any transport
        self._inner = inner
        self.left: int | None = None
        self.signal = signal.SIGKILL

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        found = getattr(self._inner, name)
        if not callable(found):
            return found
        if self.left is not None:
            if self.left == 0:
                os.kill(os.getpid(), self.signal)
            self.left -= 1
        return found


@dataclass
class Drilled:
    """One member's life."""

    rank: int
    lines: Lines
    fault: Fault
    n: int
    parameters: list[torch.nn.Parameter] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    record: Record | None = None
    partials: Partials | None = None
    formed: GenerationNumber = NONE
    commit: Commit | None = None
    told: Commit | None = None
    calls: int = 0

    def live(self) -> None:
        self.parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        listener = members.listen(self.rank)
        self.lines.send(address=listener.address)
        self.told = decode(self.lines.receive()["commit"], Commit, source="the parent")
        while len(self.digests) < STEPS:
            self.commit = self.told
            try:
                self.run(form(self.membership, listener=listener, wait=self.wait))
            except GenerationBroken as error:
                self.lines.send(broken=list(error.suspects), at=time.monotonic())
                while self.told is self.commit:
                    self.hear(timeout_s=20.0)
                assert self.told is not None
                if self.told.process_rank(members.worker(self.rank)) is None:
                    os._exit(FENCED)
        self.lines.send(digests=self.digests, calls=self.calls)
        self.lines.receive()
        os._exit(0)

    @property
    def membership(self) -> Membership:
        assert self.commit is not None
        return Membership(self.commit, members.worker(self.rank), members.TOKEN)

    @property
    def wait(self) -> Wait:
        return Wait(timeout_s=20.0, interrupt=self.interrupted)

    def interrupted(self) -> str | None:
        self.hear(timeout_s=0.0)
        return "a newer commit came" if self.told is not self.commit else None

    def hear(self, *, timeout_s: float) -> None:
        if self.lines.ready(timeout_s):
            self.told = decode(self.lines.receive()["commit"], Commit, source="the parent")

    def run(self, group: Group) -> None:
        layout = TensorLayout.of(
            [(f"p{index}", parameter) for index, parameter in enumerate(self.parameters)],
            [("b", torch.zeros(3))],
        )
        group._transport = Counting(group._transport)
        exchange = Exchange(group, layout=layout, n=self.n, bucket_elements=30)
        entry = self.enter(exchange)
        self.formed = group.membership.generation
        compute, spans = entry.compute, entry.spans
        while len(self.digests) < STEPS:
            self.step(exchange, compute[group.rank], spans)
            assert self.commit is not None
            compute = tuple(tuple(map(int, member.ranks)) for member in self.commit.members)
            spans = tuple(tree.maximal_subtrees(share, self.n) for share in compute)
        exchange.close()

    def enter(self, exchange: Exchange) -> EntryLayout:
        assert self.commit is not None
        arrival = Arrival(
            worker=members.worker(self.rank),
            has_state=True,
            position=len(self.digests),
            held=self.partials.held if self.partials else (),
            formed=self.formed,
            has_record=self.record is not None and self.record.is_intact,
            newest=self.commit.generation,
        )
        note = Note(newest=self.commit.generation, payload=arrival.to_bytes())
        said = exchange.gather(Operation(OperationKind.ENTRY, 0), note, wait=self.wait)
        arrivals = [decode(one, Arrival, source="a member") for one in said.payloads]
        owners = {
            int(rank): process
            for process, member in enumerate(self.commit.members)
            for rank in member.ranks
        }
        entry = arrange(
            arrivals,
            owners=[owners[rank] for rank in range(self.n)],
            generation=self.commit.generation,
            mode=Mode.NOW,
        )
        assert isinstance(entry, EntryLayout), entry
        if self.partials is None:
            self.partials = Partials(self.n)
        me = exchange.group.rank
        self.partials.drop(entry.drop[me])
        if me == entry.record_from:
            assert self.record is not None
            exchange.serve_record(self.record, entry.record_to, wait=self.wait)
        elif me in entry.record_to:
            assert entry.record_from is not None
            self.take(exchange.receive_record(entry.record_from, wait=self.wait))
        return entry

    def step(
        self,
        exchange: Exchange,
        ranks: Sequence[int],
        spans: tuple[tuple[Span, ...], ...],
    ) -> None:
        number = len(self.digests)
        me = exchange.group.rank
        partials = self.partials = self.partials or Partials(self.n)
        last = ranks[-1] if ranks else None
        for rank in ranks[:-1]:
            partials.push(rank, self.micro_step(rank, number), factor=1 / self.n)
        operation = Operation(OperationKind.STEP, number, spans)
        counting: Any = exchange.group.transport
        is_faulty = self.fault.victim == self.rank and number == FAULTY
        if is_faulty and not self.fault.loses and self.fault.call >= 0:
            counting.left = self.fault.call
            counting.signal = signal.SIGSTOP if self.fault.stops else signal.SIGKILL
        elif is_faulty:
            counting.left = 10**6
        watched = exchange.overlap(
            operation, partials, rank=last, factor=1 / self.n, parameters=self.parameters
        )
        if last is not None:
            with watched:
                gradients = self.micro_step(last, number)
            partials.defer(last, gradients, factor=1 / self.n)
        holds_first = any(span.lo == 0 for span in spans[me])
        record = exchange.step(
            operation,
            partials,
            Note(newest=exchange.group.membership.generation),
            buffers=buffer_of(number) if holds_first else None,
            wait=self.wait,
        )
        if is_faulty:
            self.calls = 10**6 - counting.left
            counting.left = None
            if self.fault.loses:
                exchange.abandon()
                self.fault.victim = -1
                raise GenerationBroken("the result was lost")
            if self.fault.call < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        self.take(record)

    def micro_step(self, rank: int, number: int) -> list[torch.Tensor | None]:
        loss = sum(
            (parameter * value).sum()
            for parameter, value in zip(self.parameters, leaf(rank, number), strict=True)
        )
        assert isinstance(loss, torch.Tensor)
        torch.autograd.backward(loss)
        gradients = [parameter.grad for parameter in self.parameters]
        for parameter in self.parameters:
            parameter.grad = None
        return gradients

    def take(self, record: Record) -> None:
        assert record.position == len(self.digests)
        self.record = record
        gradients = [*record.gradients(CPU), *record.buffers(CPU[:1])]
        self.digests.append(digest(gradients))
        for gradient in gradients:
            if gradient is not None:
                gradient.zero_()  # as clipping may: the record must not notice
        assert self.partials is not None
        self.partials.clear()


def expected(n: int) -> list[str]:
    found = []
    for step in range(STEPS):
        partials = Partials(n)
        for rank in range(n):
            partials.push(rank, leaf(rank, step), factor=1 / n)
        found.append(digest([*partials.take(), *buffer_of(step)]))
    return found


def expectation(n: int) -> list[str]:
    """Compute the digests in a child: the parent of forks runs no kernel."""
    read, write = os.pipe()
    if not (child := os.fork()):
        os.write(write, json.dumps(expected(n)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as end:
        found: list[str] = json.loads(end.read())
    os.waitpid(child, 0)
    return found


def drill(shares: Sequence[Sequence[int]], fault: Fault) -> dict[str, Any]:
    """Run one group through one fault and tell what became of it."""
    n, size = sum(map(len, shares)), len(shares)
    children: dict[int, int] = {}
    lines: dict[int, Lines] = {}
    for rank in range(size):
        ours, theirs = socket.socketpair()
        if not (child := os.fork()):
            signal.alarm(30)
            ours.close()
            try:
                Drilled(rank, Lines(theirs), fault, n).live()
            except BaseException:  # noqa: BLE001  a child never returns to the parent's code
                sys.excepthook(*sys.exc_info())
            os._exit(1)
        theirs.close()
        children[rank], lines[rank] = child, Lines(ours)
    addresses = [lines[rank].receive()["address"] for rank in range(size)]
    record = members.commit(addresses, shares=shares)
    for rank in range(size):
        lines[rank].send(commit=encode(record))
    living = list(range(size))
    died = time.monotonic()
    if not fault.loses:
        _, status = os.waitpid(children[fault.victim], os.WUNTRACED)
        told_by = os.WSTOPSIG(status) if fault.stops else os.WTERMSIG(status)
        assert told_by == (signal.SIGSTOP if fault.stops else signal.SIGKILL), status
        died = time.monotonic()
        living.remove(fault.victim)
    else:
        lines[fault.victim].receive()
    dealt: list[list[int]] = [[] for _ in living]
    for rank in range(n):
        dealt[rank % len(living)].append(rank)
    full = members.commit(
        [addresses[rank] for rank in living],
        generation=GenerationNumber(1, 2),
        shares=dealt,
        ranks=living,
    )
    # The plan may come before a survivor notices: both roads out of a wait are taken.
    time.sleep(0.02 if fault.call % 2 else 0.0)
    for rank in living:
        lines[rank].send(commit=encode(full))
    if fault.stops:
        lines[fault.victim].send(commit=encode(full))
        # Awake in the middle of what the others do next: it must not reach their buffers.
        time.sleep(0.03)
        os.kill(children[fault.victim], signal.SIGCONT)
    results = {rank: _result(lines[rank]) for rank in living}
    for rank in living:
        lines[rank].send()
        os.waitpid(children.pop(rank), 0)
    fenced = False
    if fault.stops:
        _, status = os.waitpid(children[fault.victim], 0)
        fenced = os.waitstatus_to_exitcode(status) == FENCED
    return {
        "fenced": fenced,
        "stops": fault.stops,
        "victim": fault.victim,
        "call": fault.call,
        "loses": fault.loses,
        "right": all(result["digests"] == EXPECTED[n] for result in results.values()),
        "finished": len(results),
        "calls": max(result["calls"] for result in results.values()),
        "suspects": sorted({one for result in results.values() for one in result["suspects"]}),
        "noticed_s": max(result["at"] for result in results.values()) - died,
    }


def _result(lines: Lines) -> dict[str, Any]:
    suspects: list[int] = []
    at = 0.0
    while True:
        message = lines.receive()
        if "digests" in message:
            return {**message, "suspects": suspects, "at": at}
        suspects += message["broken"]
        at = message["at"]


EXPECTED: dict[int, list[str]] = {}


def main(name: str) -> None:
    torch.set_num_threads(1)
    shares = LAYOUTS[name]
    n = sum(map(len, shares))
    EXPECTED[n] = expectation(n)
    for fault in faults(name):
        print(json.dumps(drill(shares, fault)), flush=True)


def faults(name: str) -> list[Fault]:
    """One lost result, then stops and kills at moments between the calls of the transport."""
    size = len(LAYOUTS[name])
    return [
        Fault(size - 1, loses=True),
        *(Fault(call % size, call, stops=True) for call in STOPS[name]),
        *(Fault(call % size, call) for call in KILLS[name]),
    ]


if __name__ == "__main__":
    main(sys.argv[1])
