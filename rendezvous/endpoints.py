"""Where etcd is and how it is spoken to: addresses, certificates, and its version.

Cheap to import: nothing here loads a client library.
"""

import http.client
import json
import re
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from easyscale.errors import StoreRefused, StoreUnreachable, UsageError

DEFAULT_PORT = 2379
OLDEST_VERSION = (3, 4, 0)
#: First releases of their lines without known ways to lose or corrupt entries.
SOUND_VERSIONS = {(3, 4): (3, 4, 22), (3, 5): (3, 5, 6)}


class Endpoint(NamedTuple):
    """One address of etcd."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """How to reach an etcd; built once at the entry point."""

    endpoints: tuple[Endpoint, ...]
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    #: A server of our own: volatile by design, so that its age is no news to anybody.
    is_embedded: bool = False

    def __post_init__(self) -> None:
        if not self.endpoints:
            raise UsageError("no endpoint of etcd is given", hint="--etcd HOST:PORT")
        if (self.cert is None) != (self.key is None):
            raise UsageError(
                "a client certificate needs its key", hint="--etcd-cert and --etcd-key"
            )
        if bool(self.user) != bool(self.password):
            raise UsageError(
                "a user of etcd needs a password", hint="--etcd-user and EASYSCALE_ETCD_PASSWORD"
            )
        for path in (self.ca, self.cert, self.key):
            if path is not None and not path.is_file():
                raise UsageError(f"{path} is no file", hint="give the path of a PEM file")

    @property
    def is_secure(self) -> bool:
        return self.ca is not None or self.cert is not None

    def ssl_context(self) -> ssl.SSLContext | None:
        if not self.is_secure:
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except ssl.SSLError as error:
            raise UsageError(f"the certificates for etcd cannot be used: {error}") from error
        return context

    def __str__(self) -> str:
        return ", ".join(map(str, self.endpoints))


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read `HOST[:PORT]`, several with commas; a scheme in front is tolerated."""
    return tuple(parse_endpoint(part.strip()) for part in text.split(",") if part.strip())


def parse_endpoint(text: str, *, default_port: int = DEFAULT_PORT) -> Endpoint:
    """Read one `HOST[:PORT]`; an IPv6 address with a port stands in brackets."""
    address = re.sub(r"^https?://", "", text).rstrip("/")
    found = re.fullmatch(
        r"\[(?P<v6>[^\[\]]+)\](:(?P<p6>\d+))?|(?P<host>[^:\[\]/]+)(:(?P<port>\d+))?", address
    )
    if found is None:
        if address.count(":") > 1 and re.fullmatch(r"[0-9a-fA-F:.]+", address):
            return Endpoint(address, default_port)
        raise UsageError(f"{text!r} is not an address of etcd", hint="HOST:PORT")
    port = int(found["p6"] or found["port"] or default_port)
    if not 0 < port < 1 << 16:
        raise UsageError(f"{port} in {text!r} is not a port", hint="HOST:PORT")
    return Endpoint(found["v6"] or found["host"], port)


def is_own_address(host: str) -> bool:
    """Tell whether a host name or address is one of this machine, by binding to it."""
    for family, address in _resolve(Endpoint(host, 0)):
        with socket.socket(family) as probe:
            try:
                probe.bind(address)
            except OSError:
                continue
            return True
    return False


def own_address_towards(endpoints: Sequence[Endpoint]) -> str:
    """The address of this machine that packets to etcd leave from; nothing is sent."""
    for endpoint in endpoints:
        for family, address in _resolve(endpoint):
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                try:
                    probe.connect(address)
                except OSError:
                    continue
                return str(probe.getsockname()[0])
    names = ", ".join(map(str, endpoints))
    raise StoreUnreachable(f"no road leads from this machine to etcd at {names}")


def _resolve(endpoint: Endpoint) -> list[tuple[int, tuple[str | int | bytes, ...]]]:
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return [(family, address) for family, _, _, _, address in found]


def server_version(endpoint: Endpoint, settings: EtcdSettings, *, timeout_s: float) -> str:
    """Ask a server for its version; raises StoreUnreachable or StoreRefused."""
    context = settings.ssl_context()
    host, port = endpoint
    connection = (
        http.client.HTTPConnection(host, port, timeout=timeout_s)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    )
    try:
        connection.request("GET", "/version")
        with connection.getresponse() as response:
            status, body = response.status, response.read(65536)
    except ssl.SSLError as error:
        raise StoreRefused(
            f"{endpoint} and we do not trust each other: {error.reason or error}",
            hint="check --etcd-ca, --etcd-cert and --etcd-key",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise _no_answer(endpoint, error) from error
    finally:
        connection.close()
    try:
        return str(json.loads(body)["etcdserver"])
    except (ValueError, TypeError, KeyError):
        hint = "check the port, and --etcd-ca for a server with TLS"
        message = f"{endpoint} answers, but not as etcd (HTTP status {status})"
        raise StoreRefused(message, hint=hint) from None


def _no_answer(endpoint: Endpoint, error: OSError | http.client.HTTPException) -> Exception:
    if isinstance(error, http.client.HTTPException):
        hint = "check the port, and --etcd-ca for a server with TLS"
        return StoreRefused(f"{endpoint} answers, but not as etcd", hint=hint)
    reason = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return StoreUnreachable(f"{endpoint}: {reason}")


def check_version(version: str, *, endpoint: Endpoint, is_embedded: bool) -> str:
    """Return what to warn of, or nothing; raises StoreRefused for a version that cannot serve."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    numbers = tuple(int(part) for part in found.groups()) if found else (0, 0, 0)
    if numbers < OLDEST_VERSION:
        message = f"etcd at {endpoint} is version {version}; easyscale needs 3.4 or newer"
        raise StoreRefused(message, hint="3.5.6 or newer is best")
    sound = SOUND_VERSIONS.get((numbers[0], numbers[1]))
    if sound is None or numbers >= sound or is_embedded:
        return ""
    wanted = ".".join(map(str, sound))
    return (
        f"etcd at {endpoint} is version {version}, which can lose or corrupt entries when it is"
        f" killed; {wanted} or newer does not"
    )


def await_versions(settings: EtcdSettings, *, timeout_s: float) -> tuple[Endpoint, str]:
    """Wait until one endpoint tells a usable version; returns that endpoint and a warning."""
    began_s = time.monotonic()
    deadline = began_s + timeout_s
    pause_s = 0.1
    while True:
        failures: list[str] = []
        for number, endpoint in enumerate(settings.endpoints):
            left_s = max(0.05, deadline - time.monotonic())
            share_s = left_s / (len(settings.endpoints) - number)
            try:
                version = server_version(endpoint, settings, timeout_s=share_s)
            except StoreUnreachable as error:
                failures.append(error.message)
                continue
            warning = check_version(version, endpoint=endpoint, is_embedded=settings.is_embedded)
            return endpoint, warning
        if time.monotonic() + pause_s >= deadline:
            # Measured: the names of hosts, for one, are looked up without a deadline.
            asked_s = time.monotonic() - began_s
            message = f"no etcd answered, asked for {asked_s:.1f} s ({'; '.join(failures)})"
            raise StoreUnreachable(message, hint="check --etcd and that etcd runs there")
        time.sleep(pause_s)
        pause_s = min(1.0, 2 * pause_s)
