"""Carries the operations of one generation through its group: headers, sums, records.

One exchange thread makes all blocking calls in a fixed order; the main thread waits for it with a
deadline and an interrupt, and when it gives up, the thread and its buffers are left for ever.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import torch

from easyscale.errors import GenerationBroken
from easyscale.model import GenerationNumber, Span
from easyscale.runtime import headers
from easyscale.runtime.buckets import BUCKET_ELEMENTS, TensorLayout, plan_buckets
from easyscale.runtime.group import Group, Wait, await_event
from easyscale.runtime.headers import Header, Operation, OperationKind, Words
from easyscale.runtime.overlap import Overlap
from easyscale.runtime.partials import Partials
from easyscale.runtime.record import (
    Alone,
    Held,
    Record,
    RecordHead,
    buffer_bytes,
    head_of,
    pack_buffers,
)
from easyscale.runtime.reduction import Fill, Reduction

T = TypeVar("T")

#: How long the listeners of the others may take to tell who a broken wait ended for.
SUSPECT_TIMEOUT_S = 0.05
_HEAD_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What this member says in an operation's header."""

    #: The newest commit it knows.
    newest: GenerationNumber
    weighted: bool = False
    #: What every process must have alike: values of optimizers, bits of weights.
    steering: bytes = b""
    payload: bytes = b""


class _GivenUp(Exception):
    """Ends the exchange thread: the main thread has left this generation."""


@dataclass(slots=True)
class _Task:
    """One piece of work for the exchange thread."""

    work: Callable[[], object]
    done: threading.Event = field(default_factory=threading.Event)
    result: object = None
    error: BaseException | None = None


@dataclass(slots=True)
class _Turn:
    """A step under way: begun early by `overlap`, or whole when `step` is called."""

    operation: Operation
    partials: Partials
    overlap: Overlap
    early: bool
    note: Note | None = None
    buffers: Sequence[torch.Tensor] | None = None
    #: The last micro-step is over and the note is said.
    closing: threading.Event = field(default_factory=threading.Event)
    task: _Task | None = None


class Exchange:
    """All operations of one generation, in order; made anew for each generation."""

    def __init__(
        self,
        group: Group,
        *,
        layout: TensorLayout,
        n: int,
        bucket_elements: int = BUCKET_ELEMENTS,
    ) -> None:
        self.group = group
        self._layout = layout
        self._n = n
        self._buckets = plan_buckets(layout, bucket_elements)
        self._lock = threading.Lock()
        self._given_up = False
        self._may_overlap = False
        #: Begun by `overlap`, not yet ended by `step`.
        self._turn: _Turn | None = None
        #: Under way in the exchange thread.
        self._running: _Turn | None = None
        self._last: Record | None = None
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._reduction: Reduction | None = None
        self._buffers = torch.zeros(buffer_bytes(layout), dtype=torch.uint8)
        if group.size > 1:
            self._reduction = Reduction(group.transport, self._buckets, n)
            name = f"exchange {group.membership.generation}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    # --- what the main thread calls ---------------------------------------------------------------

    def overlap(
        self,
        operation: Operation,
        partials: Partials,
        *,
        rank: int | None,
        factor: float,
        parameters: Sequence[torch.nn.Parameter],
    ) -> Overlap:
        """Watch the last local micro-step; enter the result around its forward and backward.

        Where the steps before allow it, buckets are exchanged while it runs. `rank` is None in a
        process without logical workers. `step` must follow for the same operation, and the
        micro-step's gradients must be deferred, not pushed.
        """
        watched = Overlap(self._buckets, parameters, rank=rank, factor=factor)
        early = self._may_overlap and self.group.size > 1
        self._turn = _Turn(operation, partials, watched, early)
        if early:
            self._begin(self._turn)
        return watched

    def step(
        self,
        operation: Operation,
        partials: Partials,
        note: Note,
        *,
        buffers: Sequence[torch.Tensor] | None,
        wait: Wait,
    ) -> Record:
        """Reduce the step's gradients; the whole record is held when this returns.

        `buffers` are logical rank 0's, given by the process that holds it. The partial sums stay
        untouched; raises GenerationBroken when the wait ends otherwise.
        """
        turn = self._turn
        self._turn = None
        if turn is None:
            unseen = Overlap(self._buckets, (), rank=None, factor=1.0)
            unseen.had_one_backward = not operation.spans[self.group.rank]
            turn = _Turn(operation, partials, unseen, early=False)
        if turn.operation != operation or turn.partials is not partials:
            raise ValueError(f"{turn.operation.name} was begun, {operation.name} is ended")
        self._check_held(operation, partials)
        if turn.overlap.rank is not None:
            turn.overlap.finish(partials.deferred(turn.overlap.rank) or [])
        turn.note, turn.buffers = note, buffers
        if self.group.size == 1:
            return self._step_alone(turn, note)
        turn.closing.set()
        if turn.task is None:
            partials.settle()
            task = self._begin(turn)
        else:
            task = turn.task
        record = self._await(task, wait, Record, name=operation.name)
        # The last micro-step's gradients are not kept beyond their step.
        self._running = None
        return record

    def gather(self, operation: Operation, note: Note, *, wait: Wait) -> Record:
        """Give everybody's payload to everybody: evaluation, end of training, entry."""
        if self.group.size == 1:
            head = head_of(
                operation,
                newest=[note.newest],
                weighted=[note.weighted],
                present=(),
                payloads=[note.payload],
            )
            return Record(head, [note.payload], self._layout)
        task = self._submit(lambda: self._run_gather(operation, note))
        return self._await(task, wait, Record, name=operation.name)

    def serve_record(self, record: Record, to: Sequence[int], *, wait: Wait) -> None:
        """Send the last record to members that are one operation behind."""
        task = self._submit(lambda: self._send_record(record, to))
        self._await(
            task, wait, type(None), name=f"serving the record of position {record.position}"
        )

    def receive_record(self, source: int, *, wait: Wait) -> Record:
        """Take the record of the operation that this member did not complete."""
        task = self._submit(lambda: self._receive_record(source))
        return self._await(task, wait, Record, name=f"taking a record from process {source}")

    def abandon(self) -> None:
        """Leave everything under way, for ever; partial sums may be changed from here on."""
        with self._lock:
            self._given_up = True
        if self._running is not None:
            self._running.overlap.give_up()
            self._running.closing.set()
        self._tasks.put(None)
        self.group.abandon()

    def close(self) -> None:
        """End the exchange thread; nothing may be under way."""
        self._tasks.put(None)

    # --- waiting ----------------------------------------------------------------------------------

    def _begin(self, turn: _Turn) -> _Task:
        self._running = turn
        turn.task = self._submit(lambda: self._run_step(turn))
        return turn.task

    def _submit(self, work: Callable[[], object]) -> _Task:
        task = _Task(work)
        self._tasks.put(task)
        return task

    def _await(self, task: _Task, wait: Wait, form: type[T], *, name: str) -> T:
        try:
            await_event(task.done, wait, name=name)
        except TimeoutError as error:
            self.abandon()
            found = self.group.probe()
            raise GenerationBroken(str(error), suspects=(*found.refused, *found.silent)) from None
        except BaseException:
            self.abandon()
            raise
        if isinstance(task.error, GenerationBroken):
            self.abandon()
            # Who is dead refuses at once; who is silent for so short a time may be busy.
            found = self.group.probe(timeout_s=SUSPECT_TIMEOUT_S)
            raise GenerationBroken(f"{name}: {task.error}", suspects=found.refused) from task.error
        if task.error is not None:
            # Raised between two calls of the transport: nothing of ours is under way.
            self.close()
            raise task.error
        assert isinstance(task.result, form)
        return task.result

    def _check_held(self, operation: Operation, partials: Partials) -> None:
        expected = operation.spans[self.group.rank]
        if partials.held != expected:
            raise ValueError(f"{operation.name} needs {expected}, held are {partials.held}")

    # --- in the exchange thread -------------------------------------------------------------------

    @torch.no_grad()
    def _serve(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task.result = task.work()
            except _GivenUp:
                return
            except BaseException as error:  # noqa: BLE001  raised again in the main thread
                task.error = error
            task.done.set()

    @contextmanager
    def _not_given_up(self) -> Iterator[None]:
        """Hold off `abandon` while what belongs to the main thread is read or changed."""
        with self._lock:
            if self._given_up:
                raise _GivenUp
            yield

    def _run_gather(self, operation: Operation, note: Note) -> Record:
        header = msgspec.structs.replace(
            self._header(operation, note.newest, weighted=note.weighted),
            steering=headers.steering_digest(note.steering),
        )
        words = self._say(header, note.payload)
        headers.check_steering(self.group.transport, note.steering, words, self._places())
        return Record(self._head(operation, words), [said.payload for said in words], self._layout)

    def _run_step(self, turn: _Turn) -> Record:
        words = self._say(*self._opening(turn) if turn.early else self._closing(turn))
        early = [said.header.early for said in words]
        with self._not_given_up():
            if self._last is not None:
                self._last.is_intact = False
        expected = self._present(words)
        if all(early):
            self._reduce_all(turn, expected, lambda number: self._fill_early(turn, number))
        if any(early):
            turn.closing.wait()
            words = self._say(*self._closing(turn))
        self._check_steering(turn, words)
        present = self._present(words)
        wrong = any(said.header.dirty for said in words) or any(
            there and not hoped for there, hoped in zip(present, expected, strict=True)
        )
        if not all(early) or wrong:
            with self._not_given_up():
                turn.partials.settle()
            self._reduce_all(turn, present, lambda number: self._fill_settled(turn, number))
        self._share_buffers(turn)
        self._may_overlap = all(said.header.may_overlap for said in words)
        assert self._reduction is not None
        tensors = Held(self._buckets, self._reduction.flats, self._reduction.views, self._buffers)
        head = self._head(turn.operation, words)
        self._last = Record(head, [said.payload for said in words], self._layout, tensors)
        return self._last

    def _say(self, header: Header, payload: bytes) -> tuple[Words, ...]:
        transport = self.group.transport
        words = headers.gather(transport, Words(header, payload))
        headers.check(transport, self._layout, words, self._places())
        return words

    def _check_steering(self, turn: _Turn, words: Sequence[Words]) -> None:
        with self._not_given_up():
            note = turn.note
        assert note is not None
        headers.check_steering(self.group.transport, note.steering, words, self._places())

    def _places(self) -> list[str]:
        return [self.group.membership.place(rank) for rank in range(self.group.size)]

    def _header(
        self, operation: Operation, newest: GenerationNumber, *, weighted: bool = False
    ) -> Header:
        return Header(
            kind=operation.kind,
            position=operation.position,
            newest=newest,
            layout=self._layout.digest,
            spans=operation.spans_digest,
            weighted=weighted,
        )

    def _opening(self, turn: _Turn) -> tuple[Header, bytes]:
        with self._not_given_up():
            presence = turn.partials.presence or (False,) * len(self._layout.parameters)
        # What is trained may yet get a gradient; what is not, and has none, need not travel.
        expected = [
            there or trained for there, trained in zip(presence, turn.overlap.trained, strict=True)
        ]
        header = self._header(turn.operation, self.group.membership.generation)
        mask = headers.mask_text(expected)
        return msgspec.structs.replace(header, early=True, present=mask), b""

    def _closing(self, turn: _Turn) -> tuple[Header, bytes]:
        with self._not_given_up():
            note, presence = turn.note, turn.partials.presence
        assert note is not None
        watched = turn.overlap
        header = msgspec.structs.replace(
            self._header(turn.operation, note.newest, weighted=note.weighted),
            steering=headers.steering_digest(note.steering),
            present=headers.mask_text(presence),
            dirty=turn.early and watched.is_dirty,
            may_overlap=watched.had_one_backward and not watched.is_dirty,
        )
        return header, note.payload

    def _head(self, operation: Operation, words: Sequence[Words]) -> RecordHead:
        said = [word.header for word in words]
        return head_of(
            operation,
            newest=[header.newest for header in said],
            weighted=[header.weighted for header in said],
            present=self._present(words),
            payloads=[word.payload for word in words],
        )

    def _present(self, words: Sequence[Words]) -> tuple[bool, ...]:
        masks = [word.header.present for word in words]
        return headers.united(masks, len(self._layout.parameters))

    def _reduce_all(
        self, turn: _Turn, present: Sequence[bool], fill: Callable[[int], Fill]
    ) -> None:
        """Reduce every bucket in which anybody has a gradient: frozen layers do not travel."""
        assert self._reduction is not None
        for number, bucket in enumerate(self._buckets):
            if any(present[piece.index] for piece in bucket.pieces):
                self._reduction.reduce(number, turn.operation.spans, fill(number))

    def _fill_settled(self, turn: _Turn, number: int) -> Fill:
        bucket = self._buckets[number]

        def fill(span: Span, views: Sequence[torch.Tensor]) -> None:
            with self._not_given_up():
                bucket.fill(views, bucket.of(turn.partials.sums(span)))

        return fill

    def _fill_early(self, turn: _Turn, number: int) -> Fill:
        if not turn.overlap.wait_for(number):
            raise _GivenUp

        def fill(span: Span, views: Sequence[torch.Tensor]) -> None:
            with self._not_given_up():
                turn.overlap.fill(number, turn.partials, span, views, self._n)

        return fill

    def _share_buffers(self, turn: _Turn) -> None:
        if not self._layout.buffers:
            return
        source = next(
            rank
            for rank, spans in enumerate(turn.operation.spans)
            if any(span.lo == 0 for span in spans)
        )
        if source == self.group.rank:
            with self._not_given_up():
                if turn.buffers is None:
                    raise ValueError("the process that holds logical rank 0 gave no buffers")
                pack_buffers(self._layout, self._buffers, turn.buffers)
        self.group.transport.broadcast(self._buffers, source=source)

    def _step_alone(self, turn: _Turn, note: Note) -> Record:
        presence = turn.partials.presence
        if self._layout.buffers:
            if turn.buffers is None:
                raise ValueError("no buffers of logical rank 0 were given")
            pack_buffers(self._layout, self._buffers, turn.buffers)
        head = head_of(
            turn.operation,
            newest=[note.newest],
            weighted=[note.weighted],
            present=presence,
            payloads=[note.payload],
        )
        return Record(
            head, [note.payload], self._layout, Alone(turn.partials.take(), self._buffers)
        )

    # --- serving a record -------------------------------------------------------------------------

    def _send_record(self, record: Record, to: Sequence[int]) -> None:
        if not record.is_intact or isinstance(record.tensors, Alone):
            raise ValueError(f"the record of position {record.position} cannot be served")
        text = msgspec.json.encode(record.head) + b"".join((b"\n", *record.payloads))
        size = torch.tensor([len(text)], dtype=torch.int64)
        transport = self.group.transport
        for peer in to:
            transport.send(peer, size)
            transport.send(peer, torch.frombuffer(bytearray(text), dtype=torch.uint8))
            for tensor in self._parts(record):
                transport.send(peer, tensor)

    def _receive_record(self, source: int) -> Record:
        transport = self.group.transport
        size = torch.zeros(1, dtype=torch.int64)
        transport.receive(source, size)
        text = torch.zeros(int(size.item()), dtype=torch.uint8)
        transport.receive(source, text)
        line, _, rest = text.numpy().tobytes().partition(b"\n")
        head = msgspec.json.decode(line, type=RecordHead)
        payloads = []
        for length in head.payload_sizes:
            payloads.append(rest[:length])
            rest = rest[length:]
        assert self._reduction is not None
        tensors = None
        if head.kind is OperationKind.STEP:
            tensors = Held(
                self._buckets, self._reduction.flats, self._reduction.views, self._buffers
            )
        self._last = Record(head, payloads, self._layout, tensors)
        for tensor in self._parts(self._last):
            transport.receive(source, tensor)
        return self._last

    def _parts(self, record: Record) -> list[torch.Tensor]:
        """The tensors of a record without the padding, which depends on the group's size."""
        if not isinstance(record.tensors, Held):
            return []
        flats = [
            flat[: bucket.numel]
            for bucket, flat in zip(record.tensors.buckets, record.tensors.flats, strict=True)
        ]
        return [tensor for tensor in (*flats, record.tensors.buffers) if tensor.numel()]
