"""Logs become lines with their place, rank and time, however they are cut into pieces."""

import heapq
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.processes.log_files import LogFile, Mark, Piece
from easyscale.reports import Stream
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.log_lines import LineMaker, LogLine, of_rank
from easyscale_cli.views.logs import LogView, log_json
from easyscale_cli.views.stage import Look
from easyscale_cli.views.style import Palette


def log(node: str = "b", slot: str = "cuda:1", spawn: int = 1) -> LogFile:
    stream = Stream.STDOUT
    return LogFile(node=node, slot=slot, spawn=spawn, stream=stream, name="", size=0)


def lines_of(data: bytes, marks: list[Mark], cuts: list[int] | None = None) -> list[LogLine]:
    """Read a log in pieces that end at the cuts, each with the marks that tell of it."""
    maker, lines, begin = LineMaker(log()), [], 0
    for end in [*sorted(cuts or ()), len(data)]:
        before = [mark for mark in marks if mark.offset <= begin][-1:]
        inside = [mark for mark in marks if begin < mark.offset < end]
        lines += maker.feed(Piece(offset=begin, data=data[begin:end], marks=(*before, *inside)))
        begin = end
    return lines + maker.finish()


@given(
    texts=st.lists(st.binary(max_size=8), min_size=1, max_size=12),
    marked=st.sets(st.integers(0, 60), max_size=8),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_lines_are_the_same_however_the_log_is_cut(
    texts: list[bytes], marked: set[int], cuts: list[int]
) -> None:
    data = b"\n".join(texts)
    marks = [Mark(offset, float(offset), offset % 3) for offset in sorted(marked)]
    whole = lines_of(data, marks)
    assert lines_of(data, marks, [min(cut, len(data)) for cut in cuts]) == whole
    assert len(whole) == data.count(b"\n") + bool(data.rpartition(b"\n")[2])


def test_a_line_has_the_rank_and_the_time_of_its_beginning() -> None:
    marks = [Mark(0, 10.0, None), Mark(4, 11.0, 3), Mark(9, 12.0, 5)]
    told = [(line.text, line.at_s, line.rank) for line in lines_of(b"one\ntwo\nthree\n4\n", marks)]
    assert told == [("one", 10.0, None), ("two", 11.0, 3), ("three", 11.0, 3), ("4", 12.0, 5)]
    assert [line.text for line in of_rank(lines_of(b"one\ntwo\n", marks), 3)] == ["two"]


def test_a_log_without_marks_is_read_without_ranks_and_times() -> None:
    (line,) = lines_of(b"one\n", [])
    assert (line.at_s, line.rank) == (None, None)
    assert json.loads(log_json("j", line))["at"] is None


def test_a_progress_bar_is_shown_as_it_stood_at_its_end() -> None:
    assert [line.text for line in lines_of(b"0 %\r50 %\r100 %\r\nnext\r\n", [])] == [
        "100 %",
        "next",
    ]


def test_a_line_without_end_is_not_collected_for_ever() -> None:
    maker = LineMaker(log())
    shown = maker.feed(Piece(offset=0, data=b"x" * 100_000, marks=()))
    assert [len(line.text) for line in shown] == [100_000]
    assert maker.finish() == []


def test_lines_of_many_workers_come_in_the_order_of_time_and_natural_places() -> None:
    files = [
        log(node, slot) for node, slot in (("n10", "cpu:0"), ("n2", "cpu:10"), ("n2", "cpu:9"))
    ]
    early = [LogLine(file, 1.0, None, "x") for file in files]
    late = [LogLine(file, 2.0, None, "y") for file in files]
    merged = heapq.merge(*zip(early, late, strict=True), key=lambda line: line.order)
    places = [(line.text, line.file.node, line.file.slot) for line in merged]
    assert places == [
        ("x", "n2", "cpu:9"), ("x", "n2", "cpu:10"), ("x", "n10", "cpu:0"),
        ("y", "n2", "cpu:9"), ("y", "n2", "cpu:10"), ("y", "n10", "cpu:0"),
    ]  # fmt: skip


SHOWN = [
    LogLine(log("a", "cuda:0"), 1.0, None, "epoch 2  loss 1.1408"),
    LogLine(log("b", "cuda:1"), 2.0, 13, "sample 40213: EXIF orientation ignored"),
    LogLine(log("b", "cuda:1"), 2.0, 13, "\x1b[31mred\x1b[0m \x1b[2J\u202e and \x07 é"),
    LogLine(log("gpu-with-a-very-long-name-017", "cuda:5"), 3.0, 123, ""),
]


def shown(*, is_terminal: bool, palette: Palette = Palette.NONE, ascii_only: bool = False) -> str:
    view = LogView(Look(is_terminal, palette, ASCII if ascii_only else UNICODE))
    return view.text(SHOWN)


def test_a_pipe_gets_places_in_brackets_and_no_escapes() -> None:
    assert shown(is_terminal=False).splitlines() == [
        "[a/cuda:0] epoch 2  loss 1.1408",
        "[b/cuda:1 r13] sample 40213: EXIF orientation ignored",
        "[b/cuda:1 r13] red \\x1b[2J\\u202e and \\x07 é",
        "[gpu-with-a-very-long-name-017/cuda:5 r123] ",
    ]


def test_a_terminal_gets_a_gutter_and_colours_but_nothing_that_steers_it() -> None:
    rows = shown(is_terminal=True, palette=Palette.HUES).splitlines()
    assert [row.partition("│")[0].count("/") for row in rows] == [1, 1, 1, 1]
    assert "\x1b[31mred\x1b[0m" in rows[2]
    assert "\x1b[2J" not in rows[2]
    plain = shown(is_terminal=True).splitlines()
    assert plain[0] == "    a/cuda:0 │ epoch 2  loss 1.1408"
    assert plain[1] == "b/cuda:1 r13 │ sample 40213: EXIF orientation ignored"
    assert plain[3] == "…ng-name-017/cuda:5 r123 │"


def test_a_terminal_without_unicode_gets_marks_of_ascii() -> None:
    rows = shown(is_terminal=True, ascii_only=True).splitlines()
    assert rows[0] == "    a/cuda:0 | epoch 2  loss 1.1408"
    assert all(row.partition("|")[0].isascii() for row in rows)


def test_json_tells_where_and_when() -> None:
    value = json.loads(log_json("resnet50", SHOWN[1]))
    assert value == {
        "version": 1, "at": "1970-01-01T00:00:02.000Z", "job": "resnet50", "node": "b",
        "slot": "cuda:1", "process": 1, "rank": 13, "stream": "stdout",
        "text": "sample 40213: EXIF orientation ignored",
    }  # fmt: skip


@pytest.mark.parametrize("text", ["\ud800", "nan", "{}", '"'])
def test_json_holds_any_text_of_a_worker(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass") + b"\xff\n"
    (line,) = lines_of(data, [])
    assert json.loads(log_json("j", line))["text"] == data[:-1].decode("utf-8", "backslashreplace")
