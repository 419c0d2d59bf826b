"""Runs small.py in which the worker on NODE never gets to the end of a snapshot.

stalling.py NODE MARK [words of small.py]: the file MARK says that it has begun one.
"""

import os
import runpy
import sys
import threading
from pathlib import Path

from easyscale.runtime import snapshots

node, mark = sys.argv[1:3]
sys.argv[1:3] = []


def stall(state, origin):
    Path(mark).touch()
    threading.Event().wait()


if os.environ.get("EASYSCALE_NODE") == node:
    snapshots.write_snapshot = stall
runpy.run_path(str(Path(__file__).with_name("small.py")), run_name="__main__")
