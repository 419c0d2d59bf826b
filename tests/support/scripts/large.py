"""small.py with a state that takes as many seconds to make as the first word says."""

import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from easyscale.runtime.state import State

seconds = float(sys.argv.pop(1))
chunks = State.chunks


def slowly(self: State) -> Iterator[bytes]:
    time.sleep(seconds)
    yield from chunks(self)


State.chunks = slowly  # type: ignore[method-assign]
runpy.run_path(str(Path(__file__).with_name("small.py")), run_name="__main__")
