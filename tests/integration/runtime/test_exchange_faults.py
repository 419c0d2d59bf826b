"""Claims about members that die or lose a result: the others redo it and get the same bits."""

import json
import subprocess
import sys

import pytest

from tests.support.drill import CALLS, LAYOUTS, faults


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_member_killed_at_any_call_of_an_early_exchange_changes_no_bit(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.drill", name],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(faults(name)), done.stderr
    assert all(line["right"] for line in lines), lines
    lost, *killed = lines
    # A lost result is served as a record; nobody died, nobody is suspected.
    assert lost["finished"] == len(LAYOUTS[name])
    assert lost["calls"] == CALLS[name]
    assert lost["suspects"] == []
    for line in killed:
        assert line["finished"] == len(LAYOUTS[name]) - 1
        assert set(line["suspects"]) <= {line["victim"]}
        assert line["noticed_s"] < 2.0
    # A closed socket tells of a death and the listener refuses, unless the new plan was faster.
    assert any(line["suspects"] == [line["victim"]] for line in killed)
