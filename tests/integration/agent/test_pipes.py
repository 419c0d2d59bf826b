"""One thread reads all pipes: in order, whole, and whoever asks it for something never waits."""

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from easyscale.agent.processes.pipes import PipeReader

pytestmark = pytest.mark.integration
DEADLINE_S = 10.0
#: More wake-ups than a socket holds.
MANY = 20_000


@dataclass
class Taker:
    """Takes what comes out of a pipe, as slowly as a test says."""

    data: bytearray = field(default_factory=bytearray)
    may_take: threading.Event = field(default_factory=threading.Event)
    has_begun: threading.Event = field(default_factory=threading.Event)
    has_ended: threading.Event = field(default_factory=threading.Event)

    def take(self, pipe: int) -> bool:
        chunk = os.read(pipe, 1000)
        self.has_begun.set()
        assert self.may_take.wait(DEADLINE_S)
        self.data += chunk
        return bool(chunk)


@pytest.fixture
def reader() -> Iterator[PipeReader]:
    made = PipeReader()
    yield made
    made.close(deadline_s=DEADLINE_S)


def test_every_byte_arrives_in_order_and_the_end_is_told(reader: PipeReader) -> None:
    ours, theirs = os.pipe()
    taker = Taker()
    taker.may_take.set()
    reader.add(ours, take=taker.take, ended=taker.has_ended.set)
    text = bytes(range(256)) * 1000
    with os.fdopen(theirs, "wb") as end:
        end.write(text)
    assert taker.has_ended.wait(DEADLINE_S)
    assert bytes(taker.data) == text


def test_a_cut_pipe_is_read_empty_although_somebody_still_holds_it(reader: PipeReader) -> None:
    ours, theirs = os.pipe()
    taker = Taker()
    taker.may_take.set()
    os.write(theirs, b"last words")
    reading = reader.add(ours, take=taker.take, ended=taker.has_ended.set)
    reader.cut(reading)
    assert taker.has_ended.wait(DEADLINE_S)
    assert bytes(taker.data) == b"last words"
    reader.cut(reading)  # once more: its number may be another pipe's by now
    os.close(theirs)


def test_who_asks_never_waits_for_a_watcher_that_is_slow(reader: PipeReader) -> None:
    """A full socket of wake-ups would stop the agent's own thread otherwise."""
    ours, theirs = os.pipe()
    taker = Taker()
    os.write(theirs, b"x")
    reading = reader.add(ours, take=taker.take, ended=taker.has_ended.set)
    assert taker.has_begun.wait(DEADLINE_S)

    def ask() -> None:
        for _ in range(MANY):
            reader.cut(reading)

    asks = threading.Thread(target=ask, daemon=True)
    asks.start()
    asks.join(DEADLINE_S)
    assert not asks.is_alive()
    taker.may_take.set()
    assert taker.has_ended.wait(DEADLINE_S)
    os.close(theirs)
