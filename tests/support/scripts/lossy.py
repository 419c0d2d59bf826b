"""Runs small.py in which one worker loses a result that all others hold.

lossy.py NODE KIND POSITION [words of small.py]: the worker on NODE completes the operation and then
behaves as if its last bytes had not come. Natural faults hit this moment rarely.

With `record=aliased` among the words, results are handed out as they are kept, so that clipping in
place reaches what is served.
"""

import os
import runpy
import sys
from pathlib import Path

from easyscale.errors import GenerationBroken
from easyscale.runtime.exchange import Exchange
from easyscale.runtime.record import Held

node, kind, position = sys.argv[1:4]
sys.argv[1:4] = []


def losing(method):
    def call(self, operation, *arguments, **options):
        record = method(self, operation, *arguments, **options)
        if (operation.kind, operation.position) == (kind, int(position)) and self.losing:
            Exchange.losing = False
            raise GenerationBroken(f"{operation.name}: its last bytes are lost")
        return record

    return call


def aliased(held, present, devices):
    found = [None] * len(present)
    for bucket, views in zip(held.buckets, held._views, strict=True):
        for piece, view in zip(bucket.pieces, views, strict=True):
            if present[piece.index]:
                found[piece.index] = view
    return found


if "record=aliased" in sys.argv:
    sys.argv.remove("record=aliased")
    Held.gradients = aliased
Exchange.losing = os.environ.get("EASYSCALE_NODE") == node
Exchange.step = losing(Exchange.step)
Exchange.gather = losing(Exchange.gather)
runpy.run_path(str(Path(__file__).with_name("small.py")), run_name="__main__")
