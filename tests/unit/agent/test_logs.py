"""Where output lies, and what is remembered of it."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.processes.log_files import open_private, worker_folder
from easyscale.agent.processes.logs import Capture
from easyscale.model import WorkerId
from easyscale.reports import Source, Stream


def capture(lost: Callable[[Stream, str], None] = lambda *_: None) -> Capture:
    return Capture(source=Source("a", "cpu:0", 1), ranks=None, ended=lambda: None, lost=lost)


@pytest.mark.parametrize(
    ("slot", "folder"), [("cpu:0", "cpu-0.3"), ("cuda:12", "cuda-12.3"), ("cuda:3/1", "cuda-3-1.3")]
)
def test_each_process_of_a_slot_has_a_folder_of_its_own(slot: str, folder: str) -> None:
    worker = WorkerId("gpu-4", "life", slot, 3)
    assert worker_folder(Path("logs"), worker) == Path("logs/gpu-4") / folder


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([b"Traceback\n", b"ValueError: no\n"], "ValueError: no"),
        ([b"ValueErr", b"or: no\n\n  \n"], "ValueError: no"),
        ([b"", b"\n"], ""),
        ([b"x" * 10000 + b"\nlast"], "last"),
        ([b"\xff broken"], "\ufffd broken"),
    ],
)
def test_the_last_words_are_the_last_line_that_says_anything(
    pieces: list[bytes], words: str
) -> None:
    captured = capture()
    for piece in pieces:
        captured.write(Stream.STDERR, piece)
    captured.write(Stream.STDOUT, b"not these\n")
    assert captured.last_words == words


@given(st.lists(st.binary(max_size=3000), max_size=20))
def test_a_log_holds_every_byte(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    captured = capture()
    captured.open_files(folder)
    for piece in pieces:
        captured.write(Stream.STDOUT, piece)
    captured.close()
    assert (folder / "stdout.log").read_bytes() == b"".join(pieces)
    assert (folder / "stderr.log").read_bytes() == b""


def test_a_log_is_private_and_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "below" / "x.log"
    for text in (b"one ", b"two"):
        descriptor = open_private(path)
        os.write(descriptor, text)
        os.close(descriptor)
    assert path.read_bytes() == b"one two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_ends_the_log_of_one_stream_and_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "stdout.log").symlink_to("/dev/full")
    told: list[tuple[Stream, str]] = []
    captured = capture(lambda *lost: told.append(lost))
    captured.open_files(tmp_path)
    for _ in range(2):
        captured.write(Stream.STDOUT, b"out\n")
        captured.write(Stream.STDERR, b"err\n")
    captured.close()
    assert told == [(Stream.STDOUT, "No space left on device")]
    assert (tmp_path / "stderr.log").read_bytes() == b"err\nerr\n"
