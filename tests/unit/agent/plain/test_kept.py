"""What of a plain job's output can be read later, in files or in memory."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.plain.kept import KEPT_BYTES, KeptLogs, KeptStream, Who
from easyscale.errors import UsageError
from easyscale.reports import Stream
from easyscale_cli.views.log_lines import LineMaker


def lines(logs: KeptLogs, name: str, *, since_s: float | None = None) -> list[str]:
    file = next(each for each in logs.files() if each.name == name)
    piece = logs.piece("a", name, offset=0, since_s=since_s)
    maker = LineMaker(file)
    return [line.text for line in maker.feed(piece) + maker.finish()]


@given(st.lists(st.binary(min_size=1, max_size=50_000), max_size=30))
def test_what_is_only_shown_keeps_its_newest_bytes(pieces: list[bytes]) -> None:
    kept = KeptStream(rank=3)
    for number, data in enumerate(pieces):
        kept.add(data, wall_s=float(number))
    whole = b"".join(pieces)
    piece = kept.piece(offset=0, since_s=None)
    assert kept.size == piece.next == len(whole)
    assert piece.data == whole[piece.offset :]
    assert len(piece.data) >= min(len(whole), KEPT_BYTES)
    assert len(piece.data) <= KEPT_BYTES + 2 * 50_000
    assert {mark.rank for mark in piece.marks} <= {3}


def test_a_stream_is_read_on_from_where_one_stopped() -> None:
    kept = KeptStream(rank=0)
    kept.add(b"one\ntw", wall_s=1.0)
    first = kept.piece(offset=0, since_s=None)
    kept.add(b"o\n", wall_s=2.0)
    assert kept.piece(offset=first.next, since_s=None).data == b"o\n"
    assert kept.piece(offset=kept.size, since_s=None).data == b""


def test_what_was_printed_since_a_time_is_found() -> None:
    kept = KeptStream(rank=0)
    for second in range(100):
        kept.add(f"{second}\n".encode(), wall_s=float(second))
    piece = kept.piece(offset=0, since_s=97.0)
    assert piece.data == b"97\n98\n99\n"
    assert piece.marks[0].at_s == 97.0
    assert kept.piece(offset=0, since_s=1000.0).data == b"99\n"


def test_marks_stay_few_however_long_a_worker_prints(tmp_path: Path) -> None:
    kept = KeptStream(rank=0, path=tmp_path / "stdout.log")
    for second in range(20_000):
        kept.add(b"x\n", wall_s=float(second))
    (tmp_path / "stdout.log").write_bytes(b"x\n" * 20_000)
    marks = kept.piece(offset=0, since_s=None).marks
    assert len(marks) <= 4096
    piece = kept.piece(offset=0, since_s=15_000.0)
    assert 10_000 < piece.offset <= 30_000


def test_a_stream_that_goes_to_a_file_is_read_there(tmp_path: Path) -> None:
    path = tmp_path / "stderr.log"
    path.write_bytes(b"no\n")
    logs = KeptLogs("a")
    logs.open(Who(1, 0, 4, "local:0", 1), {Stream.STDERR: path})
    piece = logs.piece("a", "1/0/stderr", offset=0, since_s=None)
    assert piece.data == b"no\n"
    assert [(mark.at_s, mark.rank) for mark in piece.marks] == [(None, 4)], "when, nobody knows"
    path.unlink()
    assert next(each for each in logs.files() if each.name == "1/0/stderr").size == 0
    with pytest.raises(UsageError, match="cannot be read"):
        logs.piece("a", "1/0/stderr", offset=0, since_s=None)


def test_the_newest_rounds_are_kept_and_others_are_refused() -> None:
    logs = KeptLogs("a")
    for number in range(1, 7):
        made = logs.open(Who(number, 0, 0, "local:0", 1), {})
        made[Stream.STDOUT].add(f"round {number}\n".encode(), wall_s=float(number))
    assert {each.spawn for each in logs.files()} == {4, 5, 6}
    assert lines(logs, "6/0/stdout") == ["round 6"]
    for node, name in (("a", "1/0/stdout"), ("a", "../../etc/passwd"), ("b", "6/0/stdout")):
        with pytest.raises(UsageError, match="no log"):
            logs.piece(node, name, offset=0, since_s=None)


def test_many_workers_share_what_is_kept() -> None:
    logs = KeptLogs("a")
    (few,) = {kept.most_bytes for kept in logs.open(Who(1, 0, 0, "local:0", 8), {}).values()}
    (many,) = {kept.most_bytes for kept in logs.open(Who(1, 1, 1, "local:0", 64), {}).values()}
    assert few == KEPT_BYTES
    assert 3 * 2 * 64 * many <= 1 << 24
