"""Claims about members that die, freeze or lose a result: the others go on to the same bits."""

import json
import subprocess
import sys

import pytest

from tests.support.drill import CALLS, LAYOUTS, faults


@pytest.mark.timeout(180)  # seconds of work, but many forks on a machine that may be busy
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_member_lost_at_any_call_of_an_early_exchange_changes_no_bit(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.drill", name],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(faults(name)), done.stderr
    assert all(line["right"] for line in lines), lines
    lost, *others = lines
    # A lost result is served as a record; nobody died, nobody is suspected.
    assert lost["finished"] == len(LAYOUTS[name])
    assert lost["calls"] == CALLS[name]
    assert lost["suspects"] == []
    for line in others:
        assert line["finished"] == len(LAYOUTS[name]) - 1
        assert set(line["suspects"]) <= {line["victim"]}
        assert line["noticed_s"] < 2.0
        # One that was stopped and wakes ends itself; only the plan tells the others.
        assert line["fenced"] == line["stops"]
    killed = [line for line in others if not line["stops"]]
    # A closed socket tells of a death and the listener refuses, unless the new plan was faster.
    assert any(line["suspects"] == [line["victim"]] for line in killed)
