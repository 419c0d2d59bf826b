"""`torchrun --rdzv-backend easyscale`: torchrun's own agents meet through etcd's v3 API.

A thin driver around `easyscale.rendezvous.rounds`: watches the run, keeps this node's lease, and
serves the workers' TCPStore from the first node of each round. Loaded by torch, never by our agent.
"""

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStateError,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from easyscale.errors import (
    EasyScaleError,
    FormatError,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
)
from easyscale.model import encode
from easyscale.rendezvous import rounds
from easyscale.rendezvous.endpoints import EtcdSettings, own_address_towards, parse_endpoints
from easyscale.rendezvous.rounds import Limits, Met, Presence, Propose, Round, RunKeys, RunView
from easyscale.rendezvous.store import LeaseId, Modified, Operation, Put, Store, View

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store as TorchStore

log = logging.getLogger(__name__)

NAME = "easyscale"
CONNECT_TIMEOUT_S = 10.0
#: A node whose key is missing for so long after its lease ended has ended.
ABSENCE_S = 2.0
#: A closed run refuses its id for so long; then the same id begins a new one.
CLOSED_FOR_S = 60
#: How long the first node's store outlives its own need of it, while others are there.
LINGER_S = 3.0
_RETRY_S = 0.2
#: Words of --rdzv-conf that we read, and those that torchrun adds by itself.
_KNOWN = {
    "join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout",
    "keep_alive_interval", "keep_alive_max_attempt", "ca_cert", "ssl_cert", "ssl_cert_key", "user",
}  # fmt: skip
_ADDED_BY_TORCHRUN = {"timeout", "rank"}


def create_handler(parameters: RendezvousParameters) -> RendezvousHandler:
    """Connect to etcd; raises RendezvousConnectionError, or UsageError for wrong words."""
    from easyscale.rendezvous.etcd import connect  # noqa: PLC0415 - every torchrun loads this file

    unknown = sorted(set(parameters.config) - _KNOWN - _ADDED_BY_TORCHRUN)
    if unknown:
        log.warning("--rdzv-conf: easyscale does not know %s", ", ".join(unknown))
    settings = _etcd_settings(parameters)
    times = Times.of(parameters)
    try:
        store = connect(settings, timeout_s=min(times.join_s, CONNECT_TIMEOUT_S))
        address = parameters.local_addr or own_address_towards(settings.endpoints)
    except StoreError as error:
        raise RendezvousConnectionError(error.message) from error
    if store.warning:
        log.warning("%s", store.warning)
    return EtcdRendezvous(store, parameters.run_id, address, _limits(parameters, times), times)


def _etcd_settings(parameters: RendezvousParameters) -> EtcdSettings:
    def path(word: str) -> Path | None:
        text = parameters.get(word)
        return Path(text) if text else None

    return EtcdSettings(
        endpoints=parse_endpoints(parameters.endpoint),
        ca=path("ca_cert"),
        cert=path("ssl_cert"),
        key=path("ssl_cert_key"),
        user=parameters.get("user", ""),
        password=os.environ.get("EASYSCALE_ETCD_PASSWORD", ""),
    )


@dataclass(frozen=True, slots=True)
class Times:
    """torchrun's words for its waits, in seconds."""

    join_s: float
    last_call_s: float
    close_s: float
    heartbeat_s: float
    read_s: float
    ttl_s: int

    @classmethod
    def of(cls, parameters: RendezvousParameters) -> "Times":
        def seconds(word: str, usual: int) -> int:
            value = parameters.get_as_int(word, usual)
            assert value is not None
            return value

        return cls(
            join_s=seconds("join_timeout", 600),
            last_call_s=seconds("last_call_timeout", 30),
            close_s=seconds("close_timeout", 30),
            heartbeat_s=seconds("heartbeat_timeout", 5),
            read_s=seconds("read_timeout", 60),
            ttl_s=seconds("keep_alive_interval", 2) * seconds("keep_alive_max_attempt", 3),
        )


def _limits(parameters: RendezvousParameters, times: Times) -> Limits:
    return Limits(parameters.min_nodes, parameters.max_nodes, times.last_call_s)


class EtcdRendezvous(RendezvousHandler):
    """One node's end of a run. torchrun's agent calls it from one thread."""

    def __init__(
        self, store: Store, run_id: str, address: str, limits: Limits, times: Times
    ) -> None:
        self._store = store
        self._run_id = run_id
        self._keys = RunKeys.of(run_id)
        self._address = address
        self._limits = limits
        self._times = times
        self._me = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._number = 0
        self._nodes: tuple[str, ...] = ()
        self._absent_since: dict[str, float] = {}
        self._lease: LeaseId | None = None
        self._served: TCPStore | None = None
        self._news = threading.Condition()
        self._view = RunView()
        self._unreadable = ""
        self._is_away = False
        self._is_ending = False
        self._watch = store.watch(self._keys.prefix, deliver=self._see, lost=self._miss)
        self._keeper = threading.Thread(target=self._keep, name="rendezvous lease", daemon=True)

    # --- what torchrun asks --------------------------------------------------------------------

    def get_backend(self) -> str:
        return NAME

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """The first node's agent serves a store of its own in every round: nothing is reused."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Meet the others of the next round."""
        deadline = time.monotonic() + self._times.join_s
        if not self._keeper.is_alive():
            self._keeper.start()
        while True:
            met = self._meet(deadline)
            self._number, self._nodes = met.round.number, met.round.nodes
            self._absent_since.clear()
            store = self._open_store(met, deadline)
            if store is not None:
                break
            log.info("round %d broke up before it began; the next one", self._number)
        host, port = store.host, store.port
        log.info("round %d: rank %d of %d", self._number, met.rank, len(self._nodes))
        prefixed: TorchStore = PrefixStore(f"easyscale/{self._number}", store)
        return RendezvousInfo(prefixed, met.rank, len(self._nodes), RendezvousStoreInfo(host, port))

    def is_closed(self) -> bool:
        with self._news:
            return self._view.is_closed

    def set_closed(self) -> None:
        """No round begins any more. The mark goes by itself, so that the id can be used again."""
        deadline = time.monotonic() + self._times.close_s
        while not self.is_closed():
            try:
                self._close(deadline)
            except (StoreUnreachable, OutcomeUnknown, LeaseLost) as error:
                if time.monotonic() >= deadline:
                    raise RendezvousConnectionError(error.message) from error
                time.sleep(_RETRY_S)
            except StoreError as error:
                raise RendezvousConnectionError(error.message) from error
            else:
                return

    def num_nodes_waiting(self) -> int:
        """More than none where a node wants in, asks for a new round, or has ended."""
        with self._news:
            return rounds.waiting(self._view, number=self._number, lost=self._count_lost())

    def shutdown(self) -> bool:
        """Close the run and let go of everything."""
        closed = True
        try:
            self.set_closed()
        except RendezvousConnectionError as error:
            log.warning("the run %r was not closed: %s", self._run_id, error)
            closed = False
        if self._served is not None:
            self._serve_the_last()
        with self._news:
            self._is_ending = True
            self._news.notify_all()
        if self._keeper.is_alive():
            self._keeper.join(self._times.heartbeat_s)
        if self._lease is not None:
            with contextlib.suppress(StoreError):  # it ends by itself
                self._store.revoke(self._lease, timeout_s=self._times.heartbeat_s)
        self._store.close()
        self._served = None  # which ends the round's store, once its user has let go of it too
        return closed

    def _serve_the_last(self) -> None:
        """Others may still read from our store that all have come to the end."""
        others = set(self._nodes) - {self._me}
        with self._news:
            self._news.wait_for(lambda: not others & self._view.present, LINGER_S)

    # --- meeting -------------------------------------------------------------------------------

    def _meet(self, deadline: float) -> Met:
        """Join rounds until one is complete with us in it."""
        enough_since: float | None = None
        reason = "the first view of the run"
        while True:
            now = time.monotonic()
            if now >= deadline:
                waited_s = self._times.join_s
                raise RendezvousTimeoutError(f"no round within {waited_s:g} s: waits for {reason}")
            view = self._current_view()
            if not self._is_ready(view):
                self._wait(view, min(_RETRY_S, deadline - now))
                continue
            enough = view.round is not None and len(view.round.nodes) >= self._limits.least
            enough_since = (enough_since or now) if enough else None
            step = rounds.next_step(
                view,
                me=self._me,
                left=self._number,
                limits=self._limits,
                enough_for_s=now - enough_since if enough_since is not None else 0.0,
            )
            match step:
                case "closed":
                    raise RendezvousClosedError(f"the run {self._run_id!r} is closed")
                case Met():
                    return step
                case Propose(round=proposed):
                    self._propose(proposed, view, deadline)
                case rounds.Wait(reason=reason, for_s=for_s):
                    self._wait(view, min(for_s or deadline - now, deadline - now))

    def _is_ready(self, view: RunView) -> bool:
        return view.revision > 0 and self._me in view.present

    def _propose(self, proposed: Round, view: RunView, deadline: float) -> None:
        """Write a round where the one that we saw stands, then see what stands now."""
        put = Put(self._keys.round, encode(proposed))
        compare = Modified(self._keys.round, view.round_revision)
        try:
            self._store.transact([compare], [put], timeout_s=self._times.heartbeat_s)
        except (StoreUnreachable, OutcomeUnknown):
            pass  # what stands shows in the next view
        except EasyScaleError as error:
            raise RendezvousConnectionError(error.message) from error
        self._wait(view, min(self._times.heartbeat_s, max(deadline - time.monotonic(), 0.0)))

    def _current_view(self) -> RunView:
        with self._news:
            if self._unreadable:
                raise RendezvousStateError(self._unreadable)
            return self._view

    def _wait(self, seen: RunView, timeout_s: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._view != seen or self._unreadable, timeout_s)

    # --- the workers' store --------------------------------------------------------------------

    def _open_store(self, met: Met, deadline: float) -> TCPStore | None:
        """The round's own TCPStore; None when its host is lost or the next round has begun."""
        if met.rank == 0:
            return self._serve(met.round.number)
        while time.monotonic() < deadline:
            view = self._current_view()
            address = view.addresses.get(met.round.number)
            if address is not None:
                host, _, port = address.rpartition(":")
                try:
                    return TCPStore(
                        host,
                        int(port),
                        is_master=False,
                        timeout=timedelta(seconds=self._times.read_s),
                    )
                except DistError as error:
                    log.info("the store at %s does not answer: %s", address, error)
                    return None
            if view.is_closed:
                raise RendezvousClosedError(f"the run {self._run_id!r} is closed")
            if self.num_nodes_waiting():
                return None
            self._wait(view, _RETRY_S)
        raise RendezvousTimeoutError(
            f"no store for round {met.round.number} within the join timeout"
        )

    def _serve(self, number: int) -> TCPStore:
        self._served = store = TCPStore(
            self._address,
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._times.read_s),
        )
        with self._news:
            lease = self._lease
        put = Put(self._keys.address(number), f"{self._address}:{store.port}", lease)
        try:
            self._store.transact([], [put], timeout_s=self._times.heartbeat_s)
        except StoreError as error:
            raise RendezvousConnectionError(error.message) from error
        return store

    def _close(self, deadline: float) -> None:
        left_s = max(deadline - time.monotonic(), _RETRY_S)
        lease = self._store.grant(CLOSED_FOR_S, timeout_s=left_s)
        view = self._current_view()
        operations: list[Operation] = [Put(self._keys.closed, self._me, lease)]
        if view.round is not None:  # it goes with the mark: an ended run leaves nothing behind
            operations.append(Put(self._keys.round, encode(view.round), lease))
        self._store.transact([], operations, timeout_s=left_s)

    # --- threads -------------------------------------------------------------------------------

    def _see(self, view: View) -> None:
        with self._news:
            self._is_away = False
            try:
                self._view = RunView.of(view, self._keys)
            except FormatError as error:
                self._unreadable = error.message
            self._news.notify_all()

    def _miss(self, reason: str) -> None:
        log.warning("etcd is away, workers go on: %s", reason)
        with self._news:
            self._is_away = True

    def _count_lost(self) -> int:
        """Nodes of our round whose keys are missing; nobody counts while etcd is away."""
        now = time.monotonic()
        absent = set() if self._is_away else set(self._nodes) - self._view.present - {self._me}
        self._absent_since = {node: self._absent_since.get(node, now) for node in absent}
        return sum(now - since >= ABSENCE_S for since in self._absent_since.values())

    def _keep(self) -> None:
        """Keep this node's lease, and take a new one where the old one has ended."""
        while True:
            try:
                self._renew()
                pause_s = self._times.ttl_s / 3
            except StoreError as error:
                log.debug("the lease was not renewed: %s", error.message)
                pause_s = _RETRY_S
            with self._news:
                if self._news.wait_for(lambda: self._is_ending, pause_s):
                    return

    def _renew(self) -> None:
        timeout_s = self._times.heartbeat_s
        if self._lease is not None and self._store.keep_alive(self._lease, timeout_s=timeout_s):
            return
        with self._news:
            self._lease = None
        lease = self._store.grant(self._times.ttl_s, timeout_s=timeout_s)
        put = Put(self._keys.node(self._me), encode(Presence(host=self._address)), lease)
        self._store.transact([], [put], timeout_s=timeout_s)
        with self._news:
            self._lease = lease
