"""`verify` at every width: the table while it grows, and the four verdicts."""

import json
from collections.abc import Callable

import pytest

from easyscale.agent.verify.verified import Verified
from easyscale_cli.views.glyphs import ASCII, UNICODE, Glyphs
from easyscale_cli.views.style import Line, plain_text
from easyscale_cli.views.verify import run_lines, verdict_lines, verified_json
from tests.unit.views import verify_states as states


def screen(verified: Verified, cells: int, glyphs: Glyphs) -> list[Line]:
    rows = run_lines(verified.runs, steps=verified.asked_steps, cells=cells, glyphs=glyphs)
    return [*rows, *verdict_lines(verified, cells=cells, glyphs=glyphs)]


@pytest.mark.parametrize("cells", (60, 80, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
@pytest.mark.parametrize("name", ("same", "differs", "not_comparable", "not_finished"))
def test_every_verdict_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool, name: str
) -> None:
    verified = getattr(states, name.upper())
    lines = screen(verified, cells, ASCII if is_ascii else UNICODE)
    compare_screen(f"verify-{name}", lines, cells=cells, is_ascii=is_ascii)


@pytest.mark.parametrize("cells", (80, 160))
def test_a_row_stands_where_it_will_stand_when_its_run_is_over(cells: int) -> None:
    growing = run_lines(states.PLANNED, steps=30, cells=cells, glyphs=UNICODE)
    over = run_lines(states.ROWS, steps=30, cells=cells, glyphs=UNICODE)
    assert [plain_text(row) for row in growing[:5]] == [plain_text(row) for row in over[:5]]
    assert "○ changing in place" in plain_text(growing[5])
    assert "step 14/30" in plain_text(growing[5])


def test_json_says_what_the_screen_says() -> None:
    value = json.loads(verified_json(states.DIFFERS))
    assert value["verdict"] == "bits_differ"
    assert value["likely_cause"] == "unregistered_state"
    assert value["first_difference"]["got_bits"] == "0x3f800000"
    assert value["evidence"] == ["train.py:31 writes self.running_scale"]
    assert value["try"].endswith("torch.ones(1))")
    assert [run["same"] for run in value["runs"]] == [True, True, True, True, False]


def test_json_of_equal_bits_has_no_cause() -> None:
    value = json.loads(verified_json(states.SAME))
    assert value["verdict"] == "same_bits"
    assert value["likely_cause"] is None
    assert value["digest"] == states.DIGEST
