"""One endpoint of etcd through the `etcd3` client: a channel, a token, and what errors mean.

grpc must not meddle with forks: with its fork support on, up to a fifth of the children that an
agent starts die before they exec. Hence the variable below, set before grpc can be imported.
"""

import os
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

from easyscale.errors import (
    LeaseLost,
    OutcomeUnknown,
    StoreClosed,
    StoreError,
    StoreExhausted,
    StoreRefused,
    StoreUnreachable,
    TransactionInvalid,
)
from easyscale.rendezvous.endpoints import Endpoint, EtcdSettings
from easyscale.rendezvous.store import Entry, LeaseId, Range, bounds

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
# What goes wrong is told by our errors, not by lines between those of the screen.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

try:
    import etcd3
    import grpc
    from etcd3 import etcdrpc

    # Older clients of this name lock an endpoint out for 300 s after one timeout.
    _ = etcd3.Endpoint, etcd3.MultiEndpointEtcd3Client
except (ImportError, AttributeError, TypeError) as error:
    # TypeError: etcd3 0.12.0 beside a protobuf that does not read its messages.
    raise StoreRefused(
        f"the client library of etcd cannot be used: {error}",
        hint="pip uninstall etcd3 && pip install --force-reinstall cslab-etcd3==0.12.1",
    ) from error

#: The client library comes through this file: nothing imports it before the variable is set.
__all__ = ["Connection", "Token", "entry_of", "etcdrpc", "grpc", "key_range", "meaning"]

_CHANNEL_OPTIONS = (
    # A TCP connection of its own: one that hangs does not hold the others up.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # In spite of its name this is how long one attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 3000),
    # etcd is in the cluster; the proxy that leads out of it is not for us.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    # Else a ping after each answer measures the road and wakes grpc's threads twice as often. What
    # it would find out is said here: a commit of 1,000 members is 100 kB.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)
_NO_ANSWER = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.DATA_LOSS,
}
#: A login that was refused is refused again for about so long without asking: etcd computes for
#: a tenth of a second at each, and a password that is changed turns every agent away at once.
_LOGIN_PAUSE_S = (1.0, 4.0)
#: grpc says this, and only this, of a request that never left the machine.
_NEVER_SENT = "failed to connect to all addresses"
#: The three ways in which etcd says that it wants a new token.
_STALE_TOKEN = ("invalid auth token", "user name is empty", "revision of auth store is old")
_LEASE_NOT_FOUND = "requested lease not found"
#: What etcd says of a transaction that it will never take.
_INVALID = ("request is too large", "too many operations", "duplicate key")
#: It has reached its quota, and says so until somebody has made room and disarmed the alarm.
_FULL = "database space exceeded"


class Token:
    """The login of a store, shared by its connections and renewed when etcd has forgotten it."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._value = ""
        self._refusal: Any = None
        self._asks_at_s = 0.0

    @property
    def is_renewable(self) -> bool:
        return bool(self._settings.user)

    def current(self, connection: "Connection", *, timeout_s: float) -> str:
        """The token to send along, or nothing where no user is set; logs in when there is none."""
        if not self._settings.user:
            return ""
        if not self._lock.acquire(timeout=timeout_s):
            raise StoreUnreachable(f"the login at {connection.endpoint} takes too long")
        try:
            if not self._value:
                self._value = self._log_in(connection, timeout_s)
            return self._value
        finally:
            self._lock.release()

    def _log_in(self, connection: "Connection", timeout_s: float) -> str:
        if time.monotonic() < self._asks_at_s:
            raise self._refusal.with_traceback(None)
        request = etcdrpc.AuthenticateRequest(
            name=self._settings.user, password=self._settings.password
        )
        try:
            return str(connection.auth.Authenticate(request, timeout_s).token)
        except grpc.RpcError as error:
            if error.code() not in _NO_ANSWER:
                self._refusal = error
                pause_s = random.uniform(*_LOGIN_PAUSE_S)  # noqa: S311 - guards nothing
                self._asks_at_s = time.monotonic() + pause_s
            raise

    def forget(self, stale: str) -> None:
        with self._lock:
            if self._value == stale:
                self._value = ""


class Connection:
    """A channel to one endpoint.

    Its token travels as plain metadata: grpc refuses call credentials of its own without TLS.
    """

    def __init__(self, endpoint: Endpoint, settings: EtcdSettings, token: Token) -> None:
        self.endpoint = endpoint
        self.token = token
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        target = etcd3.Endpoint(
            host,
            endpoint.port,
            secure=settings.is_secure,
            creds=_credentials(settings),
            time_retry=0,
            opts=_CHANNEL_OPTIONS,
        )
        self._client = etcd3.MultiEndpointEtcd3Client(endpoints=[target])
        self.auth = self._client.authstub
        self.kv = self._client.kvstub
        self.lease = self._client.leasestub
        self.watch = etcdrpc.WatchStub(self._client.channel)
        self._is_closed = False

    def call(self, method: Any, request: Any, *, timeout_s: float) -> Any:  # noqa: ANN401 - grpc has no types
        """Ask for one answer."""
        return self.with_token(
            lambda left_s, metadata: method(request, left_s, metadata=metadata), timeout_s
        )

    def open_stream(self, method: Any, requests: Iterator[Any], token: str) -> Any:  # noqa: ANN401
        return method(requests, metadata=_metadata(token))

    def with_token(self, attempt: Any, timeout_s: float) -> Any:  # noqa: ANN401
        """Do what takes seconds and metadata, logging in again once if etcd has forgotten us."""
        deadline = time.monotonic() + timeout_s
        for is_last in (not self.token.is_renewable, True):
            token = ""
            try:
                token = self.token.current(self, timeout_s=max(0.001, deadline - time.monotonic()))
                return attempt(max(0.001, deadline - time.monotonic()), _metadata(token))
            except grpc.RpcError as error:
                if is_last or not (token and _is_stale_token(error)):
                    raise
                self.token.forget(token)
            except ValueError:
                if self._is_closed:
                    raise StoreClosed("this connection to etcd was closed") from None
                raise
        raise AssertionError("the last attempt returns or raises")

    def close(self) -> None:
        self._is_closed = True
        self._client.close()


def _credentials(settings: EtcdSettings) -> Any:  # noqa: ANN401
    if not settings.is_secure:
        return None
    try:
        pem = [path and path.read_bytes() for path in (settings.ca, settings.key, settings.cert)]
    except OSError as error:
        raise StoreRefused(f"a certificate for etcd cannot be read: {error}") from error
    return grpc.ssl_channel_credentials(*pem)


def _metadata(token: str) -> tuple[tuple[str, str], ...]:
    return (("token", token),) if token else ()


def _is_stale_token(error: Any) -> bool:  # noqa: ANN401
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return True
    return any(text in (error.details() or "") for text in _STALE_TOKEN)


def meaning(error: Any, endpoint: Endpoint, *, may_have_written: bool = False) -> StoreError:  # noqa: ANN401
    """Translate an error of grpc into the fact that it stands for."""
    code, details = error.code(), error.details() or ""
    if code in _NO_ANSWER:
        if may_have_written and _NEVER_SENT not in details:
            return OutcomeUnknown(
                f"etcd at {endpoint} took a transaction and did not answer ({_brief(code)})"
            )
        return StoreUnreachable(f"etcd at {endpoint} does not answer ({_brief(code)})")
    if _LEASE_NOT_FOUND in details:
        return LeaseLost("the lease of a key to be written has ended; nothing was written")
    words = details.removeprefix("etcdserver: ") or _brief(code)
    message = f"etcd at {endpoint} refuses: {words}"
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        hint = "etcdctl compact, defrag, alarm disarm" if _FULL in words else ""
        return StoreExhausted(message, hint=hint, words=words)
    if any(text in words for text in _INVALID):
        return TransactionInvalid(message, words=words)
    hint = "check --etcd-user and EASYSCALE_ETCD_PASSWORD" if _concerns_login(error) else ""
    return StoreRefused(message, hint=hint, words=words)


def _concerns_login(error: Any) -> bool:  # noqa: ANN401
    denied = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
    return error.code() in denied or "auth" in (error.details() or "") or _is_stale_token(error)


def _brief(code: Any) -> str:  # noqa: ANN401
    return str(code.name).lower().replace("_", " ")


def key_range(range_: Range) -> dict[str, bytes]:
    """A range as etcd's messages name it: its least key and the least key behind it."""
    least, behind = bounds(range_)
    return {"key": least.encode(), "range_end": behind.encode()}


def entry_of(pair: Any) -> Entry:  # noqa: ANN401
    """A key as etcd sends it; what is no text is shown, not trusted."""
    return Entry(
        pair.key.decode(errors="backslashreplace"),
        pair.value.decode(errors="backslashreplace"),
        pair.create_revision,
        pair.mod_revision,
        LeaseId(pair.lease) if pair.lease else None,
    )
