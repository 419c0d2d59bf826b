"""The others learn that an agent was killed, and only what is true of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from easyscale.agent.processes.guard import LeaseGuard
from easyscale.model import Ending, decode
from easyscale.rendezvous.endpoints import Endpoint, EtcdSettings
from easyscale.rendezvous.etcd import connect
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Put, Store
from tests.integration.agent.conftest import lives, wait_gone
from tests.integration.rendezvous.test_etcd_faults import certificates, secure_server
from tests.support.etcd import Server, etcd_binary, etcd_server, own_server, wait_until

__all__ = ["certificates", "etcd_binary", "etcd_server", "own_server", "secure_server"]

TIMEOUT_S = 5.0

AGENT = """
import json, subprocess, sys, time
from pathlib import Path
from easyscale.agent.processes.guard import LeaseGuard
from easyscale.rendezvous.endpoints import Endpoint, EtcdSettings
from easyscale.rendezvous.keys import JobKeys
facts = json.loads(sys.argv[1])
paths = {name: Path(facts[name]) for name in ("ca", "cert", "key") if facts[name]}
etcd = EtcdSettings(tuple(Endpoint(*e) for e in facts["endpoints"]), user=facts["user"],
                    password=facts["password"], **paths)
guard = LeaseGuard.start(etcd, JobKeys.of(facts["job"]), node="a", incarnation="life")
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
if facts["watch"]:
    guard.watch(child.pid)
guard.hold(facts["lease"])
print(json.dumps([guard.why_unarmed(timeout_s=10), guard.pid, child.pid]), flush=True)
time.sleep(1000)
"""


@contextmanager
def agent(
    settings: EtcdSettings, job: str, lease: int, *, watch: bool = False
) -> Iterator[tuple["subprocess.Popen[str]", str, int, int]]:
    facts = {
        "endpoints": settings.endpoints,
        "user": settings.user,
        "password": settings.password,
        "ca": str(settings.ca or ""),
        "cert": str(settings.cert or ""),
        "key": str(settings.key or ""),
        "job": job,
        "lease": lease,
        "watch": watch,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", AGENT, json.dumps(facts)], stdout=subprocess.PIPE, text=True
    )
    child = guard = 0
    try:
        assert process.stdout is not None
        reason, guard, child = json.loads(process.stdout.readline())
        yield process, reason, guard, child
    finally:
        process.kill()
        for pid in filter(None, (child, guard)):
            if lives(pid):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def registered(store: Store, keys: JobKeys) -> int:
    lease = store.grant(60, timeout_s=TIMEOUT_S)
    store.transact([], [Put(keys.node("a"), "{}", lease)], timeout_s=TIMEOUT_S)
    return lease


def has(store: Store, key: str) -> bool:
    return store.read(key, timeout_s=TIMEOUT_S).get(key) is not None


@pytest.fixture
def job(tmp_path: Path) -> str:
    return f"guard-{tmp_path.name}"[:60]


def test_a_killed_agent_is_proven_gone_and_its_lease_ends_at_once(
    etcd_server: Server, job: str
) -> None:
    keys = JobKeys.of(job)
    with closing(connect(etcd_server.settings, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        with agent(etcd_server.settings, job, lease) as (process, reason, guard, _):
            assert reason == ""
            process.kill()
            killed = time.monotonic()
            wait_until(lambda: not has(store, keys.node("a")), "the registration is gone")
            assert time.monotonic() - killed < 2
            entry = store.read(keys.gone_agent("a", "life"), timeout_s=TIMEOUT_S).get(
                keys.gone_agent("a", "life")
            )
            assert entry is not None
            ending = decode(entry.value, Ending, source=entry.key)
            assert ending.how == "its agent was killed"
            assert wait_gone(guard, within_s=2) == []


def test_nothing_is_proven_while_a_process_of_the_agent_runs(etcd_server: Server, job: str) -> None:
    keys = JobKeys.of(job)
    with closing(connect(etcd_server.settings, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        with agent(etcd_server.settings, job, lease, watch=True) as (process, _, guard, child):
            process.kill()
            time.sleep(0.3)
            assert has(store, keys.node("a"))
            os.kill(child, signal.SIGKILL)
            wait_until(lambda: not has(store, keys.node("a")), "the registration is gone")
            assert has(store, keys.gone_agent("a", "life"))
            assert wait_gone(guard, within_s=2) == []


def test_a_guard_that_is_told_to_leaves_everything_as_it_is(etcd_server: Server, job: str) -> None:
    keys = JobKeys.of(job)
    with closing(connect(etcd_server.settings, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        guard = LeaseGuard.start(etcd_server.settings, keys, node="a", incarnation="life")
        guard.hold(lease)
        assert guard.why_unarmed(timeout_s=TIMEOUT_S) == ""
        guard.close()
        assert not lives(guard.pid)
        assert has(store, keys.node("a"))
        assert not has(store, keys.gone_agent("a", "life"))


def test_the_newest_lease_is_the_one_that_ends(etcd_server: Server, job: str) -> None:
    keys = JobKeys.of(job)
    with closing(connect(etcd_server.settings, timeout_s=TIMEOUT_S)) as store:
        old = store.grant(60, timeout_s=TIMEOUT_S)
        new = registered(store, keys)
        guard = LeaseGuard.start(etcd_server.settings, keys, node="a", incarnation="life")
        guard.hold(old)
        guard.hold(new)
        assert guard._process.stdin is not None
        guard._process.stdin.close()  # as the agent's end would
        wait_until(lambda: not has(store, keys.node("a")), "the registration is gone")
        assert store.keep_alive(old, timeout_s=TIMEOUT_S) > 0
        guard.close()


def test_a_user_of_etcd_is_logged_in(own_server: Server, job: str) -> None:
    own_server.enable_users("correct horse")
    login = replace(own_server.settings, user="root", password="correct horse")
    keys = JobKeys.of(job)
    with closing(connect(login, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        with agent(login, job, lease) as (process, reason, guard, _):
            assert reason == ""
            command = Path(f"/proc/{guard}/cmdline").read_bytes()
            environment = Path(f"/proc/{guard}/environ").read_bytes()
            assert b"horse" not in command + environment
            process.kill()
            wait_until(lambda: not has(store, keys.node("a")), "the registration is gone")
            assert wait_gone(guard, within_s=2) == []


def test_certificates_are_used(secure_server: Server, certificates: Path, job: str) -> None:
    settings = replace(
        secure_server.settings,
        ca=certificates / "ca.pem",
        cert=certificates / "client.pem",
        key=certificates / "client.key",
    )
    keys = JobKeys.of(job)
    with closing(connect(settings, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        with agent(settings, job, lease) as (process, reason, guard, _):
            assert reason == ""
            process.kill()
            wait_until(lambda: not has(store, keys.node("a")), "the registration is gone")
            assert wait_gone(guard, within_s=2) == []


def test_another_endpoint_is_tried_and_a_dead_one_is_named(etcd_server: Server, job: str) -> None:
    nobody = Endpoint("127.0.0.1", 1)
    keys = JobKeys.of(job)
    with closing(connect(etcd_server.settings, timeout_s=TIMEOUT_S)) as store:
        lease = registered(store, keys)
        both = EtcdSettings((nobody, etcd_server.endpoint))
        guard = LeaseGuard.start(both, keys, node="a", incarnation="life")
        guard.hold(lease)
        assert guard.why_unarmed(timeout_s=TIMEOUT_S) == ""
        guard.close()
    guard = LeaseGuard.start(EtcdSettings((nobody,)), keys, node="a", incarnation="life")
    guard.hold(7)
    assert "127.0.0.1:1: [Errno 111] Connection refused" in guard.why_unarmed(timeout_s=TIMEOUT_S)
    guard.close()
