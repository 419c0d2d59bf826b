"""Nodes that meet for a checkup: each reaches every other one, through the ports of a worker.

They meet in etcd, away from all jobs; what a node leaves there ends with its lease.

/easyscale/doctor/<node>     what it tells, then what it found of the others
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

import msgspec

from easyscale.agent.checkup.node_facts import NodeFacts, Reached, marks_in
from easyscale.errors import FormatError, LeaseLost, OutcomeUnknown, TooFewNodes
from easyscale.model import decode, encode
from easyscale.rendezvous.endpoints import Endpoint, parse_endpoint
from easyscale.rendezvous.store import LeaseId, Put, Store

ROOT = "/easyscale/doctor/"
_TTL_S = 15
_RENEW_EVERY_S = 5.0
_POLL_S = 0.2
_CALL_TIMEOUT_S = 2.0
_REACH_TIMEOUT_S = 2.0
_ROUNDS = 5
#: Others still read what we found.
_LINGER_S = 1.5

#: Told while nodes are waited for: what is missing, and for how long.
Tell = Callable[[str, float], None]


class Echo:
    """Answers whoever connects with what our clock says, line by line."""

    def __init__(self, host: str) -> None:
        self._listener = socket.create_server(("", 0), family=socket.AF_INET)
        self._listener.settimeout(0.2)
        self.address = str(Endpoint(host, self._listener.getsockname()[1]))
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="echo", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join(_REACH_TIMEOUT_S)
        self._listener.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody came in time
                continue
            with contextlib.suppress(OSError), connection:
                connection.settimeout(_REACH_TIMEOUT_S)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while connection.recv(1) and not self._is_over.is_set():
            connection.sendall(json.dumps({"at": time.time()}).encode() + b"\n")


def reach(node: str, address: str) -> Reached:
    """Connect to another node as a worker does; the quickest of a few rounds counts."""
    endpoint = parse_endpoint(address)
    best: tuple[float, float] | None = None
    try:
        with socket.create_connection(endpoint, _REACH_TIMEOUT_S) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_REACH_TIMEOUT_S)
            with connection.makefile("rb") as answers:
                for _ in range(_ROUNDS):
                    asked, asked_at = time.monotonic(), time.time()
                    connection.sendall(b"?")
                    at = json.loads(answers.readline(200))["at"]
                    took_s = time.monotonic() - asked
                    skew_s = float(at) - (asked_at + took_s / 2)
                    best = min(best or (took_s, skew_s), (took_s, skew_s))
    except (OSError, ValueError, KeyError, TypeError) as error:
        fault = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Reached(node=node, fault=f"{endpoint}: {fault.lower()}")
    assert best is not None
    return Reached(node=node, round_trip_s=best[0], clock_s=best[1])


def meet(
    store: Store, own: NodeFacts, *, nodes: int, limit_s: float, folder: Path, tell: Tell
) -> tuple[NodeFacts, ...]:
    """What all nodes found, in the order of their names; raises TooFewNodes."""
    with _Place(store, own.node) as place:
        place.put(own)
        present = place.wait(nodes, limit_s=limit_s, tell=tell, is_ready=lambda _: True)
        others = [facts for name, facts in present.items() if name != own.node]
        found = msgspec.structs.replace(
            own,
            reached=tuple(reach(other.node, other.address) for other in others),
            sees=marks_in(folder),
        )
        place.put(found)
        met = place.wait(
            nodes, limit_s=limit_s, tell=tell, is_ready=lambda facts: facts.reached is not None
        )
        time.sleep(_LINGER_S)  # others still read what we found
        return tuple(met[name] for name in sorted(met))


class _Place:
    """Our key among the others', as long as we keep its lease."""

    def __init__(self, store: Store, node: str) -> None:
        self._store = store
        self._key = f"{ROOT}{node}"
        self._lease: LeaseId | None = None
        self._renewed_s = 0.0

    def __enter__(self) -> Self:
        self._lease = self._store.grant(_TTL_S, timeout_s=_CALL_TIMEOUT_S)
        self._renewed_s = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        if self._lease is not None:
            with contextlib.suppress(Exception):  # it ends by itself as well
                self._store.revoke(self._lease, timeout_s=_CALL_TIMEOUT_S)

    def put(self, facts: NodeFacts) -> None:
        with contextlib.suppress(OutcomeUnknown):  # it is read back by the wait
            put = Put(self._key, encode(facts), self._lease)
            self._store.transact([], [put], timeout_s=_CALL_TIMEOUT_S)

    def wait(
        self, nodes: int, *, limit_s: float, tell: Tell, is_ready: Callable[[NodeFacts], bool]
    ) -> Mapping[str, NodeFacts]:
        began_s = time.monotonic()
        while True:
            self._renew()
            present = {facts.node: facts for facts in self._read()}
            ready = {name for name, facts in present.items() if is_ready(facts)}
            if len(ready) >= nodes:
                return present
            waited_s = time.monotonic() - began_s
            names = ", ".join(sorted(ready)) or "none"
            if waited_s >= limit_s:
                raise TooFewNodes(
                    f"{len(ready)} of {nodes} nodes came to the checkup within {limit_s:g} s: "
                    f"{names}",
                    hint="the same easyscale doctor on every node, at the same time",
                )
            tell(f"{nodes - len(ready)} of {nodes} nodes, have {names}", waited_s)
            time.sleep(_POLL_S)

    def _renew(self) -> None:
        if self._lease is not None and time.monotonic() - self._renewed_s >= _RENEW_EVERY_S:
            with contextlib.suppress(LeaseLost):
                self._store.keep_alive(self._lease, timeout_s=_CALL_TIMEOUT_S)
            self._renewed_s = time.monotonic()

    def _read(self) -> Iterator[NodeFacts]:
        for entry in self._store.read(ROOT, timeout_s=_CALL_TIMEOUT_S).entries.values():
            with contextlib.suppress(FormatError):  # of another version: it does not answer us
                yield decode(entry.value, NodeFacts, source=entry.key)
