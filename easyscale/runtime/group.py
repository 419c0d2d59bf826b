"""The process group of one generation: formed directly over gloo, abandoned and never repaired.

Addresses come from the commit record and process rank 0's listener serves the keys, so there is
no store host to lose and no name to look up. torch's default group is never initialised.
"""

import gc
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from easyscale.errors import GenerationBroken
from easyscale.model import Commit, GenerationNumber, WorkerId, encode
from easyscale.pulse import Pulse
from easyscale.runtime.channel import (
    Hello,
    Interrupt,
    Keys,
    Kind,
    RemoteKeys,
    ask,
    dial,
    never,
    split_address,
)
from easyscale.runtime.listener import Listener
from easyscale.runtime.transport import GlooTransport, Transport

#: How often a waiting main thread looks at its interrupt.
POLL_S = 0.005
#: gloo's own limit on any wait. Ours end earlier; what they leave behind blocks harmlessly.
GLOO_TIMEOUT = timedelta(hours=24)
#: How long a member may take to answer when we look for the one that a wait ended for.
PROBE_TIMEOUT_S = 0.25
#: How long process rank 0's listener may take to accept and to answer.
DIAL_TIMEOUT_S = 10.0
# A group's threads do not run in a fork, as loader workers are. One that was garbage here when it
# was forked must not be collected there: to join such a thread aborts the process.
os.register_at_fork(after_in_child=gc.freeze)
#: Groups that broke. Destroying one waits for its peers, so they are kept and never touched.
_ABANDONED: list[object] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """What may end a wait besides its completion."""

    timeout_s: float
    #: Polled by the waiting thread; returns why to give up, or raises GenerationBroken itself.
    interrupt: Interrupt = never
    #: Where the waiting thread shows that it is awake; the agent kills one that was stopped.
    pulse: Pulse | None = None

    def show_awake(self) -> None:
        if self.pulse is not None:
            self.pulse.poll()


@dataclass(frozen=True, slots=True)
class Membership:
    """One worker's place in a committed generation."""

    commit: Commit
    worker: WorkerId
    token: str

    @property
    def generation(self) -> GenerationNumber:
        return self.commit.generation

    @property
    def size(self) -> int:
        return len(self.commit.members)

    @property
    def rank(self) -> int:
        """Our process rank."""
        rank = self.commit.process_rank(self.worker)
        if rank is None:
            raise ValueError(f"{self.worker} is no member of generation {self.generation}")
        return rank

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(member.address for member in self.commit.members)

    def place(self, rank: int) -> str:
        """Where a process runs, as people see it."""
        return self.commit.members[rank].worker.place


@dataclass(frozen=True, slots=True)
class Probe:
    """What the listeners of the other members answered."""

    answers: dict[int, str]
    refused: tuple[int, ...]
    silent: tuple[int, ...]


def probe(membership: Membership, *, timeout_s: float) -> Probe:
    """Ask all other members at once for what they know."""
    commit = encode(membership.commit)
    answers: dict[int, str] = {}
    refused: set[int] = set()

    def call(rank: int, address: str) -> None:
        try:
            answers[rank] = ask(
                address,
                token=membership.token,
                worker=membership.worker,
                timeout_s=timeout_s,
                commit=commit,
            )
        except ConnectionError:
            refused.add(rank)
        except OSError:
            pass  # silent: counted below, for it is in neither set

    others = [
        (rank, address)
        for rank, address in enumerate(membership.addresses)
        if rank != membership.rank
    ]
    threads = [
        threading.Thread(target=call, args=other, name="probe", daemon=True) for other in others
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    known, gone = dict(answers), frozenset(refused)
    silent = tuple(rank for rank, _ in others if rank not in known and rank not in gone)
    return Probe(known, tuple(sorted(gone)), silent)


class Group:
    """A formed generation as seen from one member."""

    def __init__(self, membership: Membership, transport: Transport | None) -> None:
        self.membership = membership
        self._transport = transport

    @property
    def rank(self) -> int:
        return self.membership.rank

    @property
    def size(self) -> int:
        return self.membership.size

    @property
    def transport(self) -> Transport:
        """What moves tensors; a group of one has none."""
        if self._transport is None:
            raise ValueError(f"generation {self.membership.generation} has one member")
        return self._transport

    def ask(self, rank: int, *, timeout_s: float) -> str:
        """Ask another member's listener for what it knows."""
        membership = self.membership
        return ask(
            membership.addresses[rank],
            token=membership.token,
            worker=membership.worker,
            timeout_s=timeout_s,
            commit=encode(membership.commit),
        )

    def probe(self, *, timeout_s: float = PROBE_TIMEOUT_S) -> Probe:
        """Ask all other members at once."""
        return probe(self.membership, timeout_s=timeout_s)

    def abandon(self) -> None:
        """Leave everything under way as it is, for ever.

        A process that has abandoned a group leaves by os._exit: destroying the group would wait.
        """
        if self._transport is not None:
            _ABANDONED.append(self._transport)

    def close(self) -> None:
        """End a group in which nothing is under way, once the others have left it too."""
        self._transport = None


def form(membership: Membership, *, listener: Listener, wait: Wait) -> Group:
    """Form the group of a committed generation, or raise GenerationBroken with suspects."""
    if membership.size == 1:
        return Group(membership, None)
    attempt = _Attempt(membership, listener)
    # gloo's constructor blocks on its peers and cannot be interrupted: the thread is disposable.
    threading.Thread(target=attempt.run, name="forming", daemon=True).start()
    name = f"forming generation {membership.generation}"
    try:
        await_event(attempt.done, wait, name=name)
    except TimeoutError as error:
        attempt.give_up()
        raise GenerationBroken(str(error), suspects=attempt.suspects()) from None
    except GenerationBroken:
        attempt.give_up()
        raise
    if attempt.error is not None or attempt.transport is None:
        attempt.give_up()
        # Another member may have heard of what ends this before we looked, and gone on from here.
        if (reason := wait.interrupt()) is not None:
            raise GenerationBroken(f"{name} was given up: {reason}") from attempt.error
        raise GenerationBroken(
            f"{name} failed: {attempt.error}", suspects=attempt.suspects()
        ) from attempt.error
    return Group(membership, attempt.transport)


def await_event(event: threading.Event, wait: Wait, *, name: str) -> None:
    """Wait for another thread under a deadline and an interrupt; TimeoutError when it is over."""
    deadline = time.monotonic() + wait.timeout_s
    try:
        while not event.wait(POLL_S):
            wait.show_awake()
            if (reason := wait.interrupt()) is not None:
                raise GenerationBroken(f"{name} was given up: {reason}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{name} took longer than {wait.timeout_s:.1f} s")
    finally:
        if wait.pulse is not None:
            wait.pulse.end_wait()


@dataclass(slots=True)
class _Attempt:
    """One attempt to form a group, in a thread of its own."""

    membership: Membership
    listener: Listener
    done: threading.Event = field(default_factory=threading.Event)
    transport: Transport | None = None
    error: Exception | None = None
    _keys: Keys | None = None
    _given_up: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        try:
            keys = self._open_keys()
            with self._lock:
                self._keys = keys
                if self._given_up:
                    keys.close()
                    return
            keys.set(_arrived(self.membership.rank), b"1")
            transport = self._connect(keys)
            if self.membership.rank != 0:
                # gloo asks for keys while it forms and never again; process rank 0 keeps its own
                # for those who are not there yet.
                keys.close()
            self.transport = transport
        except Exception as error:  # noqa: BLE001  any error of any text means the same
            self.error = error
        finally:
            self.done.set()

    def give_up(self) -> None:
        """Free the thread if it waits for keys; whatever it holds is kept and never touched."""
        with self._lock:
            self._given_up = True
            if self._keys is not None:
                self._keys.close()
        _ABANDONED.append(self)

    def suspects(self) -> tuple[int, ...]:
        """The members that cannot be reached, or else those that have not arrived."""
        found = probe(self.membership, timeout_s=PROBE_TIMEOUT_S)
        return found.refused + found.silent or self._missing()

    def _missing(self) -> tuple[int, ...]:
        others = [rank for rank in range(self.membership.size) if rank != self.membership.rank]
        try:
            keys = self._open_keys(timeout_s=PROBE_TIMEOUT_S)
            missing = tuple(rank for rank in others if not keys.check([_arrived(rank)]))
        except OSError:
            return (0,)
        if self.membership.rank != 0:
            keys.close()
        return missing

    def _open_keys(self, *, timeout_s: float = DIAL_TIMEOUT_S) -> Keys:
        membership = self.membership
        if membership.rank == 0:
            return self.listener.keys(membership.generation)
        hello = Hello(
            token=membership.token,
            worker=membership.worker,
            kind=Kind.STORE,
            process=self.listener.process,
            generation=membership.generation,
            commit=encode(membership.commit),
        )
        host = membership.addresses[0]
        return RemoteKeys(lambda: dial(host, hello, timeout_s=timeout_s), timeout_s=timeout_s)

    def _connect(self, keys: Keys) -> Transport:
        # torch's stub names these attributes without the underscores that they have.
        options: Any = vars(ProcessGroupGloo)["_Options"]()
        # A device made from our own address looks nothing up: no reverse DNS, no host name.
        host, _ = split_address(self.listener.address)
        device = ProcessGroupGloo.create_device(hostname=host, lazy_init=False)
        options._devices = [device]  # noqa: SLF001
        options._timeout = GLOO_TIMEOUT  # noqa: SLF001
        membership = self.membership
        store = KeyStore(keys)
        gloo = ProcessGroupGloo(store, membership.rank, membership.size, options)
        return GlooTransport(gloo, rank=membership.rank, size=membership.size, store=store)


def _arrived(rank: int) -> str:
    return f"arrived/{rank}"


class KeyStore(Store):
    """torch's store interface over a generation's keys."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self._keys = keys

    def set(self, key: str, value: bytes | str) -> None:
        self._keys.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        return self._keys.get(key, timeout_s=GLOO_TIMEOUT.total_seconds())

    def wait(self, keys: Sequence[str], timeout: timedelta = GLOO_TIMEOUT) -> None:
        self._keys.wait(keys, timeout_s=timeout.total_seconds())

    def add(self, key: str, amount: int) -> int:
        return self._keys.add(key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        return self._keys.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._keys.delete(key)
