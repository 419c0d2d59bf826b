"""An agent that inherits orphans waits for them, and its own children stay with their starter."""

import subprocess
import sys
from pathlib import Path

ORPHANS = """
import os, subprocess, sys, time
from easyscale.agent.processes.orphans import OrphanReaper, dead_children
from easyscale.runtime.kinship import adopt_orphans

adopt_orphans()  # what PID 1 of a container is by itself
reaper = OrphanReaper(every_s=0.05, after_s=0.3)
reaper.start()
own = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
leave = "import subprocess, sys; print(subprocess.Popen(['sleep', '0.2']).pid)"
orphan = int(subprocess.run([sys.executable, "-c", leave], stdout=subprocess.PIPE).stdout)
assert own.wait() == 7
deadline = time.monotonic() + 20
while os.path.exists(f"/proc/{orphan}"):
    assert time.monotonic() < deadline, "the orphan is still there"
    time.sleep(0.02)
reaper.close()
assert dead_children() == []
"""


def test_orphans_are_waited_for_and_own_children_keep_their_exit_codes(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", ORPHANS], capture_output=True, text=True, timeout=50, cwd=tmp_path,
        check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
