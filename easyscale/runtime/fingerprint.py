"""Short digests of values: one name for equal bits wherever a record holds them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from easyscale.runtime.outside import tensor_bytes, value_digest


def fingerprint(value: object) -> str:
    """A short digest of nests of tensors and plain values; anything else counts by its type."""
    match value:
        case None:
            return "-"
        case torch.Tensor() if value.layout is torch.strided:
            head = f"{value.dtype} {tuple(value.shape)}\0".encode()
            return value_digest(head + bytes(tensor_bytes(value)))
        case np.ndarray() if value.dtype.kind in "biufc":
            return value_digest(f"{value.dtype} {value.shape}\0".encode() + value.tobytes())
        case Mapping() | list() | tuple():
            parts = [f"{path} {fingerprint(item)}" for path, item in items_of(value)]
            return value_digest(f"{type(value).__name__} {' '.join(parts)}".encode())
        case float():
            return value_digest(value.hex().encode())
        case bool() | int() | str() | bytes() | complex() | np.generic():
            return value_digest(f"{type(value).__name__} {value!r}".encode())
        case _:
            own = getattr(value, "__dict__", None)
            return value_digest(f"{type(value).__name__} {fingerprint(own)}".encode())


def items_of(value: Mapping[Any, Any] | Sequence[Any]) -> Iterable[tuple[str, Any]]:
    """The parts of a container by their keys."""
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
    return ((str(key), item) for key, item in pairs)
