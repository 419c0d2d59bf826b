"""The switches behind the digest: D0 and D1 always, D2 on request.

D0 = deterministic kernels; D1 = also independent of the layout, for which the threads of a worker
are pinned; D2 = also independent of the kind of CPU, which must be pinned before torch is imported.
(The levels are those of EasyScale, SC'23, section 3.)
"""

import os
import shlex

import torch

from easyscale.baseline import baseline
from easyscale.errors import ScriptError
from easyscale.model import Determinism


def switch_on(determinism: Determinism, *, threads: int) -> None:
    """Make this process compute the same bits as its equals; called once, by `init`."""
    if determinism is Determinism.HETEROGENEOUS:
        _require_baseline()
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(mode=True)
    # It fills every new tensor with NaN to unmask reads of memory nobody wrote; on each of them
    # that is a second pass over memory, for kernels that are known to write all of it.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    pin_threads(threads)


def pin_threads(threads: int) -> None:
    """Fix the number of threads of one operation: one and two threads give different bits."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _require_baseline() -> None:
    missing = {name: value for name, value in baseline().items() if os.environ.get(name) != value}
    if missing:
        pins = " ".join(f"{name}={shlex.quote(value)}" for name, value in missing.items())
        raise ScriptError(
            "determinism 'heterogeneous' pins the instruction set before torch is imported; "
            f"{', '.join(missing)} is not set to it",
            hint=f"{pins} python SCRIPT, or easyscale launch --determinism heterogeneous",
        )
