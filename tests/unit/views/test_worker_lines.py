"""What workers print becomes whole lines, thinned for a terminal and untouched for a pipe."""

from hypothesis import given
from hypothesis import strategies as st

from easyscale.reports import Source, Stream
from easyscale_cli.views.worker_lines import (
    FOR_PIPE,
    FOR_TERMINAL,
    LONGEST_PARTIAL,
    WorkerLine,
    WorkerLines,
)
from tests.unit.views.launch_states import A0, A1, A2, A3

OUT, ERR = Stream.STDOUT, Stream.STDERR


def for_terminal() -> WorkerLines:
    return WorkerLines({OUT: FOR_TERMINAL, ERR: FOR_TERMINAL})


def for_pipe() -> WorkerLines:
    return WorkerLines({OUT: FOR_PIPE, ERR: FOR_PIPE})


def texts(lines: list[WorkerLine]) -> list[str]:
    return [line.text for line in lines]


def feed(lines: WorkerLines, data: bytes, *, now: float = 0.0, source: Source = A0) -> None:
    lines.feed(source, OUT, data, rank=None, now=now)


def test_a_line_in_three_pieces_is_shown_once_and_whole() -> None:
    lines = for_pipe()
    for piece in (b"epo", b"ch 0 ", b"loss 2.3\nepoch 1"):
        feed(lines, piece)
    assert texts(lines.take_due(0.0)) == ["epoch 0 loss 2.3"]
    assert texts(lines.finish(0.0)) == ["epoch 1"]


def test_lines_of_two_workers_are_never_mixed() -> None:
    lines = for_pipe()
    feed(lines, b"one ", source=A0)
    feed(lines, b"two ", source=A1)
    feed(lines, b"A\n", source=A0)
    feed(lines, b"B\n", source=A1)
    assert texts(lines.take_due(0.0)) == ["one A", "two B"]


def test_a_line_carries_the_rank_under_which_it_began() -> None:
    lines = for_pipe()
    lines.feed(A0, OUT, b"begun ", rank=3, now=0.0)
    lines.feed(A0, OUT, b"and ended\nnext\n", rank=4, now=0.1)
    assert [(line.text, line.rank) for line in lines.take_due(0.1)] == [
        ("begun and ended", 3),
        ("next", 4),
    ]


def test_the_same_line_of_four_workers_is_shown_once() -> None:
    lines = for_terminal()
    for number, source in enumerate((A0, A1, A2, A3)):
        feed(lines, b"UserWarning: x\n", now=0.05 * number, source=source)
    assert lines.take_due(0.19) == []
    (line,) = lines.take_due(0.2)
    assert line.sources == [A0, A1, A2, A3]


def test_the_same_line_after_the_window_is_shown_again() -> None:
    lines = for_terminal()
    feed(lines, b"same\n", now=0.0, source=A0)
    assert len(lines.take_due(0.25)) == 1
    feed(lines, b"same\n", now=0.25, source=A1)
    assert len(lines.take_due(0.5)) == 1


def test_one_worker_that_repeats_itself_is_not_folded() -> None:
    lines = for_terminal()
    feed(lines, b"ok\nok\nok\n")
    assert texts(lines.take_due(1.0)) == ["ok", "ok", "ok"]


def test_standard_output_and_error_are_not_folded_together() -> None:
    lines = for_terminal()
    lines.feed(A0, OUT, b"same\n", rank=None, now=0.0)
    lines.feed(A1, ERR, b"same\n", rank=None, now=0.0)
    assert [line.stream for line in lines.take_due(1.0)] == [OUT, ERR]


def test_held_lines_come_out_before_what_happened_after_them() -> None:
    lines = for_terminal()
    feed(lines, b"Traceback\nValueError\n")
    assert texts(lines.take_held(0.0)) == ["Traceback", "ValueError"]
    assert lines.take_due(1.0) == []


def test_a_partial_line_is_shown_with_a_mark_after_half_a_second() -> None:
    lines = for_terminal()
    feed(lines, b"Continue? ", now=1.0)
    assert lines.next_due() == 1.5
    assert lines.take_due(1.49) == []
    assert lines.take_due(1.5) == []  # whole now, and held for the same line of others
    (line,) = lines.take_due(1.7)
    assert (line.text, line.is_partial) == ("Continue? ", True)
    feed(lines, b"yes\n\n", now=2.0)
    assert texts(lines.take_due(3.0)) == ["yes", ""]


def test_the_newline_of_a_shown_partial_line_adds_no_empty_line() -> None:
    lines = for_terminal()
    feed(lines, b"done", now=0.0)
    lines.take_due(0.5)
    feed(lines, b"\n", now=0.6)
    assert texts(lines.take_due(1.0)) == ["done"]


def test_a_progress_bar_shows_its_last_state_every_ten_seconds_and_at_its_end() -> None:
    lines = for_terminal()
    shown: list[tuple[float, str]] = []
    for tenth in range(250):
        now = tenth / 10
        feed(lines, f"\r{tenth * 4 // 10}%|####|".encode(), now=now)
        shown += [(now, line.text) for line in lines.take_due(now)]
    feed(lines, b"\r100%|####|\n", now=25.0)
    shown += [(25.0, text) for text in texts(lines.take_due(26.0))]
    assert [text for _, text in shown] == ["40%|####|", "80%|####|", "100%|####|"]


def test_the_movements_of_a_progress_bar_are_not_shown() -> None:
    lines = for_terminal()
    feed(lines, b"\r 50%\x1b[K\r 60%\x1b[K\x1b[A\n")
    assert texts(lines.take_due(1.0)) == [" 60%"]


def test_a_line_that_ends_as_windows_writes_it_is_no_progress_bar() -> None:
    lines = for_pipe()
    feed(lines, b"one\r")
    feed(lines, b"\ntwo\r\n")
    assert texts(lines.take_due(0.0)) == ["one", "two"]


def test_a_flood_is_told_in_one_line_and_then_goes_on() -> None:
    lines = for_terminal()
    for number in range(1340):
        feed(lines, b"%d\n" % number, now=number / 1340)
    shown = lines.take_due(0.999)
    assert [line.text for line in shown if not line.flood][-1] == "199"
    (flood,) = [line for line in shown + lines.take_due(1.0) if line.flood]
    assert flood.flood == 1340
    feed(lines, b"calm\n", now=1.1)
    assert texts(lines.take_due(2.0)) == ["calm"]


def test_a_flood_of_one_worker_hides_no_line_of_another() -> None:
    lines = for_terminal()
    feed(lines, b"x\n" * 5000, source=A0)
    feed(lines, b"y\n", source=A1)
    assert "y" in texts(lines.take_due(0.5))


def test_a_pipe_gets_every_line_at_once() -> None:
    lines = for_pipe()
    feed(lines, b"same\n" * 1000, source=A0)
    feed(lines, b"same\n" * 1000, source=A1)
    feed(lines, b"partial", source=A2)
    assert len(lines.take_due(0.0)) == 2000
    assert lines.take_due(99.0) == []


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    lines = for_pipe()
    for _ in range(20):
        feed(lines, b"x" * 16_384)
    shown = lines.take_due(0.0)
    assert shown
    assert all(line.is_partial and len(line.text) <= LONGEST_PARTIAL + 16_384 for line in shown)


def test_the_end_of_a_stream_shows_what_is_left() -> None:
    lines = for_pipe()
    feed(lines, b"no newline")
    feed(lines, b"")
    assert texts(lines.take_due(0.0)) == ["no newline"]


def test_bytes_that_are_no_text_are_shown_by_number() -> None:
    lines = for_pipe()
    feed(lines, b"\xff\xfe ok\n")
    assert texts(lines.take_due(0.0)) == ["\\xff\\xfe ok"]


@given(
    st.lists(st.binary(max_size=30).filter(lambda data: b"\r" not in data), max_size=20),
    st.data(),
)
def test_a_pipe_gets_every_line_however_the_bytes_are_cut(
    pieces: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=5)))
    lines = for_pipe()
    for begin, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        if begin < end:
            feed(lines, whole[begin:end])
    expected = whole.decode("utf-8", "backslashreplace").split("\n")
    if not expected[-1]:
        expected.pop()
    assert texts(lines.finish(0.0)) == expected
