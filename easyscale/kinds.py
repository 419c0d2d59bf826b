"""The kind of a slot as columns and reasons show it: what a person calls the device; pure.

The whole kind, which names every library that reaches the bits, stands in JSON.
"""

import re
from typing import Final

_VENDOR: Final = re.compile(r"^(NVIDIA|AMD) (?=\S)")
#: Where the device's name ends and what else reaches the bits begins.
_REST: Final = re.compile(r" (?:sm-|torch-).*")


def short_kind(kind: str) -> str:
    """`H100 80GB HBM3`, `cpu avx2`."""
    if kind.startswith("cpu "):
        return " ".join(kind.split(" ")[:2])
    return _REST.sub("", _VENDOR.sub("", kind))
