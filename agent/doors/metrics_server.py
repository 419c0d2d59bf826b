"""`--metrics-port`: an HTTP server that tells Prometheus how the job is, when it asks.

Loaded only where a port was asked for. Composed at each scrape; nothing is counted in between.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import MetricsHandler
from prometheus_client.registry import Collector

from easyscale.agent.doors.metrics import FAMILIES, Family, Kind, Seen
from easyscale.errors import UsageError

#: Who connects and does not ask, or does not read, is let go.
_DEADLINE_S: Final = 10.0
_CLOSE_S: Final = 2.0


class MetricsServer:
    """Bound at once, so that a port that is taken is known before anything starts."""

    def __init__(self, port: int, seen: Callable[[], Seen]) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Agent(seen))

        class Handler(MetricsHandler.factory(registry)):  # type: ignore[misc]
            timeout = _DEADLINE_S

        try:
            self._server = _Server(("", port), Handler)
        except OSError as error:
            raise UsageError(
                f"--metrics-port {port}: {error.strerror}",
                hint="another port, or --metrics-port 0 for any free one",
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )

    @property
    def port(self) -> int:
        port: int = self._server.server_address[1]
        return port

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join(_CLOSE_S)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        # Not HTTPServer's: it asks the resolver for this host's name, which may take seconds.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "", self.server_address[1]


class _Agent(Collector):
    """What an agent sees, in the client library's words."""

    def __init__(self, seen: Callable[[], Seen]) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        seen = self._seen()
        for family in FAMILIES:
            metric = _empty(family)
            for labels, value in family.read(seen):
                metric.add_metric(labels, value)
            if metric.samples:
                yield metric


def _empty(family: Family) -> CounterMetricFamily | GaugeMetricFamily:
    form = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    return form(family.name, family.help, labels=family.labels)
