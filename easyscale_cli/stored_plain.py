"""A plain or packed job as its etcd has it, for whoever is elsewhere."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from easyscale.agent.plain import wishes
from easyscale.agent.plain.records import ROOT, PlainKeys, sight_of
from easyscale.agent.plain.status import status_of
from easyscale.agent.plain.values import Sight, Terms
from easyscale.agent.plain.wishes import NotInThisMode
from easyscale.balance import ProfileRecord
from easyscale.errors import OutcomeUnknown
from easyscale.job_status import Closing, Glance
from easyscale.model import GenerationNumber, Wish, encode
from easyscale.plan_facts import PlanFacts
from easyscale.rendezvous.store import Delete, Put, Store
from easyscale_cli.afar import Afar
from easyscale_cli.connection import Events, Offered, Story
from easyscale_cli.roads import Road, remote_roads

_CALL_TIMEOUT_S = 5.0


class StoredPlainJob:
    """Implements `connection.Job`."""

    def __init__(self, job: str, store: Store, *, apart_from: str = "") -> None:
        self.id = job
        #: Whoever shall leave is the last to be asked how it went.
        self._apart_from = apart_from
        self._store = store
        self._keys = PlainKeys(job)
        self._sight = Sight()
        self._afar = Afar(
            job, roads=self.roads, nodes=lambda: [offer.node for offer in self._sight.offers]
        )

    def _look(self) -> tuple[Sight, Terms]:
        view = self._store.read(self._keys.prefix, timeout_s=_CALL_TIMEOUT_S)
        self._sight = sight_of(view, self._keys)
        nobody = Terms(min_nodes=1, max_nodes=None, max_restarts=0, logical_workers=None)
        return self._sight, self._sight.terms or nobody

    def glance(self, *, watches: bool = False) -> Glance:
        del watches  # records stay
        status = status_of(self.id, *self._look(), wall_s=time.time())
        code = status.job.exit_code
        if code is None:
            return Glance(status=status)
        return Glance(status=status, closing=Closing(exit_code=code, reason=status.job.note or ""))

    def closely(self, *, watches: bool = False) -> Glance:
        """By an agent that can be reached; what is recorded stands where none can."""
        return self._afar.closely(watches=watches) or self.glance(watches=watches)

    def wish(self, wish: Wish) -> str:
        sight, terms = self._look()
        wish = wishes.check(
            wish,
            sight,
            job=self.id,
            is_packed=terms.logical_workers is not None,
            least=terms.min_nodes,
            is_whole=True,
        )
        wish_id = secrets.token_hex(8)
        put = Put(self._keys.common.wish(wish_id), encode(wish))
        # A wish whose answer was lost is asked for again by whoever waits for its effect.
        with suppress(OutcomeUnknown):
            self._store.transact([], [put], timeout_s=_CALL_TIMEOUT_S)
        return wish_id

    def wishes(self) -> Mapping[str, Wish]:
        return self._look()[0].wishes

    def standing(self, wish_id: str) -> Wish | None:
        return self.wishes().get(wish_id)

    def withdraw(self, wish_id: str) -> None:
        gone = Delete(self._keys.common.wish(wish_id))
        with suppress(OutcomeUnknown):
            self._store.transact([], [gone], timeout_s=_CALL_TIMEOUT_S)

    def pause_s(self, *, after: GenerationNumber) -> float | None:
        del after  # nobody knows of steps between which it would lie
        return None

    def events(self, after: int, *, watches: bool = False) -> Events:
        return self._afar.events(after, watches=watches)

    def story(self, *, node: str | None = None, rank: int | None = None) -> Story:
        return self._afar.story(node=node, rank=rank)

    def roads(self) -> Sequence[Road]:
        sight, terms = self._look()
        offers = sorted(sight.offers, key=lambda offer: offer.node == self._apart_from)
        return remote_roads([(offer.node, offer.door) for offer in offers], terms.token)

    def plan(self) -> PlanFacts:
        raise self._has_no("plan")

    def profile(self) -> ProfileRecord | None:
        raise self._has_no("profile")

    def set_devices(self, node: str, word: str, *, by: str) -> Offered | None:
        del node, word, by
        return None

    def _has_no(self, what: str) -> NotInThisMode:
        packed = self._look()[1].logical_workers is not None
        return wishes.not_in(self.id, "packed" if packed else "plain", what)


def stored_plain_jobs(store: Store) -> list[str]:
    """The names of those that somebody runs, or that have just ended."""
    return _names(store, lambda rest: rest.startswith("nodes/") or rest == "outcome")


def recorded_plain_jobs(store: Store) -> list[str]:
    """The names of all that have left anything."""
    return _names(store, bool)


def _names(store: Store, shows: Callable[[str], bool]) -> list[str]:
    keys = store.read(ROOT, timeout_s=_CALL_TIMEOUT_S).entries
    split = (key.removeprefix(ROOT).partition("/") for key in keys)
    return sorted({name for name, _, rest in split if shows(rest)})
