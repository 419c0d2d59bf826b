"""Keyed randomness: what a micro-step or a sample draws depends on its key and on nothing else.

Before a micro-step torch, NumPy and `random` start from the key (seed, "compute", step, logical
rank); the stream that the script's outer code draws from is put back afterwards and travels with
the state. So no random state moves when a logical worker does.
"""

import random
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Self

import numpy as np
import torch

_32_BITS = 0xFFFF_FFFF


def key(seed: int, purpose: str, *numbers: int) -> int:
    """64 bits that depend on all of the arguments alike."""
    text = f"{seed}/{purpose}/{'/'.join(map(str, numbers))}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def seed_host(value: int) -> None:
    """Start torch's CPU stream, NumPy's and that of `random` from `value`.

    The generators themselves: `torch.manual_seed` takes fifty times as long.
    """
    torch.default_generator.manual_seed(value)
    np.random.seed(value & _32_BITS)  # noqa: NPY002 - the stream that user code draws from
    random.seed(value)


@dataclass(frozen=True, slots=True)
class OuterStream:
    """The random state of a script outside the inner loop."""

    torch_cpu: torch.Tensor
    torch_device: torch.Tensor | None
    numpy: dict[str, Any]
    python: tuple[Any, ...]

    def to_plain(self) -> dict[str, Any]:
        """Tensors and numbers only, as a snapshot holds them."""
        version, words, gauss = self.python
        numpy_state = self.numpy["state"]
        return {
            "torch": self.torch_cpu,
            "device": self.torch_device,
            "numpy": {
                "key": torch.from_numpy(numpy_state["key"].astype(np.int64)),
                "pos": int(numpy_state["pos"]),
                "has_gauss": int(self.numpy["has_gauss"]),
                "gauss": float(self.numpy["gauss"]),
            },
            "python": {
                "version": version,
                "words": torch.tensor(words, dtype=torch.int64),
                "gauss": gauss,
            },
        }

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Self:
        numpy_state, python_state = plain["numpy"], plain["python"]
        return cls(
            torch_cpu=plain["torch"],
            torch_device=plain["device"],
            numpy={
                "bit_generator": "MT19937",
                "state": {
                    "key": numpy_state["key"].numpy().astype(np.uint32),
                    "pos": numpy_state["pos"],
                },
                "has_gauss": numpy_state["has_gauss"],
                "gauss": numpy_state["gauss"],
            },
            python=(
                python_state["version"],
                tuple(python_state["words"].tolist()),
                python_state["gauss"],
            ),
        )


class Streams:
    """The generators of this process: those of the host and that of its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._generator: torch.Generator | None = None
        if device.type == "cuda":
            torch.cuda.init()  # type: ignore[no-untyped-call]
            self._generator = torch.cuda.default_generators[device.index or 0]

    def seed(self, value: int) -> None:
        """Start all of them from `value`."""
        seed_host(value)
        if self._generator is not None:
            self._generator.manual_seed(value)

    def capture(self) -> OuterStream:
        return OuterStream(
            torch_cpu=torch.default_generator.get_state(),
            torch_device=None if self._generator is None else self._generator.get_state(),
            numpy=np.random.get_state(legacy=False),  # noqa: NPY002
            python=random.getstate(),
        )

    def restore(self, stream: OuterStream) -> None:
        torch.default_generator.set_state(stream.torch_cpu)
        if self._generator is not None and stream.torch_device is not None:
            self._generator.set_state(stream.torch_device)
        np.random.set_state(stream.numpy)  # noqa: NPY002
        random.setstate(stream.python)
