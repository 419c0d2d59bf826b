"""A rank's beginning in a worker's output is exact, however late its agent reads."""

import contextlib
import mmap
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale import printed
from easyscale.printed import RING, Pieces, RankNotes, RankReader


class Worker:
    """Both ends of a page and of two pipes, in one process."""

    def __init__(self) -> None:
        page = os.memfd_create("page")
        os.ftruncate(page, printed.SHARED_BYTES)
        self.reader = RankReader(page)
        self.mapping = mmap.mmap(page, printed.SHARED_BYTES)
        os.close(page)
        self.pipes = [os.pipe() for _ in range(2)]
        for read, _ in self.pipes:
            os.set_blocking(read, False)
        self.notes = RankNotes(self.mapping, [write for _, write in self.pipes])

    def print(self, stream: int, data: bytes) -> None:
        os.write(self.pipes[stream][1], data)

    def read(self, stream: int, most: int = 1 << 16) -> Pieces:
        data = b""
        with contextlib.suppress(BlockingIOError):
            data = self.reader.read(stream, self.pipes[stream][0], most)
        return self.reader.split(stream, data)

    def close(self) -> None:
        for pair in self.pipes:
            for end in pair:
                os.close(end)


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def test_a_line_keeps_its_rank_however_late_it_is_read(worker: Worker) -> None:
    worker.print(0, b"before\n")
    for rank in range(3):
        worker.notes.begin(rank)
        worker.print(0, b"%d\n" % rank)
    worker.notes.begin(None)
    worker.print(0, b"outer\n")
    worker.notes.begin(7)
    assert worker.read(0) == [
        (b"before\n", None), (b"0\n", 0), (b"1\n", 1), (b"2\n", 2), (b"outer\n", None),
    ]  # fmt: skip


Act = tuple[str, int, int]
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("rank"), st.integers(-1, 5), st.just(0)),
        st.tuples(st.just("print"), st.integers(0, 1), st.integers(1, 300)),
        st.tuples(st.just("read"), st.integers(0, 1), st.integers(1, 500)),
    ),
    max_size=100,
)


@given(ACTS)
def test_every_byte_is_told_with_the_rank_that_printed_it(acts: list[Act]) -> None:
    worker, rank = Worker(), -1
    said: list[list[int]] = [[], []]
    heard: list[list[int | None]] = [[], []]
    for act, number, size in [*acts, ("read", 0, 1 << 16), ("read", 1, 1 << 16)]:
        match act:
            case "rank":
                rank = number
                worker.notes.begin(None if rank < 0 else rank)
            case "print":
                worker.print(number, b"x" * size)
                said[number] += [rank] * size
            case _:
                for data, of in worker.read(number, size):
                    heard[number] += [of] * len(data)
    worker.close()
    assert heard == [[None if r < 0 else r for r in each] for each in said]


def test_ranks_that_print_nothing_take_no_room(worker: Worker) -> None:
    worker.notes.begin(1)
    worker.print(1, b"one\n")
    for _ in range(10 * RING):
        worker.notes.begin(2)
        worker.notes.begin(None)
    worker.print(1, b"outer\n")
    assert worker.read(1) == [(b"one\n", 1), (b"outer\n", None)]


def test_what_is_noted_no_more_is_nobodys_rather_than_anothers(worker: Worker) -> None:
    for number in range(RING + 10):
        worker.notes.begin(number)
        worker.print(0, b".")
    pieces = worker.read(0)
    assert pieces[0] == (b"." * 10, None)
    assert pieces[1:] == [(b".", number) for number in range(10, RING + 10)]


def test_an_agent_that_was_stopped_amid_a_read_does_not_stop_the_worker(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def lies_in(notes: RankNotes, stream: int) -> int:
        asked.append(stream)
        return 0

    monkeypatch.setattr(RankNotes, "_lies_in", lies_in)
    monkeypatch.setattr(printed, "_PATIENCE_S", 0.0)
    printed._TURN.pack_into(worker.mapping, printed._TAKEN_AT, 1)
    worker.notes.begin(1)
    assert asked == [0, 1] * (printed._TRIES + printed._PATIENT_TRIES)
    asked.clear()
    worker.notes.begin(2)
    assert asked == [0, 1] * (printed._TRIES + 1), "it is waited for once"


def test_what_could_not_be_counted_is_nobodys(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(printed, "_PATIENCE_S", 0.0)
    printed._TURN.pack_into(worker.mapping, printed._TAKEN_AT, 1)
    worker.notes.begin(1)
    worker.print(0, b"whose\n")
    printed._TURN.pack_into(worker.mapping, printed._TAKEN_AT, 2)
    worker.notes.begin(2)
    worker.print(0, b"two\n")
    assert worker.read(0) == [(b"whose\n", None), (b"two\n", 2)]


def test_the_end_of_a_pipe_and_a_bad_one_are_told(worker: Worker) -> None:
    with pytest.raises(BlockingIOError):
        worker.reader.read(0, worker.pipes[0][0], 10)
    read, write = os.pipe()
    os.close(write)
    assert worker.reader.read(0, read, 10) == b""
    os.close(read)
    with pytest.raises(OSError, match="Bad file descriptor"):
        worker.reader.read(0, read, 10)


def test_a_worker_whose_output_cannot_be_counted_trains_on(worker: Worker) -> None:
    no_pipe = os.open("/dev/null", os.O_WRONLY)
    notes = RankNotes(worker.mapping, (no_pipe, no_pipe))
    notes.begin(3)
    notes.begin(None)
    os.close(no_pipe)
