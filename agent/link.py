"""The agent's link to the store: one thread that opens it and carries out store actions in order.

It brings back views. While the store is away, own writes wait here and nothing else does.
"""

import contextlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec

from easyscale.agent import actions, events
from easyscale.agent.code_check import CodeCheck
from easyscale.agent.doors.control import swept_folder
from easyscale.agent.machine import followed_ranges
from easyscale.agent.settings import LaunchSettings
from easyscale.agent.snapshots import Catalogue, FixedValues, refuse_other_values
from easyscale.errors import (
    EasyScaleError,
    LeaseLost,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
    UsageError,
)
from easyscale.model import FORMAT_VERSION, JobSpec, decode, encode
from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.endpoints import (
    Endpoint,
    EtcdSettings,
    is_own_address,
    parse_endpoint,
    parse_endpoints,
)
from easyscale.rendezvous.formats import our_release, refuse_other_format
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.membership import Membership
from easyscale.rendezvous.store import Entry, Modified, Put, Range, Store, View, Watch, absent
from easyscale.rendezvous.view import JobView

_CALL_TIMEOUT_S = 2.0
_CONNECT_TIMEOUT_S = 5.0
_RETRY_S = 0.2
_CLOSE_TIMEOUT_S = 3.0

StoreAction = (
    actions.Enrol
    | actions.Write
    | actions.Transact
    | actions.Campaign
    | actions.Resign
    | actions.Leave
)


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A store that serves us, and the etcd of our own behind it, if any."""

    store: Store
    etcd: EtcdSettings
    server: EmbeddedEtcd | None
    warning: str


def open_store(settings: LaunchSettings, tell: Callable[[str], None]) -> Opened:
    """Connect to the etcd that was named, or serve one; raises StoreError."""
    from easyscale.rendezvous.etcd import connect  # noqa: PLC0415 - loads grpc, off the main thread

    asked = settings.store
    server = None
    timeout_s = _CONNECT_TIMEOUT_S
    if asked.serve_at:
        server = _serve_for_all(parse_endpoint(asked.serve_at), settings, tell)
        etcd = EtcdSettings((parse_endpoint(asked.serve_at),), is_embedded=True)
        # The nodes of a job start within minutes of one another, and one of them serves it.
        timeout_s = settings.timeouts.meeting_timeout_s
    elif asked.endpoints:
        etcd = EtcdSettings(
            endpoints=tuple(e for text in asked.endpoints for e in parse_endpoints(text)),
            ca=_path(asked.ca_file),
            cert=_path(asked.certificate_file),
            key=_path(asked.key_file),
            user=asked.user,
            password=asked.password,
        )
    else:
        server = EmbeddedEtcd.start(sockets=swept_folder(settings.environment))
        etcd = server.settings
    try:
        store = connect(etcd, timeout_s=timeout_s)
    except EasyScaleError:
        if server is not None:
            server.stop()
        raise
    return Opened(store=store, etcd=etcd, server=server, warning=store.warning)


def _serve_for_all(
    endpoint: Endpoint, settings: LaunchSettings, tell: Callable[[str], None]
) -> EmbeddedEtcd | None:
    """Serve the job's etcd where this machine is the one that was named; None where it is not."""
    if not is_own_address(endpoint.host):
        tell(f"the agent on {endpoint.host} serves the job's etcd at {endpoint}: connecting to it")
        return None
    try:
        server = EmbeddedEtcd.start(
            host=endpoint.host, port=endpoint.port, sockets=swept_folder(settings.environment)
        )
    except UsageError:
        tell(f"{endpoint} is served on this machine already: connecting to it")
        return None
    tell(
        f"serves the job's etcd at {endpoint}: on this machine alone, without TLS, and ending with"
        " this agent; others train on without it, changes wait"
    )
    return server


def _path(text: str) -> Path | None:
    return Path(text) if text else None


class StoreLink:
    """What the driver knows of the store. Every method returns at once; answers are events."""

    def __init__(
        self,
        settings: LaunchSettings,
        catalogue: Catalogue,
        code: CodeCheck,
        *,
        post: Callable[[events.AgentEvent], None],
        tell: Callable[[str], None],
        fail: Callable[[EasyScaleError], None],
    ) -> None:
        self._settings = settings
        self._catalogue = catalogue
        self._code = code
        self._keys = JobKeys.of(settings.job_id)
        self._post = post
        self._tell = tell
        self._fail = fail
        self._news = threading.Condition()
        self._actions: deque[StoreAction | events.Elected | events.Deposed] = deque()
        self._writes: dict[str, actions.Write] = {}
        self._leads = False
        self._view_is_due = False
        self._view: JobView | None = None
        #: What each followed range showed last; a leader reads all at one revision instead.
        self._parts: dict[Range, View] = {}
        self._watches: list[Watch] = []
        self._is_closing = False
        self._opened: Opened | None = None
        self._membership: Membership | None = None
        self._thread = threading.Thread(target=self._run, name="store-link", daemon=True)

    @property
    def opened(self) -> Opened | None:
        return self._opened

    @property
    def membership(self) -> Membership | None:
        return self._membership

    def start(self) -> None:
        self._thread.start()

    def take(self, action: StoreAction) -> None:
        """Carry this out after those before it."""
        with self._news:
            self._actions.append(action)
            self._news.notify()

    def close(self) -> None:
        """Write what can still be written, then end watches, lease and server."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        if self._thread.is_alive():
            self._thread.join(timeout=_CLOSE_TIMEOUT_S)
        if self._membership is not None:
            self._membership.close()
        if self._settings.store.serve_at:
            self._serve_the_last()
        for watch in self._watches:
            watch.close()
        if self._opened is not None:
            self._opened.store.close()
            if self._opened.server is not None:
                self._opened.server.stop()

    def _serve_the_last(self) -> None:
        """Serve until the others have left too: they read the job's outcome here."""
        if self._opened is None or self._opened.server is None:
            return
        deadline_s = time.monotonic() + self._settings.timeouts.serve_linger_s
        with contextlib.suppress(StoreError):
            while time.monotonic() < deadline_s:
                if not self._opened.store.read(self._keys.nodes, timeout_s=_CALL_TIMEOUT_S).entries:
                    return
                time.sleep(_RETRY_S)

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._open()
        except EasyScaleError as error:
            self._fail(error)
            return
        while self._wait():
            for action in self._take_actions():
                self._carry_out(action)
            self._flush_writes()
            self._bring_view()
        for action in self._take_actions():
            self._carry_out(action)
        self._flush_writes()

    def _open(self) -> None:
        started_s = time.monotonic()
        self._opened = opened = open_store(self._settings, self._tell)
        seconds = time.monotonic() - started_s
        if opened.warning:
            self._tell(opened.warning)
        spec = agree_on_job(opened.store, self._keys, self._settings)
        self._catalogue.refuse_other_values(_fixed_values(self._settings))
        if note := self._code.agree(opened.store, self._keys):
            self._tell(note)
        self._catalogue.sweep(live=())
        self._membership = Membership(
            opened.store,
            self._keys,
            _Ear(self),
            ttl_s=self._settings.timeouts.lease_ttl_s,
            leader_margin_s=self._settings.timeouts.leader_margin_s,
        )
        self._post(events.JobOpened(spec=spec, store=str(opened.etcd), seconds=seconds))
        survey = self._catalogue.survey()
        for entry in survey.rejected:
            self._tell(f"snapshot {entry.name} is passed over: {entry.reason}")
        self._post(events.SnapshotsFound(records=survey.records))
        self._follow()

    def _follow(self) -> None:
        """Watch what this agent must see: everything while it leads, else what concerns all."""
        assert self._opened is not None
        for watch in self._watches:
            watch.close()
        with self._news:
            self._parts = {}
        self._view = None
        self._watches = [
            self._opened.store.watch(
                range_, deliver=partial(self._hear, range_), lost=lambda _: None
            )
            for range_ in self._ranges()
        ]

    def _ranges(self) -> tuple[Range, ...]:
        return (self._keys.prefix,) if self._leads else followed_ranges(self._keys)

    def _hear(self, range_: Range, view: View) -> None:
        with self._news:
            self._parts[range_] = view
            self._view_is_due = True
            self._news.notify()

    def _wait(self) -> bool:
        """Wait until there is something to do; False when the agent ends."""
        with self._news:
            self._news.wait_for(
                lambda: self._is_closing or self._actions or self._view_is_due,
                timeout=_RETRY_S if self._writes else None,
            )
            return not self._is_closing

    def _take_actions(self) -> Sequence[StoreAction | events.Elected | events.Deposed]:
        with self._news:
            taken = tuple(self._actions)
            self._actions.clear()
            return taken

    def _carry_out(self, action: StoreAction | events.Elected | events.Deposed) -> None:
        membership = self._membership
        assert membership is not None
        match action:
            case actions.Enrol(record=record):
                membership.enrol(record)
            case actions.Write(key=key):
                # The newest value of a key goes where the newest write stands.
                self._writes.pop(key, None)
                self._writes[key] = action
            case actions.Transact():
                self._flush_writes()
                self._post(self._try(action))
            case actions.Campaign():
                membership.stand()
            case actions.Resign():
                membership.withdraw()
            case actions.Leave(how=how):
                self._flush_writes()
                membership.leave(how)
            case events.Elected() | events.Deposed():
                self._leads = isinstance(action, events.Elected)
                self._post(action)
                self._follow()
            case _:
                assert_never(action)

    def _try(self, action: actions.Transact) -> events.Transacted:
        assert self._opened is not None
        try:
            result = self._opened.store.transact(
                action.compares, action.operations, timeout_s=_CALL_TIMEOUT_S
            )
        except StoreError:
            return events.Transacted(name=action.name, succeeded=None)
        return events.Transacted(
            name=action.name, succeeded=result.succeeded, revision=result.revision
        )

    def _flush_writes(self) -> None:
        assert self._opened is not None
        assert self._membership is not None
        for key, write in tuple(self._writes.items()):
            lease = self._membership.lease if write.leased else None
            if write.leased and lease is None:
                continue
            try:
                put = Put(key, write.value, lease)
                self._opened.store.transact([], [put], timeout_s=_CALL_TIMEOUT_S)
            except (StoreUnreachable, OutcomeUnknown):
                return
            except LeaseLost:
                continue  # the machine writes it again once we are registered again
            with self._news:
                if self._writes.get(key) is write:
                    del self._writes[key]

    def _bring_view(self) -> None:
        if not self._view_is_due:
            return
        assert self._membership is not None
        self._view_is_due = False
        leads = self._leads
        view = self._read_all() if leads else self._put_together()
        if view is None:
            return
        self._membership.see_leader(view.get(self._keys.leader))
        self._view = JobView.of(view, self._keys, before=self._view)
        self._post(events.Viewed(view=self._view, complete=leads))

    def _read_all(self) -> View | None:
        """What a leader decides on: everything, at one revision, read linearizably."""
        assert self._opened is not None
        try:
            return self._opened.store.read(self._keys.prefix, timeout_s=_CALL_TIMEOUT_S)
        except StoreError:
            self._view_is_due = True
            time.sleep(_RETRY_S)
            return None

    def _put_together(self) -> View | None:
        """What a follower acts on: what the watches brought, so that news costs etcd no read.

        Each range is at a revision of its own; whatever is written on it compares `head`.
        """
        with self._news:
            parts = [self._parts.get(range_) for range_ in self._ranges()]
        complete = [part for part in parts if part is not None]
        return View.union(complete) if len(complete) == len(parts) else None

    # --- what the membership says --------------------------------------------------------------

    def change_office(self, event: events.Elected | events.Deposed) -> None:
        with self._news:
            self._actions.append(event)
            self._news.notify()

    def end_lease(self, reason: str) -> None:
        with self._news:
            kept = {key: write for key, write in self._writes.items() if not write.leased}
            self._writes = kept
        self._post(events.LeaseEnded(reason=reason))

    def post(self, event: events.AgentEvent) -> None:
        self._post(event)

    def refuse(self, error: EasyScaleError) -> None:
        self._fail(error)


class _Ear:
    """Turns what the membership tells into events."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    def enrolled(self, create_revision: int) -> None:
        self._link.post(events.Enrolled(create_revision=create_revision))

    def lease_ended(self, reason: str) -> None:
        self._link.end_lease(reason)

    def store_away(self, reason: str) -> None:
        self._link.post(events.StoreAway(reason=reason))

    def store_back(self, silent_s: float) -> None:
        self._link.post(events.StoreBack(silent_s=silent_s))

    def elected(self, token: int) -> None:
        self._link.change_office(events.Elected(token=token))

    def deposed(self, reason: str) -> None:
        self._link.change_office(events.Deposed(reason=reason))

    def refused(self, error: EasyScaleError) -> None:
        self._link.refuse(error)


def _fixed_values(settings: LaunchSettings) -> FixedValues:
    return FixedValues(
        logical_workers=settings.logical_workers,
        seed=settings.seed,
        determinism=settings.determinism,
        threads_per_worker=settings.threads_per_worker,
    )


def agree_on_job(store: Store, keys: JobKeys, settings: LaunchSettings) -> JobSpec:
    """Create the job's spec, or check that this launch asks for what is fixed already."""
    wanted = JobSpec(
        logical_workers=settings.logical_workers,
        seed=settings.seed,
        determinism=settings.determinism,
        threads_per_worker=settings.threads_per_worker,
        token=secrets.token_hex(16),
        layout=settings.layout,
        release=our_release(),
    )
    with contextlib.suppress(OutcomeUnknown):  # what stands is read back either way
        store.transact(
            [absent(keys.job)], [Put(keys.job, encode(wanted))], timeout_s=_CALL_TIMEOUT_S
        )
    view = store.read(keys.job, keys.nodes, timeout_s=_CALL_TIMEOUT_S)
    entry = view.get(keys.job)
    if entry is None:
        raise StoreUnreachable(f"the key {keys.job!r} was written and is not there")
    is_running = any(key.startswith(keys.nodes) for key in view.entries)
    refuse_other_format(settings.job_id, entry.value, source=entry.key, is_running=is_running)
    stands = decode(entry.value, JobSpec, source=entry.key)
    refuse_other_values(settings.job_id, stands=stands, asked=_fixed_values(settings))
    return _renew_format(store, entry, stands)


def _renew_format(store: Store, entry: Entry, stands: JobSpec) -> JobSpec:
    """A job of an older format that nobody ran goes on in ours: its record says so to the next."""
    if stands.version >= FORMAT_VERSION:
        return stands
    renewed = msgspec.structs.replace(stands, version=FORMAT_VERSION, release=our_release())
    put = Put(entry.key, encode(renewed))
    with contextlib.suppress(OutcomeUnknown):
        store.transact([Modified(entry.key, entry.mod_revision)], [put], timeout_s=_CALL_TIMEOUT_S)
    return renewed
