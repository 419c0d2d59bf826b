"""The examples as the README runs them: alone and launched they end with one digest."""

import json
import re
import sys
from pathlib import Path

import pytest

from tests.support.processes import run_easyscale, started

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
DEADLINE_S = 200.0


@pytest.mark.proof  # the quickstart, which the tests of the pages run, holds it for the digits
@pytest.mark.parametrize("name", ["digits.py", "char_gpt.py"])
def test_an_example_ends_with_one_digest_alone_and_launched(tmp_path: Path, name: str) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    command = [sys.executable, str(EXAMPLES / name)]
    with started(command, cwd=alone, deadline_s=DEADLINE_S) as run:
        assert run.wait() == 0, run.report()
        digest = re.search(r"digest ([0-9a-f]{64})$", run.stderr, re.MULTILINE)
        assert digest, run.report()
        said = run.stdout.splitlines()
    words = ("--logical-workers", "16", "--devices", "cpu:3", "--json", str(EXAMPLES / name))
    launched = run_easyscale("launch", *words, cwd=tmp_path, deadline_s=DEADLINE_S)
    assert launched.code == 0, launched.stderr
    end = json.loads(launched.stdout.splitlines()[-1])
    assert (end["event"], end["digest"]) == ("finished", digest[1])
    if name == "digits.py":
        assert float(said[-1].rpartition("held out ")[2].rstrip("%")) > 97
    checkpoint = name.replace(".py", ".pt")
    assert (tmp_path / checkpoint).read_bytes() == (alone / checkpoint).read_bytes()
