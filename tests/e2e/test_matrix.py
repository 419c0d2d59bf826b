"""One digest per model and number of logical workers, whatever the layout and the loader.

The suite runs a cover in which every pair of values meets; `make proof` runs the whole matrix.
"""

import json
import re
import sys
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.cover import pairwise
from tests.support.processes import run_easyscale, started

SCRIPT = Path(__file__).parent / "scripts" / "matrix.py"
FACTORS = {
    "model": ("mlp", "cnn", "transformer", "tied", "scaler", "onecycle"),
    "n": (1, 2, 3, 5, 8, 16),
    "layout": ("1", "2", "3", "4", "unequal", "scattered"),
    "loader_workers": (0, 2),
}
COVER = [tuple(row.values()) for row in pairwise(FACTORS)]
REST = [row for row in product(*FACTORS.values()) if row not in COVER]


class Seen(NamedTuple):
    """All that must be the same in every layout."""

    digest: str
    result: dict[str, object]
    batches: dict[str, str]


def seen_in(out: Path, digest: str) -> Seen:
    batches = {path.name: path.read_text() for path in out.glob("batch-*")}
    return Seen(digest, json.loads((out / "result.json").read_text()), batches)


@cache
def reference(model: str, n: int) -> Seen:
    """One process, no launcher: the run that all others are compared with."""
    out = Path(_scratch()) / f"{model}-{n}"
    command = [sys.executable, str(SCRIPT), model, str(out)]
    with started(command, env={"EASYSCALE_LOGICAL_WORKERS": str(n)}) as run:
        assert run.wait() == 0, run.report()
        said = re.search(r"digest ([0-9a-f]{64})$", run.stderr, re.MULTILINE)
        assert said, run.report()
        return seen_in(out, digest=said[1])


def layout_options(layout: str, n: int) -> list[str]:
    """Slots, and where the planner would not do it by itself, which logical ranks each holds."""
    match layout:
        case "unequal" if n >= 3:
            map_ = [list(range(n - 2)), [n - 2], [n - 1]]
        case "scattered" if n >= 2:
            slots = min(3, n)
            map_ = [list(range(slot, n, slots)) for slot in range(slots)]
        case "unequal" | "scattered":
            return ["--devices", "cpu:3"]
        case _:
            return ["--devices", f"cpu:{layout}"]
    text = "|".join(",".join(map(str, ranks)) for ranks in map_)
    return ["--devices", f"cpu:{len(map_)}", "--layout", text]


def launch(out: Path, model: str, n: int, layout: str, loader_workers: int) -> Seen:
    ended = run_easyscale(
        "launch", "--json", "--logical-workers", str(n), *layout_options(layout, n),
        str(SCRIPT), model, str(out), "--loader-workers", str(loader_workers),
        cwd=out.parent,
    )  # fmt: skip
    assert ended.code == 0, ended.stdout + ended.stderr
    assert '"event":"lost"' not in ended.stdout, (
        ended.stdout
    )  # what main wrote would be in two parts
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["event"] == "finished", ended.stdout
    return seen_in(out, digest=last["digest"])


def check(tmp_path: Path, model: str, n: int, layout: str, loader_workers: int) -> None:
    seen = launch(tmp_path / "out", model, n, layout, loader_workers)
    expected = reference(model, n)
    assert seen.result == expected.result
    assert seen.batches == expected.batches
    assert seen.digest == expected.digest


@pytest.mark.parametrize(("model", "n", "layout", "loader_workers"), COVER)
def test_the_layout_does_not_reach_the_weights(
    tmp_path: Path, model: str, n: int, layout: str, loader_workers: int
) -> None:
    check(tmp_path, model, n, layout, loader_workers)


@pytest.mark.proof
@pytest.mark.parametrize(("model", "n", "layout", "loader_workers"), REST)
def test_nor_does_it_in_any_other_row_of_the_matrix(
    tmp_path: Path, model: str, n: int, layout: str, loader_workers: int
) -> None:
    check(tmp_path, model, n, layout, loader_workers)


_folder: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _scratch_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    _folder.append(str(tmp_path_factory.mktemp("references")))


def _scratch() -> str:
    return _folder[-1]
