"""A job as its etcd has it, for whoever is elsewhere; loaded only where an etcd is named."""

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from easyscale.agent.balance.explain import of_job
from easyscale.agent.doors.status import status_of
from easyscale.agent.wishes import addressed
from easyscale.balance import ProfileRecord
from easyscale.errors import FormatError, OutcomeUnknown, StoreUnreachable
from easyscale.job_status import Closing, Glance
from easyscale.model import GenerationNumber, Wish, encode
from easyscale.plan_facts import PlanFacts
from easyscale.rendezvous.endpoints import EtcdSettings, parse_endpoints
from easyscale.rendezvous.formats import refuse_other_format
from easyscale.rendezvous.keys import ROOT, JobKeys, job_of
from easyscale.rendezvous.store import Delete, Put, Store
from easyscale.rendezvous.view import JobView
from easyscale_cli.afar import Afar
from easyscale_cli.connection import (
    Events,
    Offered,
    Story,
)
from easyscale_cli.roads import Road, remote_roads

_CONNECT_TIMEOUT_S = 5.0
_CALL_TIMEOUT_S = 5.0


class StoredJob:
    """A job as etcd has it."""

    def __init__(self, job: str, store: Store, *, apart_from: str = "") -> None:
        self.id = job
        #: Whoever shall leave is the last to be asked how it went.
        self._apart_from = apart_from
        self._store = store
        self._keys = JobKeys.of(job)
        self._view = JobView()
        self._afar = Afar(job, roads=self.roads, nodes=lambda: tuple(self._view.nodes))

    def view(self) -> JobView:
        """The job's records now; raises FormatError for those of another version."""
        stored = self._store.read(self._keys.prefix, timeout_s=_CALL_TIMEOUT_S)
        if (entry := stored.get(self._keys.job)) is not None:
            refuse_other_format(self.id, entry.value, source=entry.key, is_running=False)
        self._view = JobView.of(stored, self._keys, before=self._view)
        reason = self._view.unreadable.get(self._keys.job)
        if reason is not None:
            raise FormatError(
                f"job {self.id!r} cannot be read: {reason}",
                hint="pip install -U easyscale-torch; the job is untouched",
            )
        return self._view

    def glance(self, *, watches: bool = False) -> Glance:
        del watches  # records stay
        status = status_of(self.id, self.view(), wall_s=time.time())
        code = status.job.exit_code
        if code is None:
            return Glance(status=status)
        return Glance(status=status, closing=Closing(exit_code=code, reason=status.job.note or ""))

    def closely(self, *, watches: bool = False) -> Glance:
        """By an agent that can be reached; what is recorded stands where none can."""
        return self._afar.closely(watches=watches) or self.glance(watches=watches)

    def wish(self, wish: Wish) -> str:
        wish_id = secrets.token_hex(8)
        key, wish = self._keys.wish(wish_id), addressed(wish, self.view())
        # A wish whose answer was lost is asked for again by whoever waits for its effect.
        with suppress(OutcomeUnknown):
            self._store.transact([], [Put(key, encode(wish))], timeout_s=_CALL_TIMEOUT_S)
        return wish_id

    def wishes(self) -> Mapping[str, Wish]:
        return self.view().wishes

    def standing(self, wish_id: str) -> Wish | None:
        return self.wishes().get(wish_id)

    def withdraw(self, wish_id: str) -> None:
        gone = Delete(self._keys.wish(wish_id))
        with suppress(OutcomeUnknown):
            self._store.transact([], [gone], timeout_s=_CALL_TIMEOUT_S)

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        view = self.view()
        if view.base is None or view.base.generation <= after:
            return None
        entries = view.entries.get(view.base.generation, {})
        said = [each.pause_s for each in entries.values() if each.pause_s is not None]
        return max(said, default=None)

    def plan(self) -> PlanFacts:
        return of_job(self.id, self.view(), measured_s=self.glance().status.step_time.measured_s)

    def profile(self) -> ProfileRecord | None:
        return self.view().profile

    def events(self, after: int, *, watches: bool = False) -> Events:
        return self._afar.events(after, watches=watches)

    def story(self, *, node: str | None = None, rank: int | None = None) -> Story:
        return self._afar.story(node=node, rank=rank)

    def roads(self) -> Sequence[Road]:
        view = self.view()
        nodes = sorted(
            view.nodes.items(),
            key=lambda item: (item[0] == self._apart_from, item[1].create_revision),
        )
        token = view.spec.token if view.spec is not None else ""
        addresses = [(name, node.record.address) for name, node in nodes]
        return remote_roads(addresses, token)

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        del node, word, by
        return None


def etcd_settings(asked: Mapping[str, Any]) -> EtcdSettings:
    """The etcd that the person named."""

    def path(name: str) -> Path | None:
        return Path(asked[name]) if asked[name] else None

    user = asked["etcd_user"]
    return EtcdSettings(
        endpoints=parse_endpoints(asked["etcd"]),
        ca=path("etcd_ca"),
        cert=path("etcd_cert"),
        key=path("etcd_key"),
        user=user,
        password=os.environ.get("EASYSCALE_ETCD_PASSWORD", "") if user else "",
    )


def connect(settings: EtcdSettings) -> Store:
    """Connect, or say that the jobs do not need us to."""
    from easyscale.rendezvous.etcd import connect as connect_etcd

    try:
        return connect_etcd(settings, timeout_s=_CONNECT_TIMEOUT_S)
    except StoreUnreachable as error:
        raise StoreUnreachable(
            f"{error.message}; running jobs go on",
            hint="start etcd, or name it: --etcd HOST:2379",
        ) from error


def stored_jobs(store: Store) -> list[str]:
    """The names of all jobs that an etcd has records of."""
    stored = store.read(ROOT, timeout_s=_CALL_TIMEOUT_S)
    return sorted({job_of(key) for key in stored.entries})


def exists(store: Store, job: str) -> bool:
    """Whether an etcd has records of this job."""
    keys = JobKeys.of(job)
    return bool(store.read(keys.job, keys.head, timeout_s=_CALL_TIMEOUT_S).entries)
