"""What torch loads by the entry point `torchrun.handlers`, light and free of torch's own modules.

torch loads it while its package of rendezvous handlers is being imported, which ours stands on.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters


def handler() -> "Callable[[RendezvousParameters], RendezvousHandler]":
    """The function that makes a handler once torchrun names this back end."""
    return _create


def _create(parameters: "RendezvousParameters") -> "RendezvousHandler":
    from easyscale.torchrun.handler import create_handler  # noqa: PLC0415 - see above

    return create_handler(parameters)
