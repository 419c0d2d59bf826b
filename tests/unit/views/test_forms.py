"""Lines, facts, columns, bars, literal text: exact widths, nothing that steers a terminal."""

# ruff: noqa: RUF001 - the sign of multiplication is meant

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale_cli.views.cells import cut_end, cut_front, width_of
from easyscale_cli.views.glyphs import ASCII, UNICODE, choose_glyphs
from easyscale_cli.views.layout import (
    Column,
    band,
    bar,
    columns,
    facts,
    in_gutter,
    line,
    sparkline,
    spread,
    width,
    wrap,
)
from easyscale_cli.views.literal import literal, literal_output
from easyscale_cli.views.style import (
    ColorChoice,
    Line,
    Palette,
    Role,
    Span,
    decide_palette,
    paint,
    plain_text,
    rich_text,
    rich_theme,
)

PROSE = st.text(alphabet="ab ·模é-", max_size=60)
CELLS = st.integers(min_value=8, max_value=90)


def test_every_glyph_is_one_cell_but_the_arrow_of_ascii() -> None:
    for glyphs in (UNICODE, ASCII):
        for name in (each.name for each in dataclasses.fields(glyphs)):
            mark = getattr(glyphs, name)
            expected = {"spark": 8, "against_kind": 4}.get(name, 1)
            if glyphs is ASCII:
                expected = {"arrow": 2, "degree": 0}.get(name, expected)
            assert width_of(mark) == expected, name
            assert mark.isascii() or glyphs is UNICODE, name


@pytest.mark.parametrize(
    ("encoding", "ascii_asked", "environ", "is_ascii"),
    (
        ("utf-8", False, {}, False),
        ("UTF8", False, {"EASYSCALE_ASCII": "0"}, False),
        ("utf-8", True, {}, True),
        ("utf-8", False, {"EASYSCALE_ASCII": "1"}, True),
        ("latin-1", False, {}, True),
        (None, False, {}, True),
    ),
)
def test_ascii_is_chosen_where_it_is_asked_for_or_all_there_is(
    encoding: str | None, ascii_asked: bool, environ: dict[str, str], is_ascii: bool
) -> None:
    chosen = choose_glyphs(encoding=encoding, ascii_asked=ascii_asked, environ=environ)
    assert chosen.is_ascii is is_ascii


def test_prose_is_shown_in_the_spelling_of_the_set() -> None:
    assert (
        UNICODE.prose("a 2 -> 3; 1.7 x its kind, 0x1f, 2 x") == "a 2 → 3; 1.7 × its kind, 0x1f, 2 ×"
    )
    assert (
        ASCII.prose("a 2 → 3; 1.7 × its kind · 87 °C é") == "a 2 -> 3; 1.7 x its kind | 87 C \\xe9"
    )


@pytest.mark.parametrize(
    ("choice", "environ", "is_terminal", "palette"),
    (
        ("auto", {"TERM": "xterm"}, True, Palette.HUES),
        ("auto", {}, False, Palette.NONE),
        ("auto", {"TERM": "dumb"}, True, Palette.NONE),
        ("auto", {"NO_COLOR": ""}, True, Palette.ATTRIBUTES),
        ("auto", {"NO_COLOR": "1", "FORCE_COLOR": "1"}, True, Palette.ATTRIBUTES),
        ("auto", {"FORCE_COLOR": "1"}, False, Palette.HUES),
        ("auto", {"FORCE_COLOR": "0"}, False, Palette.NONE),
        ("always", {"NO_COLOR": "1"}, False, Palette.HUES),
        ("never", {"FORCE_COLOR": "1"}, True, Palette.NONE),
    ),
)
def test_colour_is_decided_in_the_order_of_who_asks(
    choice: str, environ: dict[str, str], is_terminal: bool, palette: Palette
) -> None:
    decided = decide_palette(ColorChoice(choice), environ=environ, is_terminal=is_terminal)
    assert decided is palette


def test_without_hues_bold_and_dim_stay() -> None:
    row = line(Span("a", Role.FAILED_NAME), " ", Span("b", Role.QUIET), Span("c", Role.LIVE))
    assert paint(row, Palette.HUES) == "\x1b[1;31ma\x1b[0m \x1b[2mb\x1b[0m\x1b[36mc\x1b[0m"
    assert paint(row, Palette.ATTRIBUTES) == "\x1b[1ma\x1b[0m \x1b[2mb\x1b[0mc"
    assert paint(row, Palette.NONE) == plain_text(row) == "a bc"


def test_no_style_has_a_background_or_a_bright_colour() -> None:
    for role in Role:
        painted = paint((Span("x", role),), Palette.HUES)
        codes = painted.removesuffix("x\x1b[0m").strip("\x1b[m").split(";")
        assert set(codes) <= {"", "x", "1", "2", "31", "32", "33", "36"}, role


def test_rich_shows_the_same_text_in_the_same_styles() -> None:
    rows = [line(Span("a", Role.FAILED_NAME), " [b]"), (), line(Span("c", Role.QUIET))]
    text = rich_text(rows)
    assert text.plain == "a [b]\n\nc"
    theme = rich_theme(Palette.HUES)
    assert str(theme.styles[Role.FAILED_NAME.value]) == "bold red"
    assert str(rich_theme(Palette.ATTRIBUTES).styles[Role.FAILED_NAME.value]) == "bold"


@given(PROSE, CELLS)
def test_cut_text_fits_and_tells_that_it_is_cut(text: str, cells: int) -> None:
    for cut, end in ((cut_end, -1), (cut_front, 0)):
        shown = cut(text, cells, "…")
        assert width_of(shown) <= cells
        assert shown == text or shown[end] == "…"


@given(st.lists(PROSE, max_size=6), CELLS)
def test_facts_keep_every_word_and_the_width(texts: list[str], cells: int) -> None:
    rows: list[Line] = [line(text) for text in texts if text.strip()]
    lines = facts(rows, cells, UNICODE)
    assert all(width(row) <= cells for row in lines)
    written = "".join("".join(map(plain_text, lines)).replace("·", "").split())
    assert written == "".join("".join(texts).replace("·", "").split())


@given(st.text(alphabet="ab 模é", max_size=80), CELLS)
def test_wrapped_prose_keeps_every_letter_and_the_width(text: str, cells: int) -> None:
    lines = wrap(line(text), cells)
    assert all(width(row) <= cells for row in lines)
    assert "".join("".join(map(plain_text, lines)).split()) == "".join(text.split())


def test_a_tag_that_is_too_long_loses_its_front() -> None:
    tag = line(Span("rack-3-gpu-node-017/cuda:5 r123", Role.QUIET))
    assert plain_text(in_gutter(tag, 24, "…")) == "…pu-node-017/cuda:5 r123"
    assert plain_text(in_gutter(line("a"), 4, "…")) == "   a"


def test_the_right_text_leaves_where_both_do_not_fit() -> None:
    left, right = line("left"), line("right")
    assert plain_text(spread(left, right, 12, "…")) == "left   right"
    assert plain_text(spread(left, right, 10, "…")) == "left"


TABLE = (
    Column("NAME"),
    Column("KIND", leaves=1),
    Column("STEP", right=True),
    Column("UTIL%", right=True, leaves=9),
    Column("REASON", is_prose=True),
)
ROWS: list[list[Line]] = [
    [line("a"), line("H100"), line("6,412"), line("97"), line("four words of prose")],
    [line("b-long"), line("A100"), line("12"), line("100"), line("x " * 20)],
]


def shown(cells: int, *, whole: int = 3) -> list[str]:
    lines = columns(TABLE, ROWS, cells, mark="…", whole=whole)
    assert all(width(row) <= cells for row in lines)
    return [plain_text(row) for row in lines]


def test_columns_line_up_with_numbers_at_the_right() -> None:
    assert shown(80)[:3] == [
        "NAME    KIND   STEP  UTIL%  REASON",
        "a       H100  6,412     97  four words of prose",
        "b-long  A100     12    100  " + "x " * 19 + "x",
    ]


def test_only_prose_shrinks_and_wraps() -> None:
    assert shown(52)[2:] == [
        "b-long  A100     12    100  x x x x x x x x x x x x",
        "                            x x x x x x x x",
    ]


def test_later_reasons_are_cut_to_one_line() -> None:
    assert shown(52, whole=1)[2:] == ["b-long  A100     12    100  x x x x x x x x x x x x…"]


def test_columns_leave_in_their_order_and_facts_stay_whole() -> None:
    assert shown(45)[0].split() == ["NAME", "KIND", "STEP", "REASON"]
    assert shown(38)[0].split() == ["NAME", "STEP", "REASON"]
    assert all("6,412" in shown(cells)[1] for cells in range(38, 90))


@pytest.mark.parametrize("share", (-1.0, 0.0, 0.001, 0.5, 0.6412, 0.999, 1.0, 2.0))
@pytest.mark.parametrize("cells", (1, 7, 31, 80))
def test_a_bar_has_its_width_and_is_full_only_when_all_is_done(share: float, cells: int) -> None:
    drawn = plain_text(bar(share, cells, UNICODE))
    assert len(drawn) == cells
    assert (drawn == "━" * cells) is (share >= 1)


@given(st.integers(min_value=0, max_value=30), st.floats(min_value=0, max_value=2), CELLS)
def test_a_band_has_its_width_whatever_runs_in_it(pieces: int, share: float, cells: int) -> None:
    assert width(band(pieces, share, cells, UNICODE)) == cells


def test_a_band_shows_micro_steps_one_after_the_other_and_then_the_wait() -> None:
    assert plain_text(band(3, 38 / 135, 14, UNICODE)) == "━━━╸━━━╸━━━╸──"
    assert plain_text(band(1, 76 / 135, 14, UNICODE)) == "━━━━━━━╸──────"
    assert plain_text(band(1, 131 / 135, 34, UNICODE)) == "━" * 32 + "╸─"
    assert plain_text(band(20, 0.04, 14, UNICODE)) == "━━━━━━━━━━━━━╸"
    assert plain_text(band(0, 0.0, 4, ASCII)) == "...."


@given(st.lists(st.floats(), max_size=100), st.integers(min_value=5, max_value=40))
def test_a_sparkline_never_outgrows_its_place(history: list[float], cells: int) -> None:
    drawn = sparkline(history, cells, UNICODE)
    assert len(drawn) <= cells
    assert set(drawn) <= set(UNICODE.spark + "!")


def test_a_sparkline_falls_with_the_loss_and_marks_what_is_no_number() -> None:
    assert sparkline([4.0, 2.0, math.nan, 1.0], 10, UNICODE) == "█▃!▁"
    assert sparkline([1.0] * 3, 10, ASCII) == "111"
    assert sparkline([1.0], 10, UNICODE) == ""


@given(st.text())
def test_literal_text_is_one_line_without_controls(text: str) -> None:
    for shown_text in (literal(text), literal_output(text, with_colours=False).replace("\t", " ")):
        assert not any(letter < " " or "\x7f" <= letter <= "\x9f" for letter in shown_text)
        assert not set(shown_text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2069\u2028")


def test_escapes_are_shown_by_their_number() -> None:
    assert literal("a\x1b[2Jb\u202ec\td\r\n") == "a\\x1b[2Jb\\u202ec d\\x0d\\x0a"


def test_only_colours_pass_and_are_closed() -> None:
    text = "\x1b[1;31mred\x1b[0m \x1b[38;5;9mmore \x1b]0;title\x07"
    assert literal_output(text, with_colours=True) == (
        "\x1b[1;31mred\x1b[0m \x1b[38;5;9mmore \\x1b]0;title\\x07\x1b[0m"
    )
    assert literal_output(text, with_colours=False) == "red more \\x1b]0;title\\x07"
