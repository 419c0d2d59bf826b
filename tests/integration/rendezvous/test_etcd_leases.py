"""One stream carries the keepalives of a connection, whatever happens to it and to etcd."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.errors import StoreClosed, StoreError, StoreUnreachable
from easyscale.rendezvous.endpoints import EtcdSettings
from easyscale.rendezvous.etcd import EtcdStore
from easyscale.rendezvous.store import LeaseId, Put
from tests.support.etcd import Server, open_store, time_limit, wait_until

TIMEOUT_S = 5.0
TTL_S = 60
PASSWORD = "correct horse"


def grant(store: EtcdStore) -> LeaseId:
    return store.grant(TTL_S, timeout_s=TIMEOUT_S)


def renewed(store: EtcdStore, lease: LeaseId) -> bool:
    try:
        return store.keep_alive(lease, timeout_s=1.0) == TTL_S
    except StoreUnreachable:
        return False


def streams_opened(server: Server) -> int:
    return server.started("LeaseKeepAlive")


def test_all_keepalives_of_all_leases_go_down_one_stream(own_server: Server) -> None:
    with open_store(own_server.settings) as store:
        before = streams_opened(own_server)
        leases = [grant(store) for _ in range(3)]
        for _ in range(4):
            assert [store.keep_alive(lease, timeout_s=TIMEOUT_S) for lease in leases] == 3 * [TTL_S]
        store.revoke(leases[1], timeout_s=TIMEOUT_S)
        answers = [store.keep_alive(lease, timeout_s=TIMEOUT_S) for lease in leases]
        assert answers == [TTL_S, 0, TTL_S]
        assert streams_opened(own_server) - before == 1


def test_threads_that_renew_at_once_get_the_answers_to_their_own(etcd_server: Server) -> None:
    with open_store(etcd_server.settings) as store:
        leases = {ttl_s: store.grant(ttl_s, timeout_s=TIMEOUT_S) for ttl_s in range(60, 68)}
        wrong: list[str] = []

        def renew(ttl_s: int) -> None:
            for _ in range(20):
                answer = store.keep_alive(leases[ttl_s], timeout_s=TIMEOUT_S)
                if answer != ttl_s:
                    wrong.append(f"{answer} for {ttl_s}")

        threads = [threading.Thread(target=renew, args=(ttl_s,)) for ttl_s in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT_S)
        assert wrong == []


def test_a_stream_that_broke_between_two_keepalives_is_no_failure(own_server: Server) -> None:
    with open_store(own_server.settings) as store:
        lease = grant(store)
        assert renewed(store, lease)
        own_server.kill()
        own_server.start()
        with time_limit(3.0):
            wait_until(lambda: renewed(store, lease), "the lease is renewed again")
        # The channel stands again; only the stream is gone.
        opened = streams_opened(own_server)
        for stream in store._keepalives.values():
            assert stream._stream is not None
            stream._stream._call.cancel()
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == TTL_S
        assert streams_opened(own_server) == opened + 1


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(own_server: Server) -> None:
    with open_store(own_server.settings) as store:
        long, short = grant(store), store.grant(TTL_S // 2, timeout_s=TIMEOUT_S)
        assert renewed(store, long)
        own_server.freeze()
        for _ in range(2):
            with time_limit(1.0), pytest.raises(StoreUnreachable, match=str(own_server.endpoint)):
                store.keep_alive(long, timeout_s=0.3)
        own_server.thaw()
        assert store.keep_alive(short, timeout_s=TIMEOUT_S) == TTL_S // 2


def test_who_waits_for_an_answer_hears_that_the_store_was_closed(own_server: Server) -> None:
    before = set(threading.enumerate())
    errors: list[StoreError] = []
    with open_store(own_server.settings) as store:
        lease = grant(store)
        assert renewed(store, lease)
        own_server.freeze()

        def renew() -> None:
            try:
                store.keep_alive(lease, timeout_s=TIMEOUT_S)
            except StoreError as error:
                errors.append(error)

        thread = threading.Thread(target=renew)
        thread.start()
        time.sleep(0.2)
    with time_limit(1.0):
        thread.join(TIMEOUT_S)
    assert [type(error) for error in errors] == [StoreClosed]
    with pytest.raises(StoreClosed):
        store.keep_alive(lease, timeout_s=TIMEOUT_S)
    wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")


def test_when_an_endpoint_freezes_the_next_one_is_asked(own_server: Server, tmp_path: Path) -> None:
    # Two servers that know nothing of each other: one that does not know the lease has answered.
    other = Server(own_server.binary, tmp_path)
    other.start()
    try:
        with open_store(EtcdSettings((own_server.endpoint, other.endpoint))) as store:
            lease = grant(store)
            assert renewed(store, lease)
            own_server.freeze()
            with time_limit(2.0):
                assert store.keep_alive(lease, timeout_s=2.0) == 0
            own_server.thaw()
            other.kill()
            assert store.keep_alive(lease, timeout_s=2.0) == TTL_S
    finally:
        other.end()


def test_a_lease_outlives_the_login(own_server: Server, tmp_path: Path, folder: str) -> None:
    guarded = Server(own_server.binary, tmp_path, options=["--auth-token=simple"])
    guarded.start()
    try:
        guarded.enable_users(PASSWORD)
        with open_store(replace(guarded.settings, user="root", password=PASSWORD)) as store:
            lease = grant(store)
            assert renewed(store, lease)
            opened = streams_opened(guarded)
            store._token.forget(store._token._value)
            store.transact([], [Put(folder + "a", "1")], timeout_s=TIMEOUT_S)
            assert renewed(store, lease)
            assert streams_opened(guarded) == opened + 1, "the new login has a stream of its own"
            store._token._value = "forgotten.1"
            assert renewed(store, lease)
    finally:
        guarded.end()
