"""A job whose records are in an etcd, as commands find it with `--etcd`; in memory."""

import pytest

from easyscale.rendezvous.memory import MemoryServer
from easyscale.rendezvous.store import Put, Store
from easyscale_cli import stored
from tests.support.views import Job

#: How a command finds it.
WHERE = ("job", "--etcd", "etcd-0:2379")


def keep(job: Job, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Write the records of a job into the etcd that commands of this test connect to."""
    server = MemoryServer(lambda: 0.0)
    store = server.client()
    for key, entry in sorted(job.entries.items(), key=lambda item: item[1].create_revision):
        store.transact([], [Put(key, entry.value)], timeout_s=1.0)
    monkeypatch.setattr(stored, "connect", lambda settings: server.client())
    return store
