"""What lies on disk of a worker's output: every byte, and marks that say whose it was and when."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.processes import log_files
from easyscale.agent.processes.log_files import MarkedLog, Piece, nodes_with_logs, read_piece
from easyscale.agent.processes.log_files import log_files as files_of
from easyscale.errors import UsageError
from easyscale.model import WorkerId
from easyscale.reports import Stream

NAME = "cpu-0.1/stdout"

Written = list[tuple[bytes, int | None]]


def write(node: Path, pieces: Written, *, from_s: float = 1000.0) -> None:
    """Each piece a second after the one before."""
    kept = MarkedLog(node / "cpu-0.1", Stream.STDOUT)
    for number, (data, rank) in enumerate(pieces):
        kept.write(data, rank, wall_s=from_s + number)
    kept.close()


def ranks(piece: Piece) -> list[tuple[bytes, int | None]]:
    """What each mark of a piece tells of."""
    ends = [*(mark.offset for mark in piece.marks[1:]), piece.next]
    return [
        (piece.data[max(mark.offset - piece.offset, 0) : end - piece.offset], mark.rank)
        for mark, end in zip(piece.marks, ends, strict=True)
    ]


@given(
    pieces=st.lists(
        st.tuples(st.binary(min_size=1, max_size=40), st.none() | st.integers(0, 9)), max_size=30
    ),
    most=st.integers(1, 100),
)
def test_a_log_read_in_pieces_is_whole_and_knows_whose_each_byte_is(
    tmp_path_factory: pytest.TempPathFactory, pieces: Written, most: int
) -> None:
    node = tmp_path_factory.mktemp("node")
    write(node, pieces)
    offset, read = 0, []
    while (piece := read_piece(node, NAME, offset=offset, most=most)).data:
        read += [(bytes([byte]), rank) for data, rank in ranks(piece) for byte in data]
        offset = piece.next
    assert read == [(bytes([byte]), rank) for data, rank in pieces for byte in data]


def test_a_time_leads_to_what_was_printed_then_or_next(tmp_path: Path) -> None:
    write(tmp_path, [(b"zero\n", 0), (b"one\n", 0), (b"two\n", None)])
    for since_s, data in ((0.0, b"zero\none\ntwo\n"), (1000.5, b"one\ntwo\n"), (1002.0, b"two\n")):
        assert read_piece(tmp_path, NAME, offset=0, since_s=since_s).data == data
    later = read_piece(tmp_path, NAME, offset=0, since_s=5000.0)
    assert later.data == b"two\n", "it may have been printed long after its mark"


def test_what_is_torn_or_missing_of_the_marks_costs_no_line(tmp_path: Path) -> None:
    write(tmp_path, [(b"zero\n", 0), (b"one\n", 1)])
    marks = tmp_path / "cpu-0.1" / "stdout.marks"
    whole = marks.read_bytes()
    marks.write_bytes(whole[:-5])
    assert ranks(read_piece(tmp_path, NAME, offset=0)) == [(b"zero\none\n", 0)]
    write(tmp_path, [(b"two\n", 2)], from_s=2000.0)  # the next process repairs the end
    assert ranks(read_piece(tmp_path, NAME, offset=9)) == [(b"two\n", 2)]
    marks.unlink()
    piece = read_piece(tmp_path, NAME, offset=0, since_s=1.0)
    assert (piece.data, piece.marks) == (b"zero\none\ntwo\n", ())
    marks.write_bytes(os.urandom(24 * 50))
    assert read_piece(tmp_path, NAME, offset=0).data == b"zero\none\ntwo\n"


def test_a_log_is_kept_where_its_marks_cannot_be(tmp_path: Path) -> None:
    folder = tmp_path / "cpu-0.1"
    folder.mkdir()
    (folder / "stdout.marks").symlink_to("/dev/full")
    write(tmp_path, [(b"zero\n", 0), (b"one\n", 1)])
    assert (folder / "stdout.log").read_bytes() == b"zero\none\n"


def test_many_marks_come_in_several_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "_MOST_MARKS", 3)
    written: Written = [(b"%d\n" % rank, rank) for rank in range(9)]
    write(tmp_path, written)
    first = read_piece(tmp_path, NAME, offset=0)
    assert ranks(first) == written[:3]
    assert ranks(read_piece(tmp_path, NAME, offset=first.next)) == written[3:6]


@pytest.mark.parametrize(
    "name", ["", "stdout", "../../etc/passwd", "/etc/passwd", "cpu-0.1/zygote", "cpu-0.1/../a/b"]
)
def test_nothing_but_a_workers_log_is_read(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is no log of a worker"):
        read_piece(tmp_path, name, offset=0)


def test_logs_are_listed_under_the_names_of_their_slots(tmp_path: Path) -> None:
    for slot, spawn in (("cuda:3/1", 2), ("cuda:12", 1)):
        worker = WorkerId("gpu-4", "life", slot, spawn)
        MarkedLog(log_files.worker_folder(tmp_path, worker), Stream.STDERR).close()
    (tmp_path / "gpu-4" / "zygote.log").write_text("not a worker's")
    found = files_of(tmp_path, "gpu-4")
    assert [(each.slot, each.spawn, each.stream) for each in found] == [
        ("cuda:12", 1, Stream.STDERR),
        ("cuda:3/1", 2, Stream.STDERR),
    ]
    assert nodes_with_logs(tmp_path) == ["gpu-4"]
    assert (files_of(tmp_path, "b"), nodes_with_logs(tmp_path / "none")) == ([], [])
