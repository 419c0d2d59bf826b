"""The table of a profile at every width, its JSON, and the picture."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from easyscale.agent.balance.sharing import interference
from easyscale.balance import ProfilePoint, ProfileRecord
from easyscale_cli.plotting import draw_profile
from easyscale_cli.views.glyphs import ASCII, UNICODE, Glyphs
from easyscale_cli.views.layout import width
from easyscale_cli.views.profile import profile_json, profile_lines


def point(fast: int, slow: int, step_s: float) -> ProfilePoint:
    slots = {kind: n for kind, n in (("A100", slow), ("H100", fast)) if n}
    return ProfilePoint(
        slots=slots,
        counts=(4,) * fast + (2,) * slow,
        step_s=step_s,
        micro_steps_per_s=16 / step_s,
        predicted_s=step_s * 0.9,
    )


RECORD = ProfileRecord(
    wish="w",
    by="asked by ann",
    at="2026-10-04T14:07:11.000Z",
    logical_workers=16,
    planned=4,
    points=(point(2, 2, 0.1), point(1, 1, 0.19), point(2, 0, 0.12), point(1, 0, 0.23)),
    done=True,
)


@pytest.mark.parametrize("cells", [60, 80, 120, 160])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_profile_keeps_its_width_and_names_every_size(cells: int, glyphs: Glyphs) -> None:
    lines = profile_lines("resnet50", RECORD, cells=cells, glyphs=glyphs)
    assert all(width(each) <= cells for each in lines)
    text = "\n".join("".join(span.text for span in each) for each in lines)
    assert "4 of 4 sizes measured" in text
    assert [line.split()[0] for line in text.splitlines()[3:]] == ["4", "2", "2", "1"]
    for step in ("100 ms", "190 ms", "120 ms", "230 ms"):
        assert step in text


def eight(*sizes: tuple[dict[str, int], tuple[int, ...], float]) -> ProfileRecord:
    """Up to eight slots of kinds with long names."""
    points = tuple(
        ProfilePoint(
            slots=slots, counts=counts, step_s=step_s, micro_steps_per_s=16 / step_s,
            predicted_s=None,
        )
        for slots, counts, step_s in sizes
    )  # fmt: skip
    return ProfileRecord(
        wish="w", by="", at="", logical_workers=16, planned=len(points), points=points, done=True
    )


FAST, SLOW = "H100 80GB HBM3", "A100-SXM4-80GB"
MIXED = eight(
    ({FAST: 4, SLOW: 4}, (3, 3, 3, 3, 1, 1, 1, 1), 0.118),
    ({FAST: 4}, (4, 4, 4, 4), 0.152),
    ({SLOW: 1}, (16,), 1.216),
)
ALIKE = eight(({FAST: 8}, (2,) * 8, 0.05), ({FAST: 2}, (8, 8), 0.19), ({FAST: 1}, (16,), 0.37))


@pytest.mark.parametrize("cells", [60, 80, 120, 160])
@pytest.mark.parametrize("is_ascii", [False, True], ids=["unicode", "ascii"])
def test_a_profile_of_eight_slots_is_drawn_at_every_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    glyphs = ASCII if is_ascii else UNICODE
    lines = [
        row
        for record in (RECORD, MIXED, ALIKE)
        for row in [*profile_lines("resnet50", record, cells=cells, glyphs=glyphs), ()]
    ]
    heads = ["".join(span.text for span in row) for row in lines]
    assert sum("THROUGHPUT" in head for head in heads) == 3
    compare_screen("profile", lines, cells=cells, is_ascii=is_ascii)


def test_slots_of_one_device_tell_what_they_take_from_each_other() -> None:
    both = ProfilePoint(
        slots={"H100": 2}, counts=(2, 2), step_s=0.2, micro_steps_per_s=20.0, predicted_s=None,
        micro_steps={"a/cuda:0/0": 0.1, "a/cuda:0/1": 0.1},
    )  # fmt: skip
    one = ProfilePoint(
        slots={"H100": 1}, counts=(4,), step_s=0.32, micro_steps_per_s=12.5, predicted_s=None,
        micro_steps={"a/cuda:0/0": 0.08},
    )  # fmt: skip
    record = ProfileRecord(
        wish="w", by="", at="", logical_workers=4, planned=2, points=(both, one), done=True
    )
    assert interference(record) == {"a/cuda:0": pytest.approx(0.8)}
    text = "\n".join(
        "".join(span.text for span in each)
        for each in profile_lines("job", record, cells=80, glyphs=UNICODE)
    )
    assert "a/cuda:0: interference factor 0.80" in text
    assert interference(RECORD) == {}


def test_a_profile_that_has_just_begun_is_a_heading() -> None:
    begun = ProfileRecord(wish="w", by="", at="", logical_workers=16, planned=4)
    lines = profile_lines("resnet50", begun, cells=80, glyphs=UNICODE)
    assert len(lines) == 1


def test_the_json_of_a_profile_begins_with_version_and_job() -> None:
    value = json.loads(profile_json("resnet50", RECORD))
    assert list(value)[:2] == ["version", "job"]
    assert value["points"][0]["slots"] == {"A100": 2, "H100": 2}


def test_a_profile_is_drawn_as_a_png(tmp_path: Path) -> None:
    draw_profile("resnet50", RECORD, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [each.name for each in tmp_path.iterdir()] == ["curve.png"]
