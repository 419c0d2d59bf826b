"""`doctor` at every width: a line a check, an arrow for each cure, the verdict last."""

import json
from collections.abc import Callable

import pytest

from easyscale.agent.checkup.doctor import ScriptFacts, StoreFacts, judge
from easyscale.agent.checkup.node_facts import FolderFacts, TorchFacts
from easyscale_cli.views.doctor import doctor_json, doctor_lines, verdict
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.style import plain_text
from tests.support.checkup import met, node

SOUND = judge(StoreFacts(version="bundled 3.5.1"), (node(gpus=(), driver="", cores=2),))
SICK = judge(
    StoreFacts(endpoints=3, version="3.5.21", put_s=0.0012, slowest_put_s=0.004),
    met(
        node("a"),
        node("b", gpus=("NVIDIA A100",) * 4, open_files=1024),
        node(
            "c",
            torch=TorchFacts(version="2.12.1+cu128", cuda="12.8"),
            folder=FolderFacts(path="runs/resnet50", fault="read-only file system"),
        ),
    ),
    ScriptFacts(name="train.py", calls_init=True),
)


@pytest.mark.parametrize("cells", (60, 80, 120, 160))
@pytest.mark.parametrize("is_ascii", (False, True), ids=["unicode", "ascii"])
def test_the_checkup_keeps_its_width(
    compare_screen: Callable[..., None], cells: int, is_ascii: bool
) -> None:
    glyphs = ASCII if is_ascii else UNICODE
    lines = [
        *doctor_lines(SICK, cells=cells, glyphs=glyphs),
        (),
        *doctor_lines(SOUND, cells=cells, glyphs=glyphs),
    ]
    compare_screen("doctor", lines, cells=cells, is_ascii=is_ascii)


def test_what_is_not_good_has_an_arrow_below_it() -> None:
    lines = [plain_text(row) for row in doctor_lines(SICK, cells=200, glyphs=UNICODE)]
    for number, text in enumerate(lines):
        if text.startswith(("!", "✗")):
            assert lines[number + 1].strip().startswith("→")


def test_the_verdict_counts_and_says_the_exit_code() -> None:
    assert verdict(SICK) == (
        "7 good, 2 warnings, 1 fault; fix the fault before you launch   exit 1"
    )
    assert verdict(SOUND).endswith("good; nothing stops a launch")


def test_json_has_the_level_and_the_nodes_of_each_check() -> None:
    value = json.loads(doctor_json(SICK))
    assert (value["version"], value["exit_code"]) == (1, 1)
    [folder] = [check for check in value["checks"] if check["name"] == "shared folder"]
    assert (folder["level"], folder["nodes"]) == ("fault", ["c"])
    assert folder["try"]
    assert json.loads(doctor_json(SOUND))["exit_code"] == 0
