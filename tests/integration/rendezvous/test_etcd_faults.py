"""What the network, the operator and time do to an etcd, and what a store makes of it."""

import http.server
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from easyscale.errors import OutcomeUnknown, StoreError, StoreRefused, StoreUnreachable
from easyscale.rendezvous import etcd_connection, etcd_stream, etcd_watch
from easyscale.rendezvous.endpoints import (
    Endpoint,
    EtcdSettings,
    is_own_address,
    own_address_towards,
)
from easyscale.rendezvous.etcd import EtcdStore, connect
from easyscale.rendezvous.store import Put, View
from tests.support.etcd import Server, bundled_binary, free_port, open_store, time_limit, wait_until
from tests.support.services import missing_service

TIMEOUT_S = 5.0


class Told:
    """Remembers what a watch says."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self.losses: list[str] = []

    def follow(self, store: EtcdStore, folder: str) -> "Told":
        store.watch(folder, deliver=self.views.append, lost=self.losses.append)
        wait_until(lambda: self.views, "the first view")
        return self

    def await_value(self, key: str, value: str) -> None:
        wait_until(lambda: value_in(self.views[-1], key) == value, f"{key} is {value}")


def value_in(view: View, key: str) -> str:
    entry = view.get(key)
    return "" if entry is None else entry.value


def put(store: EtcdStore, key: str, value: str) -> None:
    store.transact([], [Put(key, value)], timeout_s=TIMEOUT_S)


@pytest.fixture
def store(etcd_server: Server) -> Iterator[EtcdStore]:
    with open_store(etcd_server.settings) as store:
        yield store


@pytest.fixture
def second(etcd_server: Server) -> Iterator[EtcdStore]:
    with open_store(etcd_server.settings) as store:
        yield store


# --- etcd is killed, frozen, compacted ------------------------------------------------------------


def test_after_a_kill_and_restart_the_next_call_works_at_once(
    own_server: Server, folder: str
) -> None:
    with open_store(own_server.settings) as store:
        told = Told().follow(store, folder)
        own_server.kill()
        wait_until(lambda: told.losses, "word of the loss")
        assert str(own_server.endpoint) in told.losses[0]
        with pytest.raises(StoreUnreachable, match=str(own_server.endpoint)):
            store.read(folder, timeout_s=1.0)
        own_server.start()
        # One refused connection must not lock the endpoint out.
        with time_limit(3.0):
            wait_until(lambda: can_write(store, folder + "a"), "a write after the restart")
        told.await_value(folder + "a", "1")
        assert len(told.losses) == 1


def can_write(store: EtcdStore, key: str) -> bool:
    try:
        put(store, key, "1")
    except (StoreUnreachable, StoreRefused):
        return False
    return True


def test_every_call_to_a_frozen_etcd_ends_by_its_deadline(
    own_server: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "SILENCE_S", 0.3)
    monkeypatch.setattr(etcd_stream, "_ANSWER_TIMEOUT_S", 0.5)
    with open_store(own_server.settings) as store:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        told = Told().follow(store, folder)
        put(store, folder + "a", "0")
        own_server.freeze()
        calls: list[Callable[[], object]] = [
            # It was alive a moment ago and may have written.
            lambda: store.transact([], [Put(folder + "a", "1")], timeout_s=0.3),
            # It was not: nothing is sent.
            lambda: store.transact([], [Put(folder + "a", "2")], timeout_s=0.3),
            lambda: store.read(folder, timeout_s=0.3),
            lambda: store.grant(1, timeout_s=0.3),
            lambda: store.keep_alive(lease, timeout_s=0.3),
            lambda: store.revoke(lease, timeout_s=0.3),
        ]
        expected = [OutcomeUnknown] + 5 * [StoreUnreachable]
        for call, error in zip(calls, expected, strict=True):
            with time_limit(1.0), pytest.raises(error):
                call()
        wait_until(lambda: told.losses, "the silence is noticed")
        own_server.thaw()
        put(store, folder + "b", "3")
        told.await_value(folder + "b", "3")
        assert value_in(told.views[-1], folder + "a") in {"0", "1"}
        assert len(told.losses) == 1


def test_a_quiet_watch_of_a_living_etcd_is_left_alone(
    etcd_server: Server, store: EtcdStore, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "SILENCE_S", 0.02)
    told = Told().follow(store, folder)
    time.sleep(0.5)  # some 25 probes
    assert (len(told.views), told.losses) == (1, [])
    put(store, folder + "a", "1")
    told.await_value(folder + "a", "1")


def test_nothing_is_lost_between_the_list_and_the_watch(
    etcd_server: Server, store: EtcdStore, second: EtcdStore, folder: str
) -> None:
    views: list[View] = []

    def deliver(view: View) -> None:
        if not views:
            # The list was taken, the watch does not stand yet.
            put(second, folder + "a", "1")
            put(second, folder + "a", "2")
        views.append(view)

    store.watch(folder, deliver=deliver, lost=pytest.fail)
    wait_until(lambda: len(views) == 3, "three views")
    assert [value_in(view, folder + "a") for view in views] == ["", "1", "2"]


def test_a_watch_below_the_compaction_lists_again_and_loses_nothing(
    etcd_server: Server, store: EtcdStore, second: EtcdStore, folder: str
) -> None:
    views: list[View] = []
    losses: list[str] = []

    def deliver(view: View) -> None:
        if not views:
            for number in range(3):
                put(second, folder + "a", str(number))
            etcd_server.compact(second.read(folder, timeout_s=TIMEOUT_S).revision)
        views.append(view)

    store.watch(folder, deliver=deliver, lost=losses.append)
    wait_until(lambda: len(views) > 1 and value_in(views[-1], folder + "a") == "2", "the newest")
    put(second, folder + "a", "3")
    wait_until(lambda: value_in(views[-1], folder + "a") == "3", "it is followed")
    assert losses == []


def test_reads_that_are_given_up_while_they_run_do_not_end_the_server(
    own_server: Server, folder: str
) -> None:
    def give_up(store: EtcdStore) -> None:
        with pytest.raises(StoreUnreachable):
            store.read(f"{folder}many/", f"{folder}other/", timeout_s=0.3)

    with open_store(own_server.settings) as store:
        for i in range(40):
            many = [Put(f"{folder}many/{i}-{k}", 200 * "x") for k in range(100)]
            store.transact([], many, timeout_s=TIMEOUT_S)
        for _ in range(4):
            own_server.freeze()
            readers = [threading.Thread(target=give_up, args=(store,)) for _ in range(50)]
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(TIMEOUT_S)
            own_server.thaw()
            # It comes to them before this, and finds each given up.
            assert len(store.read(f"{folder}many/", timeout_s=TIMEOUT_S).entries) == 4000


@pytest.mark.parametrize("compacts", [False, True])
def test_ranges_are_read_as_they_were_at_one_moment(
    etcd_server: Server, store: EtcdStore, second: EtcdStore, folder: str, compacts: bool
) -> None:
    put(store, f"{folder}a", "old")
    put(store, f"{folder}b", "old")
    (connection,) = store._connections
    ask = connection.call
    asked = 0

    def call(method: object, request: object, *, timeout_s: float) -> object:
        nonlocal asked
        answer = ask(method, request, timeout_s=timeout_s)
        asked += 1
        if asked == 1:
            second.transact(
                [], [Put(f"{folder}a", "new"), Put(f"{folder}b", "new")], timeout_s=TIMEOUT_S
            )
            if compacts:
                etcd_server.compact(second.read(folder, timeout_s=TIMEOUT_S).revision)
        return answer

    connection.call = call  # type: ignore[method-assign]
    view = store.read(f"{folder}a", f"{folder}b", timeout_s=TIMEOUT_S)
    expected = "new" if compacts else "old"
    assert [value_in(view, f"{folder}{key}") for key in "ab"] == [expected, expected]


def test_an_etcd_that_dies_with_a_transaction_in_hand_leaves_its_outcome_unknown(
    own_server: Server, folder: str
) -> None:
    with open_store(own_server.settings) as store:
        store.read(folder, timeout_s=TIMEOUT_S)
        own_server.freeze()
        killer = threading.Timer(0.3, own_server.kill)
        killer.start()
        with time_limit(2.0), pytest.raises(OutcomeUnknown):
            store.transact([], [Put(folder + "a", "1")], timeout_s=TIMEOUT_S)
        killer.join(TIMEOUT_S)


# --- several endpoints ----------------------------------------------------------------------------


def test_a_dead_endpoint_is_passed_over(etcd_server: Server, folder: str) -> None:
    dead = Endpoint("127.0.0.1", free_port())
    settings = EtcdSettings((dead, etcd_server.endpoint, dead))
    with open_store(settings) as store:
        told = Told().follow(store, folder)
        put(store, folder + "a", "1")
        told.await_value(folder + "a", "1")
        assert told.losses == []


def test_when_an_endpoint_dies_the_others_are_asked(
    own_server: Server, tmp_path: Path, folder: str
) -> None:
    # Two servers that know nothing of each other: what is shown is who is asked.
    other = Server(own_server.binary, tmp_path)
    other.start()
    try:
        settings = EtcdSettings((own_server.endpoint, other.endpoint))
        with open_store(settings) as store:
            told = Told().follow(store, folder)
            own_server.kill()
            store.read(folder, timeout_s=TIMEOUT_S)
            put(store, folder + "a", "1")
            told.await_value(folder + "a", "1")
    finally:
        other.end()


def test_a_frozen_endpoint_takes_only_its_share_of_the_time(
    own_server: Server, tmp_path: Path, folder: str
) -> None:
    other = Server(own_server.binary, tmp_path)
    other.start()
    try:
        with open_store(EtcdSettings((own_server.endpoint, other.endpoint))) as store:
            own_server.freeze()
            with time_limit(3.5):
                store.read(folder, timeout_s=4.0)
            # And from then on none of it.
            with time_limit(1.5):
                store.read(folder, timeout_s=4.0)
    finally:
        other.end()


# --- who may not be served ------------------------------------------------------------------------


def test_an_endpoint_that_nobody_serves_is_named_when_time_is_up() -> None:
    endpoint = Endpoint("127.0.0.1", free_port())
    with time_limit(2.0), pytest.raises(StoreUnreachable) as caught:
        connect(EtcdSettings((endpoint,)), timeout_s=0.5)
    assert str(endpoint) in caught.value.message
    assert "refused" in caught.value.message
    assert caught.value.hint


def test_an_etcd_that_comes_late_is_waited_for(own_server: Server) -> None:
    own_server.kill()
    starter = threading.Timer(0.3, own_server.start)
    starter.start()
    with open_store(own_server.settings):
        pass
    starter.join(TIMEOUT_S)


@contextmanager
def answering(status: int, body: str) -> Iterator[Endpoint]:
    """A server that answers every request with the same words."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield Endpoint("127.0.0.1", server.server_port)
        server.shutdown()
        thread.join(TIMEOUT_S)


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (200, '{"etcdserver": "3.3.27", "etcdcluster": "3.3.0"}', "3.4 or newer"),
        (200, '{"etcdserver": "2.3.8"}', "3.4 or newer"),
        (200, "<html>hello</html>", "not as etcd"),
        (200, "[]", "not as etcd"),
        (404, "not found", "not as etcd"),
    ],
)
def test_what_is_no_etcd_that_can_serve_is_refused_in_one_sentence(
    status: int, body: str, why: str
) -> None:
    with answering(status, body) as endpoint, pytest.raises(StoreRefused, match=why) as caught:
        connect(EtcdSettings((endpoint,)), timeout_s=TIMEOUT_S)
    assert str(endpoint) in caught.value.message
    assert "\n" not in caught.value.message


def test_what_does_not_even_speak_http_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint(*listener.getsockname())
        thread = threading.Thread(target=_greet, args=(listener,))
        thread.start()
        with pytest.raises(StoreRefused, match="not as etcd"):
            connect(EtcdSettings((endpoint,)), timeout_s=TIMEOUT_S)
        thread.join(TIMEOUT_S)


def _greet(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(b"220 mail.example.org ESMTP\r\n")


def test_an_old_etcd_is_warned_of_unless_it_is_our_own(tmp_path: Path) -> None:
    server = Server(bundled_binary(), tmp_path)
    server.start()
    try:
        with open_store(server.settings) as store:
            assert "3.5.6 or newer" in store.warning
        with open_store(replace(server.settings, is_embedded=True)) as store:
            assert store.warning == ""
    finally:
        server.end()


# --- users ----------------------------------------------------------------------------------------

PASSWORD = "correct horse"


@pytest.fixture
def guarded(own_server: Server) -> Server:
    own_server.enable_users(PASSWORD)
    return own_server


def login(server: Server) -> EtcdSettings:
    return replace(server.settings, user="root", password=PASSWORD)


def test_a_user_is_let_in_without_tls(guarded: Server, folder: str) -> None:
    with open_store(login(guarded)) as store:
        told = Told().follow(store, folder)
        put(store, folder + "a", "1")
        told.await_value(folder + "a", "1")
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 60
        store.revoke(lease, timeout_s=TIMEOUT_S)


def test_a_role_for_what_lies_below_easyscale_is_enough(own_server: Server, folder: str) -> None:
    own_server.add_user("ann", PASSWORD, folder="/easyscale/")
    own_server.enable_users(PASSWORD)
    with open_store(replace(login(own_server), user="ann")) as store:
        told = Told().follow(store, folder)
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        store.transact([], [Put(folder + "a", "1", lease)], timeout_s=TIMEOUT_S)
        told.await_value(folder + "a", "1")
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 60
        store._answered_at = 0.0  # the next transaction probes first
        put(store, folder + "b", "2")
        store.revoke(lease, timeout_s=TIMEOUT_S)
        told.await_value(folder + "b", "2")
        with pytest.raises(StoreRefused, match="permission denied"):
            put(store, "/elsewhere", "1")


@pytest.mark.parametrize(
    "wrong", [{"password": "guess"}, {"user": "nobody"}, {"user": "", "password": ""}]
)
def test_who_is_not_let_in_hears_what_to_check(guarded: Server, wrong: dict[str, Any]) -> None:
    settings = replace(login(guarded), **wrong)
    with time_limit(3.0), pytest.raises(StoreRefused) as caught:
        connect(settings, timeout_s=TIMEOUT_S)
    assert "--etcd-user" in caught.value.hint
    assert PASSWORD not in str(caught.value)


def test_a_login_that_was_refused_is_not_tried_by_every_call_and_counts_again(
    guarded: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_connection, "_LOGIN_PAUSE_S", (1.0, 1.0))
    with open_store(login(guarded)) as store:
        guarded.change_password(PASSWORD, "other")
        before = guarded.started("Authenticate")
        ends_at = time.monotonic() + 0.5
        while time.monotonic() < ends_at:
            with pytest.raises(StoreRefused, match="authentication failed"):
                store.read(folder, timeout_s=TIMEOUT_S)
        assert guarded.started("Authenticate") - before == 1
        guarded.change_password("other", PASSWORD)
        wait_until(lambda: can_write(store, folder + "a"), "the login counts again")


def test_when_etcd_forgets_the_login_the_next_call_and_the_next_watch_work(
    guarded: Server, folder: str
) -> None:
    with open_store(login(guarded)) as store:
        lease = store.grant(60, timeout_s=TIMEOUT_S)
        before = Told().follow(store, folder)
        # Tokens live in memory only: the restarted server knows none of them, as after expiry.
        guarded.kill()
        guarded.start()
        wait_until(lambda: can_write(store, folder + "a"), "a write after the restart")
        after = Told().follow(store, folder)
        put(store, folder + "a", "2")
        for told in (before, after):
            told.await_value(folder + "a", "2")
        assert store.keep_alive(lease, timeout_s=TIMEOUT_S) == 60


def test_a_watch_opened_with_a_token_just_forgotten_does_not_stay_deaf(
    guarded: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "SILENCE_S", 0.2)
    views: list[View] = []
    with open_store(login(guarded)) as store, open_store(login(guarded)) as second:

        def deliver(view: View) -> None:
            if not views:
                store._token._value = "forgotten.1"
            views.append(view)

        store.watch(folder, deliver=deliver, lost=pytest.fail)
        wait_until(lambda: views, "the first view")
        put(second, folder + "a", "1")
        wait_until(lambda: value_in(views[-1], folder + "a") == "1", "the watch hears again")


# --- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA with a server's and a client's certificate, and a stranger's CA."""
    if shutil.which("openssl") is None:
        missing_service("openssl")
    home = tmp_path_factory.mktemp("tls")
    for ca in ("ca", "stranger"):
        _openssl(
            f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
            f" -subj /CN={ca} -keyout {ca}.key -out {ca}.pem",
            home,
        )
    (home / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    for name in ("server", "client"):
        _openssl(
            f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name}"
            f" -keyout {name}.key -out {name}.csr",
            home,
        )
        _openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
            f" -extfile names -out {name}.pem",
            home,
        )
    return home


def _openssl(arguments: str, home: Path) -> None:
    subprocess.run(
        ["openssl", *arguments.split()], cwd=home, check=True, capture_output=True, timeout=20
    )


@pytest.fixture
def secure_server(certificates: Path, etcd_server: Server, tmp_path: Path) -> Iterator[Server]:
    options = [
        f"--cert-file={certificates}/server.pem",
        f"--key-file={certificates}/server.key",
        f"--trusted-ca-file={certificates}/ca.pem",
        "--client-cert-auth",
    ]
    server = Server(etcd_server.binary, tmp_path, options=options, scheme="https")
    server.start()
    yield server
    server.end()


def test_a_client_with_a_certificate_is_served_over_tls(
    secure_server: Server, certificates: Path, folder: str
) -> None:
    settings = replace(
        secure_server.settings,
        ca=certificates / "ca.pem",
        cert=certificates / "client.pem",
        key=certificates / "client.key",
    )
    with open_store(settings) as store:
        told = Told().follow(store, folder)
        put(store, folder + "a", "1")
        told.await_value(folder + "a", "1")


@pytest.mark.parametrize("how", ["a stranger's CA", "no certificate", "no TLS"])
def test_who_does_not_speak_tls_rightly_hears_what_to_check(
    secure_server: Server, certificates: Path, how: str
) -> None:
    own = {"cert": certificates / "client.pem", "key": certificates / "client.key"}
    wrong: dict[str, dict[str, Any]] = {
        "a stranger's CA": {"ca": certificates / "stranger.pem", **own},
        "no certificate": {"ca": certificates / "ca.pem"},
        "no TLS": {},
    }
    settings = replace(secure_server.settings, **wrong[how])
    with time_limit(3.0), pytest.raises(StoreError) as caught:
        connect(settings, timeout_s=1.0)
    assert str(secure_server.endpoint) in caught.value.message
    assert "--etcd-c" in caught.value.hint


# --- the process around it ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes_started_while_calls_run_all_live(
    etcd_server: Server, store: EtcdStore, folder: str
) -> None:
    told = Told().follow(store, folder)
    ended = threading.Event()

    def write() -> None:
        while not ended.is_set():
            put(store, folder + "a", "1")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        codes = [_run_true(with_fork=number % 2 == 0) for number in range(100)]
    finally:
        ended.set()
        for writer in writers:
            writer.join(TIMEOUT_S)
    assert codes == [0] * 100
    put(store, folder + "a", "after")
    told.await_value(folder + "a", "after")


def _run_true(*, with_fork: bool) -> int:
    # A preexec_fn makes subprocess fork with Python in between: what grpc used to break.
    arguments = {"preexec_fn": os.getpid} if with_fork else {}
    process = subprocess.Popen(["true"], process_group=0, **arguments)  # type: ignore[call-overload]
    return int(process.wait(TIMEOUT_S))


def test_a_closed_store_leaves_no_thread(etcd_server: Server, folder: str) -> None:
    before = set(threading.enumerate())
    with open_store(etcd_server.settings) as store:
        for _ in range(3):
            Told().follow(store, folder)
    wait_until(lambda: set(threading.enumerate()) <= before, "all threads end")


def test_the_own_address_is_the_end_of_the_road_to_etcd(etcd_server: Server) -> None:
    assert own_address_towards([etcd_server.endpoint]) == "127.0.0.1"
    assert is_own_address("localhost")
    assert is_own_address(socket.gethostname())
    # Reserved for documentation: nobody's.
    assert not is_own_address("203.0.113.7")
    assert not is_own_address("no-such-host.invalid")
