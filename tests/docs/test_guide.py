"""The guide from DDP: refusals point at paragraphs that exist, and its eight lines train."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from easyscale.errors import ScriptError
from easyscale.guide import PAGE, Paragraph, see

ROOT = Path(__file__).parent.parent.parent
GUIDE = (ROOT / PAGE).read_text()
AROUND = """
class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
g = torch.Generator().manual_seed(0)
dataset = torch.utils.data.TensorDataset(
    torch.randn(256, 4, generator=g), torch.randint(0, 3, (256,), generator=g))
"""


def anchors() -> set[str]:
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"```.*?```", "", GUIDE, flags=re.DOTALL), re.MULTILINE
    )
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("paragraph", list(Paragraph))
def test_a_paragraph_that_refusals_point_to_exists_once(paragraph: Paragraph) -> None:
    assert paragraph in anchors()
    source = "\n".join(path.read_text() for path in (ROOT / "easyscale").rglob("*.py"))
    source += (ROOT / "rendezvous" / "code_record.py").read_text()
    assert f"Paragraph.{paragraph.name}" in source, "nothing points there"


def test_a_refusal_ends_with_its_paragraph() -> None:
    error = ScriptError("no", hint="do this", see=Paragraph.SAMPLERS)
    assert error.hint == f"do this ({see(Paragraph.SAMPLERS)})"
    assert ScriptError("no", see=Paragraph.SAMPLERS).hint == see(Paragraph.SAMPLERS)
    assert ScriptError("no", hint="do this").hint == "do this"


def test_the_eight_lines_are_eight_and_train(tmp_path: Path) -> None:
    block = re.search(r"```diff\n(.*?)```", GUIDE, re.DOTALL)
    assert block is not None
    lines = [line[1:] for line in block[1].splitlines() if not line.startswith("-")]
    numbered = [line for line in lines if re.search(r"# \d$", line)]
    assert [line.rpartition("# ")[2] for line in numbered] == list("12345678")
    text = "\n".join(lines).replace("range(10)", "range(1)").replace("epochs(10)", "epochs(1)")
    imports, _, rest = text.partition("\n\n")
    (tmp_path / "train.py").write_text(f"{imports}\n{AROUND}\n{rest}\n")
    run = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100,
        check=False, env={"PATH": "/usr/bin:/bin", "EASYSCALE_LOGICAL_WORKERS": "2"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "model.pt").is_file()
