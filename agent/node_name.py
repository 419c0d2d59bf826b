"""The name of this node, claimed on its host before use: a second agent there gets a number.

The claim is a socket that only the kernel holds, so it ends with the agent, however that ends. It
tells agents of one host apart at once; whether another host has the name, the store says.
"""

import hashlib
import socket
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Self

from easyscale.errors import UsageError


class NodeName:
    """A name that no other agent of this host has in this job while this one lives."""

    def __init__(self, name: str, claims: tuple[socket.socket, ...], *, wanted: str) -> None:
        self.name = name
        self._wanted = wanted
        self._claims = claims

    @property
    def note(self) -> str:
        """What people are told, where the name is not the one that was asked for."""
        if self.name == self._wanted:
            return ""
        return f"another agent of this host is {self._wanted} already: this node is {self.name}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for claim in self._claims:
            claim.close()


def claim_name(wanted: str, *, job: str, endpoints: Sequence[str], is_chosen: bool) -> NodeName:
    """Take the node's name, or the first of `NAME-2`, `NAME-3`, ... that is free on this host.

    Raises UsageError for a taken name that the person chose.
    """
    if not endpoints:
        return NodeName(wanted, (), wanted=wanted)  # nobody else can come to an etcd of our own
    for number in count(1):
        name = wanted if number == 1 else f"{wanted}-{number}"
        claim = _claim(name, job=job, endpoints=endpoints)
        if claim is not None:
            return NodeName(name, (claim,), wanted=wanted)
        if is_chosen:
            break
    raise UsageError(
        f"node name {wanted!r} is taken: another agent of this host trains {job!r} under it",
        hint=f"--node-name {wanted}-2, or no --node-name",
    )


def _claim(name: str, *, job: str, endpoints: Sequence[str]) -> socket.socket | None:
    """Bind the name in the kernel's own name space, where no file can be left behind."""
    meaning = (socket.gethostname(), job, *sorted(endpoints), name)
    digest = hashlib.sha256("\n".join(meaning).encode()).hexdigest()
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0easyscale-node-{digest}")
    except OSError:
        claim.close()
        return None
    return claim
