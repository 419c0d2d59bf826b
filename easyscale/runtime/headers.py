"""What every member says to every other in each operation, however small its part in it is.

A frame has a fixed size, so one all-gather needs no agreement before it; only a payload that does
not fit makes a second one.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.model import GenerationNumber, Span
from easyscale.runtime.buckets import TensorLayout
from easyscale.runtime.steering import refuse_difference
from easyscale.runtime.transport import Transport

#: Size of the first frame; most payloads fit.
FRAME_BYTES = 2048
_LENGTH_BYTES = 4


class OperationKind(StrEnum):
    """What all members complete together."""

    #: The handshake that enters a generation; it is not counted by the position.
    ENTRY = "entry"
    STEP = "step"
    EVALUATION = "evaluation"
    END = "end"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation as all members must see it; `spans` are what each process sends in a step."""

    kind: OperationKind
    position: int
    spans: tuple[tuple[Span, ...], ...] = ()

    @property
    def name(self) -> str:
        return f"{self.kind.value} at position {self.position}"

    @property
    def spans_digest(self) -> str:
        return hashlib.blake2b(msgspec.json.encode(self.spans), digest_size=8).hexdigest()


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """One member's words on an operation; a payload opaque to us travels behind it."""

    kind: OperationKind
    position: int
    #: The newest commit this member knows.
    newest: GenerationNumber
    layout: str
    spans: str
    #: A digest of the values that optimizers are steered by; empty before they are said.
    steering: str = ""
    #: Which parameters have a gradient here, a bit each.
    present: str = ""
    weighted: bool = False
    #: The exchange of this step starts while its last micro-step runs; a second header follows.
    early: bool = False
    #: The early start was wrong: a gradient changed after it had been given away.
    dirty: bool = False
    #: The last micro-step had one backward, so the next step may start early.
    may_overlap: bool = False


@dataclass(frozen=True, slots=True)
class Words:
    """A header and its payload."""

    header: Header
    payload: bytes


def mask_text(present: Sequence[bool]) -> str:
    """Write a presence mask as hexadecimal digits, lowest parameter in the lowest bit."""
    return f"{sum(1 << index for index, is_there in enumerate(present) if is_there):x}"


def united(masks: Sequence[str], count: int) -> tuple[bool, ...]:
    """Tell for each parameter whether any member has a gradient."""
    bits = 0
    for mask in masks:
        bits |= int(mask or "0", 16)
    return tuple(bool(bits >> index & 1) for index in range(count))


def gather(transport: Transport, words: Words) -> tuple[Words, ...]:
    """Give everybody's header and payload to everybody, by process rank."""
    data = msgspec.json.encode(words.header) + b"\n" + words.payload
    room = FRAME_BYTES - _LENGTH_BYTES
    first = (len(data).to_bytes(_LENGTH_BYTES) + data[:room]).ljust(FRAME_BYTES, b"\0")
    frames = gather_bytes(transport, first)
    lengths = [int.from_bytes(frame[:_LENGTH_BYTES]) for frame in frames]
    texts = [
        frame[_LENGTH_BYTES : _LENGTH_BYTES + length]
        for frame, length in zip(frames, lengths, strict=True)
    ]
    longest = max(lengths)
    if longest > room:
        rests = gather_bytes(transport, data[room:].ljust(longest - room, b"\0"))
        texts = [
            text + rest[: max(0, length - room)]
            for text, rest, length in zip(texts, rests, lengths, strict=True)
        ]
    return tuple(_read(text) for text in texts)


def gather_bytes(transport: Transport, part: bytes) -> list[bytes]:
    """Give equally long bytes of all members to all members."""
    into = torch.empty(len(part) * transport.size, dtype=torch.uint8)
    transport.all_gather(into, torch.frombuffer(bytearray(part), dtype=torch.uint8))
    data = into.numpy().tobytes()
    return [data[start : start + len(part)] for start in range(0, len(data), len(part))]


def _read(text: bytes) -> Words:
    line, _, payload = text.partition(b"\n")
    return Words(msgspec.json.decode(line, type=Header), payload)


def check(
    transport: Transport, layout: TensorLayout, said: Sequence[Words], places: Sequence[str]
) -> None:
    """Raise ScriptError, in all members alike, when they are not in the same operation."""
    own = said[0].header
    for place, words in zip(places, said, strict=True):
        theirs = words.header
        if (theirs.kind, theirs.position) != (own.kind, own.position):
            raise ScriptError(
                f"{places[0]} has come to {own.kind.value} {own.position}, {place} to "
                f"{theirs.kind.value} {theirs.position}",
                hint="the same loops and calls of job.evaluate on every process: other data or "
                "arguments, or an `if job.is_main` around them, make them differ",
            )
        if theirs.spans != own.spans:
            raise ValueError(f"{places[0]} and {place} have laid out {own.kind} differently")
    if own.kind is OperationKind.ENTRY:
        return  # who has state goes on without a newcomer that built something else: `entering.py`
    if any(words.header.layout != own.layout for words in said):
        name_difference(_gather_texts(transport, layout.description), places)


def check_steering(
    transport: Transport, text: bytes, said: Sequence[Words], places: Sequence[str]
) -> None:
    """Raise ScriptError, in all members alike, when their optimizers go different ways."""
    if len({words.header.steering for words in said}) > 1:
        refuse_difference(_gather_texts(transport, text), places)


def steering_digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=8).hexdigest()


def _gather_texts(transport: Transport, text: bytes) -> list[bytes]:
    sizes = gather_bytes(transport, len(text).to_bytes(_LENGTH_BYTES))
    longest = max(int.from_bytes(size) for size in sizes)
    return [padded.rstrip(b" ") for padded in gather_bytes(transport, text.ljust(longest, b" "))]


def name_difference(said: Sequence[bytes], places: Sequence[str]) -> None:
    """Raise ScriptError with the first tensor that not all have registered alike."""
    first = TensorLayout.read(said[0])
    for place, theirs in zip(places, said, strict=True):
        if theirs != said[0]:
            raise ScriptError(
                f"the processes have registered different models: {first.first_difference(theirs)}"
                f" ({places[0]} is here, {place} there)",
                hint="build the same model on every process, whatever its rank",
            )
