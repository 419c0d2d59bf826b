"""What a reader of the pulse page believes while its writer writes, or has stopped amid it."""

import mmap
import os
import struct
import time
from collections.abc import Iterator

import pytest

from easyscale import pulse as pulse_module
from easyscale.printed import RankNotes
from easyscale.pulse import Beat, Phase, Pulse


class Stops(Exception):
    """The writer gets no further."""


class HalfWritten:
    """Packs as `struct` did before it stopped: all zeroed, the first words written."""

    def __init__(self, words: int) -> None:
        self.words = words

    def pack_into(self, page: mmap.mmap, offset: int, *values: int) -> None:
        written = (*values[: self.words], *[0] * len(values[self.words :]))
        struct.pack_into("7q", page, offset, *written)
        raise Stops

    @staticmethod
    def unpack_from(page: mmap.mmap, offset: int) -> tuple[int, ...]:
        return struct.unpack_from("7q", page, offset)


@pytest.fixture
def ends() -> Iterator[tuple[Pulse, Pulse]]:
    """The worker's end and the agent's, of one page."""
    descriptor = Pulse.allocate()
    both = Pulse.attach(descriptor), Pulse.attach(descriptor)
    os.close(descriptor)
    yield both
    for end in both:
        end.close()


def stop_amid(writer: Pulse, monkeypatch: pytest.MonkeyPatch, *, words: int) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pulse_module, "_BEAT", HalfWritten(words))
        with pytest.raises(Stops):
            writer.beat(Phase.EXCHANGE, position=8, step=8)


def test_a_beat_is_read_as_it_was_written(ends: tuple[Pulse, Pulse]) -> None:
    writer, reader = ends
    before_s = time.monotonic()
    writer.beat(Phase.MICRO_STEP, position=7, step=5, rank=3)
    beat = reader.read()
    assert beat == Beat(
        phase=Phase.MICRO_STEP, position=7, step=5, rank=3, micro_steps=1, since_s=beat.since_s
    )
    assert before_s <= beat.since_s <= time.monotonic()


@pytest.mark.parametrize("words", range(8))
def test_a_page_whose_writer_stopped_amid_a_beat_says_what_it_said_before(
    ends: tuple[Pulse, Pulse], monkeypatch: pytest.MonkeyPatch, words: int
) -> None:
    writer, reader = ends
    writer.beat(Phase.MICRO_STEP, position=7, step=7, rank=3)
    whole = reader.read()
    stop_amid(writer, monkeypatch, words=words)
    assert reader.read() == whole
    writer.beat(Phase.OUTER_BODY, position=9, step=9)
    assert reader.read().position == 9, "the next beat mends the page"


def test_a_reader_that_has_seen_no_whole_beat_believes_that_the_worker_just_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    descriptor = Pulse.allocate()
    writer = Pulse.attach(descriptor)
    stop_amid(writer, monkeypatch, words=0)
    before_s = time.monotonic()
    reader = Pulse.attach(descriptor)
    os.close(descriptor)
    beat = reader.read()
    assert beat.phase is Phase.STARTING
    assert beat.since_s >= before_s


def test_the_worker_counts_on_from_where_its_page_was_made(ends: tuple[Pulse, Pulse]) -> None:
    # Were a count seen twice, a reading with a whole beat amid it would pass for one.
    writer, reader = ends
    counts = [reader._words[pulse_module._TURN]]
    for _ in range(3):
        writer.beat(Phase.WAITING, position=1, step=1)
        counts.append(reader._words[pulse_module._TURN])
    assert counts == sorted(set(counts))
    assert {count % 2 for count in counts} == {0}


def test_a_wait_shows_without_a_beat(ends: tuple[Pulse, Pulse]) -> None:
    writer, reader = ends
    writer.beat(Phase.EXCHANGE, position=3, step=3)
    former = reader.read()
    writer.poll()
    polled = reader.read()
    assert polled.polled_s is not None
    assert polled.polled_s >= polled.since_s == former.since_s
    writer.end_wait()
    ended = reader.read()
    assert ended.polled_s is None
    assert ended.since_s >= polled.polled_s, "it was awake just now"


def test_a_beat_leaves_the_notes_of_ranks_alone() -> None:
    descriptor = Pulse.allocate()
    writer = Pulse.attach(descriptor)
    os.close(descriptor)
    nothing = os.pipe()
    RankNotes(writer._page, nothing).begin(5)
    for end in nothing:
        os.close(end)
    notes = bytes(writer._page[64:])
    assert any(notes)
    writer.beat(Phase.MICRO_STEP, position=2, step=2, rank=5)
    writer.poll()
    assert bytes(writer._page[64:]) == notes
    writer.close()


def test_a_closed_page_is_an_error_that_its_reader_knows(ends: tuple[Pulse, Pulse]) -> None:
    ends[1].close()
    with pytest.raises(ValueError, match="released"):
        ends[1].read()
