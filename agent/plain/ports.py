"""Free ports for the stores of workers, held for them: a new one per round, never a fixed one.

A socket that is bound with SO_REUSEADDR and does not listen keeps the kernel from giving the port
to anybody who asks for any, while the script's own store, which sets it too, may still listen.
"""

import contextlib
import socket


class HeldPort:
    """A port of this machine that is free for one who names it."""

    def __init__(self, holder: socket.socket) -> None:
        self._holder = holder
        self.number: int = holder.getsockname()[1]

    @classmethod
    def take(cls) -> "HeldPort":
        """Any free port, on all addresses of this machine."""
        for family, any_address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - nothing listens here
            with contextlib.suppress(OSError):
                return cls(_bound(family, any_address))
        raise OSError("this machine has no port to spare")

    def release(self) -> None:
        self._holder.close()


def _bound(family: socket.AddressFamily, address: str) -> socket.socket:
    holder = socket.socket(family)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind((address, 0))
    except OSError:
        holder.close()
        raise
    return holder
