"""The metrics port answers whoever asks, and costs the agent nothing when they do not behave."""

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from easyscale.agent.doors.metrics import Seen
from easyscale.agent.doors.metrics_server import MetricsServer
from easyscale.errors import UsageError
from tests.support.callers import hear_out
from tests.unit.views import status_states as states

STATUS = states.two_by_four("█▇▆▅▄▃▂▁")
SEEN = Seen(status=STATUS, node="b", version="0.1.0", leads=False, told={})


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer(0, lambda: SEEN)
    made.start()
    yield made
    made.close()


def scrape(server: MetricsServer, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{server.port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        text: str = answer.read().decode()
        return text


def test_the_text_format_is_served(server: MetricsServer) -> None:
    text = scrape(server)
    assert 'easyscale_step{job_id="resnet50"} 6412.0' in text
    assert "# TYPE easyscale_paused_seconds_total counter" in text
    assert "# HELP easyscale_slots Slots by what they do." in text


def test_many_scrape_at_once(server: MetricsServer) -> None:
    texts: list[str] = []
    threads = [threading.Thread(target=lambda: texts.append(scrape(server))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(texts)) == 1
    assert len(texts) == 8


def test_who_connects_and_says_nothing_is_let_go(
    server: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server._server.RequestHandlerClass, "timeout", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as silent:
        assert scrape(server)
        assert silent.recv(1) == b""
    for garbage in (b"\x00\x01\r\n\r\n", b"GET " + b"x" * 100_000):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as odd:
            hear_out(odd, garbage)
    assert scrape(server)


def test_a_port_that_is_taken_is_refused_at_once(server: MetricsServer) -> None:
    with pytest.raises(UsageError, match=f"--metrics-port {server.port}: Address already in use"):
        MetricsServer(server.port, lambda: SEEN)


def test_a_server_that_was_never_started_closes() -> None:
    made = MetricsServer(0, lambda: SEEN)
    made.close()
    again = MetricsServer(made.port, lambda: SEEN)
    again.close()
