"""One digest per model and number of logical workers, whatever the layout and the loader.

In a cover every pair of values meets. The suite runs half of it, `make proof` the whole matrix.
"""

import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from easyscale.model import Mode
from tests.support.cover import pairwise
from tests.support.crew import Crew, Zygote
from tests.support.processes import run_easyscale, started

SCRIPT = Path(__file__).parent / "scripts" / "matrix.py"
FACTORS = {
    "model": ("mlp", "cnn", "transformer", "tied", "scaler", "onecycle"),
    "n": (1, 2, 3, 5, 8, 16),
    "layout": ("1", "2", "3", "4", "unequal", "scattered"),
    "loader_workers": (0, 2),
}
COVER = [tuple(row.values()) for row in pairwise(FACTORS)]
#: These go through the whole launcher, the other rows through its zygote and workers alone.
LAUNCHED = COVER[::6]
QUICK = [row for row in COVER[::2] if row not in LAUNCHED]
REST = [row for row in product(*FACTORS.values()) if row not in LAUNCHED + QUICK]


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


def share_out(layout: str, n: int) -> list[list[int]]:
    """Which logical ranks each worker holds; one without ranks is a member all the same."""
    match layout:
        case "unequal" if n >= 3:
            return [list(range(n - 2)), [n - 2], [n - 1]]
        case "scattered" if n >= 2:
            return [list(range(slot, n, 3)) for slot in range(3)]
        case "unequal" | "scattered":
            return [[], list(range(n))]
        case _:
            slots = int(layout)
            return [list(range(n * i // slots, n * (i + 1) // slots)) for i in range(slots)]


def layout_options(layout: str, n: int) -> list[str]:
    """The same for a launch: slots, and the map where the planner would make another."""
    if layout.isdecimal():
        return ["--devices", f"cpu:{layout}"]
    shares = [ranks for ranks in share_out(layout, n) if ranks]
    text = "|".join(",".join(map(str, ranks)) for ranks in shares)
    return ["--devices", f"cpu:{len(shares)}", "--layout", text]


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


@pytest.mark.parametrize(("model", "n", "layout", "loader_workers"), LAUNCHED)
def test_the_layout_does_not_reach_the_weights(
    tmp_path: Path, model: str, n: int, layout: str, loader_workers: int
) -> None:
    check(tmp_path, model, n, layout, loader_workers)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("model", "n", "layout", "loader_workers"),
    [
        *QUICK,
        *(pytest.param(*row, marks=pytest.mark.proof) for row in REST),
    ],
)
def test_nor_does_it_in_any_other_row_of_the_matrix(  # noqa: PLR0917 - one for each factor
    zygote: Zygote, tmp_path: Path, model: str, n: int, layout: str, loader_workers: int
) -> None:
    """Real workers of a real zygote; the test commits the layout itself, which saves a launch."""
    out, shares = tmp_path / "out", share_out(layout, n)
    words = (model, str(out), "--loader-workers", str(loader_workers))
    with Crew(zygote, tmp_path, SCRIPT, *words, logical_workers=n) as crew:
        hands = [crew.start(f"n{number}") for number in range(len(shares))]
        crew.registered(*hands)
        crew.commit(Mode.RESTORE, dict(enumerate(shares)))
        (digest,) = crew.finished(*hands)
    assert seen_in(out, digest) == reference(model, n)


_folder: list[str] = []


@pytest.fixture(scope="module", autouse=True)
def _scratch_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    _folder.append(str(tmp_path_factory.mktemp("references")))


def _scratch() -> str:
    return _folder[-1]
