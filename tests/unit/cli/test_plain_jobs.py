"""A plain or packed job reached through its etcd, by whoever is elsewhere."""

import msgspec
import pytest

from easyscale.agent.plain.records import PlainKeys
from easyscale.agent.plain.values import Outcome, Sight
from easyscale.agent.plain.wishes import NotInThisMode
from easyscale.errors import UsageError
from easyscale.model import JobState, Record, Wish, encode
from easyscale.rendezvous.memory import MemoryServer, MemoryStore
from easyscale.rendezvous.store import Put
from easyscale_cli.stored_plain import StoredPlainJob, stored_plain_jobs
from tests.support.plain import offer, round_of, terms

KEYS = PlainKeys("ddp")
A = msgspec.structs.replace(offer("a"), door="10.0.0.1:7000")
B = msgspec.structs.replace(offer("b", life="2"), door="10.0.0.2:7000")
TERMS = msgspec.structs.replace(terms(1, 3), token="t")


def store_of(**records: Record) -> MemoryStore:
    store = MemoryServer(clock=lambda: 0.0).client()
    both = Sight(offers=(A, B))
    values: dict[str, Record] = {
        KEYS.common.node("a"): A,
        KEYS.common.node("b"): B,
        KEYS.terms: TERMS,
        KEYS.round: round_of(both, terms(2, 3)),
        **{getattr(KEYS, name): value for name, value in records.items()},
    }
    store.transact([], [Put(key, encode(value)) for key, value in values.items()], timeout_s=1)
    return store


def test_its_records_say_who_runs_what_and_how_many_failures_are_borne() -> None:
    job = StoredPlainJob("ddp", store_of(terms=msgspec.structs.replace(TERMS, max_restarts=3)))
    status = job.glance().status
    assert (status.job.state, status.job.mode, status.job.step) == (JobState.RUNNING, "plain", None)
    assert [(slot.place, tuple(slot.ranks)) for slot in status.slots] == [
        ("a/local:0", (0,)), ("a/local:1", (1,)), ("b/local:0", (2,)), ("b/local:1", (3,)),
    ]  # fmt: skip
    assert (status.budget.used, status.budget.limit) == (0, 3)


def test_its_agents_are_asked_at_their_doors_and_not_where_ranks_meet() -> None:
    roads = StoredPlainJob("ddp", store_of(), apart_from="a").roads()
    assert [(road.node, getattr(road, "address", "")) for road in roads] == [
        ("b", "10.0.0.2:7000"), ("a", "10.0.0.1:7000"),
    ]  # fmt: skip
    without = store_of(terms=msgspec.structs.replace(TERMS, token=""))
    assert StoredPlainJob("ddp", without).roads() == []


def test_a_wish_is_put_where_all_nodes_see_it() -> None:
    job = StoredPlainJob("ddp", store_of())
    wish = Wish(kind="drain", node="b", by="ann")
    assert job.standing(job.wish(wish)) == wish
    with pytest.raises(NotInThisMode, match="number of workers is fixed"):
        job.wish(Wish(kind="devices", node="a", target="cpu:3"))
    with pytest.raises(NotInThisMode, match="knows no plan"):
        job.plan()
    needed = StoredPlainJob("ddp", store_of(terms=msgspec.structs.replace(TERMS, min_nodes=2)))
    with pytest.raises(UsageError, match="node b is needed"):
        needed.wish(wish)


def test_one_that_has_ended_says_how_and_one_that_nobody_runs_is_not_listed() -> None:
    ended = store_of(outcome=Outcome(exit_code=0, reason="stopped by ann", is_stop=True))
    closing = StoredPlainJob("ddp", ended).glance().closing
    assert closing is not None
    assert (closing.exit_code, closing.reason) == (0, "stopped by ann")
    assert stored_plain_jobs(ended) == ["ddp"]
    left = MemoryServer(clock=lambda: 0.0).client()
    left.transact([], [Put(KEYS.terms, encode(TERMS))], timeout_s=1)
    assert stored_plain_jobs(left) == []
