"""Runs small.py in which one worker loses a result that all others hold.

lossy.py NODE KIND POSITION [words of small.py]: the worker on NODE completes the operation and then
behaves as if its last bytes had not come. Natural faults hit this moment rarely.
"""

import os
import runpy
import sys
from pathlib import Path

from easyscale.errors import GenerationBroken
from easyscale.runtime.exchange import Exchange

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


Exchange.losing = os.environ.get("EASYSCALE_NODE") == node
Exchange.step = losing(Exchange.step)
Exchange.gather = losing(Exchange.gather)
runpy.run_path(str(Path(__file__).with_name("small.py")), run_name="__main__")
