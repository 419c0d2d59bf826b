"""The comparison of layouts sees the loss of each promise that it stands for."""

import re
from pathlib import Path

import pytest

from tests.support.processes import ROOT, run_easyscale

SCRIPT = Path(__file__).parent / "scripts" / "matrix.py"
DEFECTS = (
    ("stream_not_keyed", "mlp"),
    ("divisor_is_processes", "mlp"),
    ("buffers_leak", "cnn"),
    ("gradient_skipped", "transformer"),
    ("threads_not_pinned", "wide"),
)
#: What one process has and another has not is refused before any digest is compared.
REFUSED = re.compile(r"model\.\S+ has come to differ")


def weights(folder: Path, model: str, *, slots: int, defect: str = "") -> str:
    out = folder / f"{defect or 'sound'}-{slots}"
    planted = ["--preload", f"tests.support.defects.{defect}"] if defect else []
    ended = run_easyscale(
        "launch", "--logical-workers", "4", "--devices", f"cpu:{slots}", *planted,
        str(SCRIPT), model, str(out), "--epochs", "1",
        cwd=folder, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    if defect and (seen := REFUSED.search(ended.stderr)):
        return seen[0]  # the members themselves saw it
    assert ended.code == 0, ended.stdout + ended.stderr
    return (out / "result.json").read_text()


@pytest.mark.parametrize(("defect", "model"), DEFECTS)
def test_two_layouts_differ_as_soon_as_the_promise_is_broken(
    tmp_path: Path, defect: str, model: str
) -> None:
    one = weights(tmp_path, model, slots=1, defect=defect)
    assert weights(tmp_path, model, slots=2, defect=defect) != one


def test_the_model_that_shows_threads_is_the_same_in_both_layouts_without_the_defect(
    tmp_path: Path,
) -> None:
    """The other models are in the matrix."""
    assert weights(tmp_path, "wide", slots=1) == weights(tmp_path, "wide", slots=2)
