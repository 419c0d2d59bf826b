"""How an agent comes to its store: the etcd that was named, one that it serves, or its own."""

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from easyscale.agent.doors.control import swept_folder
from easyscale.agent.settings import StoreSettings
from easyscale.errors import EasyScaleError, UsageError
from easyscale.rendezvous.embedded import EmbeddedEtcd
from easyscale.rendezvous.endpoints import (
    Endpoint,
    EtcdSettings,
    is_own_address,
    parse_endpoint,
    parse_endpoints,
)
from easyscale.rendezvous.store import Store

_CONNECT_TIMEOUT_S = 5.0


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A store that serves us, and the etcd of our own behind it, if any."""

    store: Store
    etcd: EtcdSettings
    server: EmbeddedEtcd | None
    warning: str


def open_store(
    asked: StoreSettings,
    tell: Callable[[str], None],
    *,
    environment: Mapping[str, str],
    meeting_timeout_s: float,
) -> Opened:
    """Connect to the etcd that was named, or serve one; raises StoreError.

    The nodes of a job start within `meeting_timeout_s` of one another, and one may serve it.
    """
    from easyscale.rendezvous.etcd import connect  # noqa: PLC0415 - loads grpc, off the main thread

    server = None
    sockets = swept_folder(environment)
    timeout_s = _CONNECT_TIMEOUT_S
    if asked.serve_at:
        server = _serve_for_all(parse_endpoint(asked.serve_at), sockets, tell)
        etcd = EtcdSettings((parse_endpoint(asked.serve_at),), is_embedded=True)
        timeout_s = meeting_timeout_s
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
        server = EmbeddedEtcd.start(sockets=sockets)
        etcd = server.settings
    try:
        store = connect(etcd, timeout_s=timeout_s)
    except EasyScaleError:
        if server is not None:
            server.stop()
        raise
    return Opened(store=store, etcd=etcd, server=server, warning=store.warning)


def _serve_for_all(
    endpoint: Endpoint, sockets: Path | None, tell: Callable[[str], None]
) -> EmbeddedEtcd | None:
    """Serve the job's etcd where this machine is the one that was named; None where it is not."""
    if not is_own_address(endpoint.host):
        tell(f"the agent on {endpoint.host} serves the job's etcd at {endpoint}: connecting to it")
        return None
    try:
        server = EmbeddedEtcd.start(host=endpoint.host, port=endpoint.port, sockets=sockets)
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
