"""What several files of this level share: one undisturbed run to compare with, and an etcd."""

from collections.abc import Iterator

import pytest

from tests.support.etcd import Server, bundled_binary
from tests.support.nodes import Reference


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Four epochs of ten steps: long enough to be changed several times under way."""
    return Reference.take(tmp_path_factory.mktemp("steady"), epochs=4)


@pytest.fixture
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that agents of a test meet at, to be harmed as it likes."""
    server = Server(bundled_binary(), tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.end()
