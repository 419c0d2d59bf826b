"""The kind of a slot: what reaches the bits, and in brackets what a person calls the device; pure.

`nvidia sm-9.0 132-sms 2048-threads torch-2.13.0 ... (NVIDIA H200)`: the name is shown and never
compared. The whole kind, which names every library that reaches the bits, stands in JSON.
"""

import re
from typing import Final

_VENDOR: Final = re.compile(r"^(NVIDIA|AMD) (?=\S)")
_NAME: Final = re.compile(r" \((?P<name>.*)\)$")
#: What a kind without a name is shown by: vendor or `cpu`, and the generation of its processor.
_GENERATION: Final = re.compile(r"^(?:cpu|nvidia|amd) \S+(?= |$)")


def named(bits: str, name: str) -> str:
    """A kind with what a person calls its device."""
    return f"{bits} ({name})" if name else bits


def bits_of(kind: str) -> str:
    """What two slots must share to give the same bits: all but the name."""
    return _NAME.sub("", kind)


def differ_in_processor(one: str, other: str) -> bool:
    """Both are CPUs, alike in all but capability and processor: what D2 leaves out."""
    both = [bits_of(kind).split(" ") for kind in (one, other)]
    is_cpu = all(words[0] == "cpu" for words in both)
    return is_cpu and both[0] != both[1] and both[0][3:] == both[1][3:]


def short_kind(kind: str) -> str:
    """`H200`, `H100 80GB HBM3`, `cpu avx2`."""
    if found := _NAME.search(kind):
        return _VENDOR.sub("", found["name"])
    if found := _GENERATION.match(kind):
        return found[0]
    return _VENDOR.sub("", kind)
