"""What the command line asks of a child that may load torch, and what it answers; no I/O.

One JSON request, then one line per answer: the name of its form, a space, its JSON.
"""

import msgspec

from easyscale.errors import FormatError
from easyscale.model import Record, decode


class Request(Record, frozen=True, kw_only=True):
    """Inspect the snapshot folders at these paths, or compare the two of them."""

    paths: tuple[str, ...]
    compare: bool = False


class Inspected(Record, frozen=True, kw_only=True):
    """What one snapshot holds; `fault` says why it cannot be used."""

    name: str
    tensors: int | None = None
    seconds: float
    digest: str = ""
    fault: str = ""


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that two snapshots do not share."""

    name: str
    shape: str
    #: Set where the other one has another shape or type.
    other_shape: str = ""
    #: Which of the two has it, where the other has not.
    only_in: int | None = None
    #: Elements whose bits differ, and all there are.
    differing: int = 0
    elements: int = 0
    #: None where an element is no number.
    largest: float | None = None
    first: str = ""
    before: float | None = None
    after: float | None = None


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A plain value, such as a learning rate, that two snapshots do not share."""

    name: str
    before: str
    after: str


class Differences(Record, frozen=True, kw_only=True):
    """How two snapshots differ in what the digest covers."""

    #: Tensors that either of them has.
    count: int
    tensors: tuple[Difference, ...]
    values: tuple[ValueDifference, ...]
    digests: tuple[str, str]


class Refusal(Record, frozen=True, kw_only=True):
    """Why there is no answer."""

    message: str
    hint: str = ""


Answer = Inspected | Differences | Refusal
_FORMS: dict[str, type[Inspected] | type[Differences] | type[Refusal]] = {
    form.__name__: form for form in (Inspected, Differences, Refusal)
}


def read_answer(line: str) -> Answer:
    """Read one line of the child; raises FormatError for anything else."""
    name, _, text = line.partition(" ")
    form = _FORMS.get(name)
    if form is None:
        raise FormatError(f"{line[:80]!r} is no answer about a snapshot")
    return decode(text, form, source=f"the answer {name}")
