"""What is told of an exception: the user's own innermost line, with what leads to it."""

import json

import pytest

from easyscale.errors import JobConflict, ScriptError
from easyscale.messages import Failure
from easyscale.model import GenerationNumber
from easyscale.runtime.failure import describe_failure


def described(error: BaseException) -> Failure:
    return describe_failure(error, rank=5, step=7, generation=GenerationNumber(1, 2))


def read_labels(text: str) -> object:
    return json.loads(text)


def test_the_innermost_line_of_the_users_own_files_is_named() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        read_labels("{")
    failure = described(caught.value)
    assert failure.type == "json.decoder.JSONDecodeError"
    assert (failure.file, failure.function) == (__file__, "read_labels")
    assert failure.excerpt[-1].text == "    return json.loads(text)"
    assert failure.excerpt[-1].number == failure.line
    assert len(failure.excerpt) == 4
    assert failure.caller.startswith(f"{__file__}:")
    assert failure.hidden_frames >= 2
    assert "read_labels" in failure.traceback
    assert (failure.rank, failure.step) == (5, 7)
    assert not failure.refused


def test_a_refusal_is_the_same_everywhere_and_brings_its_hint() -> None:
    failure = described(ScriptError("a sentence", hint="what to write"))
    assert (failure.refused, failure.hint, failure.type) == (True, "what to write", "ScriptError")
    assert described(JobConflict("another N")).refused


def test_a_syntax_error_is_named_where_it_stands() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("x = (\n", "train.py", "exec")
    failure = described(caught.value)
    assert (failure.file, failure.line) == ("train.py", 1)


def test_an_error_without_text_or_trace_is_still_told() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    failure = described(Silent())
    assert "its text cannot be had" in failure.text
    assert (failure.file, failure.line, failure.excerpt) == ("", 0, ())
