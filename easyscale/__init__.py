"""Elastic training whose result does not depend on the hardware it happened to get.

The names are looked up when they are first used: importing easyscale does not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from easyscale.errors import EasyScaleError, IncompleteStep, ScriptError
    from easyscale.runtime.job import Job, init
    from easyscale.runtime.step import Step

__all__ = ["EasyScaleError", "IncompleteStep", "Job", "ScriptError", "Step", "init"]

_HOMES = {
    "EasyScaleError": "easyscale.errors",
    "IncompleteStep": "easyscale.errors",
    "Job": "easyscale.runtime.job",
    "ScriptError": "easyscale.errors",
    "Step": "easyscale.runtime.step",
    "init": "easyscale.runtime.job",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - what the public names are is said above
    if name not in _HOMES:
        raise AttributeError(f"module 'easyscale' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
