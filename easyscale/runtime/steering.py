"""What every process must have alike and compares in each step: values of optimizers, and weights.

A learning rate, or a weight, that follows from what one process has seen alone (the loss of its own
micro-steps) is refused by name. Of the weights a step compares a sample, another one each time.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.registry import Registry

_PLAIN = (bool, int, float, str, type(None))
_BITS = "bits of "
#: How much of a tensor a sample takes: less than 10 µs of a step.
_SAMPLE = 1024
#: On a device a sample has to be waited for.
_DEVICE_EVERY = 64


def steering_text(registry: Registry, *, step: int) -> bytes:
    """What is compared in a step: the groups' plain values, and a part of one tensor."""
    values = _groups(registry)
    if (found := registry.in_turn(step)) is not None:
        name, tensor, turn = found
        if tensor.device.type == "cpu" or step % _DEVICE_EVERY == 0:
            values[_BITS + name] = _sample(tensor, turn)
    return msgspec.json.encode(values)


def final_text(registry: Registry) -> bytes:
    """What is compared at the end of training: a part of every tensor."""
    tensors: Mapping[str, torch.Tensor] = registry.trained_tensors
    samples = {_BITS + name: _sample(tensor, 0) for name, tensor in tensors.items()}
    return msgspec.json.encode(_groups(registry) | samples)


def _groups(registry: Registry) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, optimizer in registry.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key != "params" and (plain := _plain(value)) is not None:
                    values[f"{name}.param_groups[{index}].{key}"] = plain
    return values


def _sample(tensor: torch.Tensor, turn: int) -> str:
    """A digest of some of its numbers, `turn` says which; the same however they lie in memory."""
    part = tensor.detach()
    while part.dim() > 1 and part.numel() > _SAMPLE:
        part = part[turn % part.shape[0]]
    if part.numel() > _SAMPLE:
        start = turn * _SAMPLE % part.numel()
        part = part[start : start + _SAMPLE]
    host = part.cpu().contiguous().reshape(-1).view(torch.uint8)
    return blake2b(memoryview(host.numpy()), digest_size=8).hexdigest()  # type: ignore[arg-type]


def refuse_difference(texts: Sequence[bytes], places: Sequence[str]) -> None:
    """Raise ScriptError with the first value in which two processes differ."""
    first = msgspec.json.decode(texts[0], type=dict[str, object])
    for place, text in zip(places, texts, strict=True):
        other = msgspec.json.decode(text, type=dict[str, object])
        for name in first | other:
            if first.get(name) == other.get(name):
                continue
            if name.startswith(_BITS):
                raise ScriptError(
                    f"{name.removeprefix(_BITS)} has come to differ between {places[0]} and "
                    f"{place}: it follows from something that only one process has seen, or the "
                    "two compute other bits",
                    hint="write weights from gradients, step.mean(...) and job.metrics, which are "
                    "the same on every process; backward() before the next batch is asked for",
                    see=Paragraph.LOOPS,
                )
            raise ScriptError(
                f"{name} is {first.get(name)} on {places[0]} and {other.get(name)} on {place}: "
                "it follows from something that only one process has seen",
                hint="step.mean(...) or job.metrics, which are the same on every process",
            )


def _plain(value: object) -> object:
    if isinstance(value, torch.Tensor):
        # On a device it would have to be waited for.
        return value.item() if value.device.type == "cpu" and value.numel() == 1 else None
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, _PLAIN) else None
