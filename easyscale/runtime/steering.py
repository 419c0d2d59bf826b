"""The values that optimizers are steered by, which every process must have alike.

A learning rate that follows from what one process has seen alone (the loss of its own micro-steps)
would give each process other weights; all members compare these values in every step.
"""

from collections.abc import Sequence

import msgspec
import torch

from easyscale.errors import ScriptError
from easyscale.runtime.registry import Registry

_PLAIN = (bool, int, float, str, type(None))


def steering_text(registry: Registry) -> bytes:
    """The plain values of all parameter groups, as text that is compared and read back."""
    values: dict[str, object] = {}
    for name, optimizer in registry.optimizers.items():
        for index, group in enumerate(optimizer.param_groups):
            for key, value in group.items():
                if key != "params" and (plain := _plain(value)) is not None:
                    values[f"{name}.param_groups[{index}].{key}"] = plain
    return msgspec.json.encode(values)


def refuse_difference(texts: Sequence[bytes], places: Sequence[str]) -> None:
    """Raise ScriptError with the first value in which two processes differ."""
    first = msgspec.json.decode(texts[0], type=dict[str, object])
    for place, text in zip(places, texts, strict=True):
        other = msgspec.json.decode(text, type=dict[str, object])
        for name in first | other:
            if first.get(name) != other.get(name):
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
