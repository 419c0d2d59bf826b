"""Plain lines, JSON lines and the two lines of an error."""

import json
import math

import pytest

from easyscale.errors import StoreUnreachable, UsageError
from easyscale.reports import EventKind
from easyscale_cli.views import plain
from easyscale_cli.views.errors import (
    error_lines,
    json_of_error,
    lines_of_error,
    near_miss,
    some_of,
)
from easyscale_cli.views.glyphs import UNICODE
from easyscale_cli.views.style import plain_text
from tests.unit.views import launch_states as states


def test_a_loss_reads_as_key_value_pairs_in_a_fixed_order() -> None:
    assert plain.event_line(states.LOST) == (
        "2026-10-04T14:07:10.480Z easyscale job=resnet50 event=lost node=b slot=cuda:2 pid=48213 "
        'signal=SIGKILL step=2944 ranks=14 generation=3 reason="SIGKILL; kernel log: out of memory"'
    )
    assert plain.event_line(states.RECOVERED) == (
        "2026-10-04T14:07:10.563Z easyscale job=resnet50 event=recovered step=2944 generation=4 "
        'pause_s=0.083 steps_lost=0 workers_kept=7 ranks_moved=14 reason="rank 14 ran again on '
        'a/cuda:1"'
    )


def test_the_era_is_told_from_the_second_one_on() -> None:
    line = plain.event_line(states.event(EventKind.STARTED, era=2, generation=7))
    assert line.endswith("step=0 era=2 generation=7")


@pytest.mark.parametrize(
    ("reason", "shown"),
    (
        ("plain", "reason=plain"),
        ("two words", 'reason="two words"'),
        ('a "quote" and \\', 'reason="a \\"quote\\" and \\\\"'),
        ("a=b", 'reason="a=b"'),
        ("line\nbreak\x1b[2J", 'reason="line\\\\x0abreak\\\\x1b[2J"'),
    ),
)
def test_a_value_is_quoted_where_a_reader_would_split_it(reason: str, shown: str) -> None:
    assert plain.event_line(states.event(EventKind.NOTE, reason=reason)).endswith(shown)


def test_facts_of_every_type_are_told() -> None:
    event = states.event(
        EventKind.NOTE, again=True, asked=False, have=("a", "b"), waited_s=12.5, left=None, z=1e-9
    )
    assert plain.event_line(event).endswith(
        "generation=1 again=true asked=false have=a,b waited_s=12.5 z=0"
    )


def test_what_json_cannot_say_is_null() -> None:
    assert plain.to_json({"a": math.nan, "b": [math.inf, 1.5], "c": {"d": (1,)}}) == (
        '{"a":null,"b":[null,1.5],"c":{"d":[1]}}'
    )


def test_an_event_in_json_starts_with_its_version_and_ends_with_its_reason() -> None:
    value = json.loads(plain.event_json(states.REBALANCED))
    assert [*value][:2] == ["version", "at"]
    assert [*value][-1] == "reason"
    assert value["step_s_before"] == 0.156
    assert value["reason"] == "A100 13.2/s, H100 26.3/s: a 2 -> 3, b 2 -> 1 a slot"


def text_of(message: str, hint: str, cells: int = 80) -> str:
    rows = error_lines(message, hint, cells=cells, glyphs=UNICODE)
    return "\n".join(map(plain_text, rows))


def test_an_error_is_a_fact_and_one_thing_to_try() -> None:
    message = "no job 'resnet5' in etcd-0:2379; it has resnet50, llama-1b and 4 more"
    assert text_of(message, "easyscale status resnet50") == (
        "error: no job 'resnet5' in etcd-0:2379; it has resnet50, llama-1b and 4 more\n"
        "  try: easyscale status resnet50"
    )


def test_a_long_error_wraps_under_its_beginning_and_is_literal() -> None:
    assert text_of("one two three \x1b[2J", "", cells=20) == (
        "error: one two three\n       \\x1b[2J"
    )


def test_an_error_raised_on_purpose_brings_its_own_words() -> None:
    error = UsageError("--nnodes 4:2: the minimum 4 is above the maximum 2", hint="--nnodes 2:4")
    rows = lines_of_error(error, cells=80, glyphs=UNICODE)
    assert [plain_text(row) for row in rows] == [
        "error: --nnodes 4:2: the minimum 4 is above the maximum 2",
        "  try: --nnodes 2:4",
    ]
    assert json.loads(json_of_error(StoreUnreachable("gone", hint="start etcd"))) == {
        "version": 1,
        "error": {
            "code": "store_unreachable",
            "message": "gone",
            "try": "start etcd",
            "exit_code": 3,
        },
    }


@pytest.mark.parametrize(
    ("word", "near"),
    (
        ("resnet5", "resnet50"),
        ("resnet", "resnet50"),
        ("rsenet50", "resnet50"),
        ("llama-2b", "llama-1b"),
        ("bert", None),
        ("resn", None),
    ),
)
def test_a_near_miss_is_offered_only_within_two_edits(word: str, near: str | None) -> None:
    assert near_miss(word, ["llama-1b", "resnet50", "vit"]) == near


def test_a_list_of_names_is_short() -> None:
    assert some_of(["resnet50", "llama-1b", "a", "b", "c", "d"]) == "resnet50, llama-1b and 4 more"
    assert some_of(["one"]) == "one"
