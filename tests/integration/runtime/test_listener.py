"""Claims about a worker's listener: who is answered, what is limited, what a stream promises."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from easyscale.errors import GenerationBroken
from easyscale.model import GenerationNumber, WorkerId, encode
from easyscale.runtime.channel import (
    HERE,
    MAX_FRAME_BYTES,
    Hello,
    Kind,
    Refused,
    RemoteKeys,
    StateIncomplete,
    Wire,
    ask,
    dial,
    fetch_state,
    join_address,
    split_address,
)
from easyscale.runtime.entering import StateShelf
from easyscale.runtime.listener import Answers, Listener
from tests.support import members
from tests.support.callers import hear_out

HEARD: list[str] = []


@pytest.fixture
def listener() -> Iterator[Listener]:
    HEARD.clear()

    def state(request: str) -> Iterator[bytes] | None:
        if request == "all":
            return iter((b"a" * 10, b"", b"b" * (MAX_FRAME_BYTES + 5)))
        if request == "breaks":
            return breaking()
        return None

    def breaking() -> Iterator[bytes]:
        yield b"half"
        raise OSError("the source died")

    answers = Answers(know=lambda: json.dumps({"position": 7}), state=state, heard=HEARD.append)
    opened = members.listen(0, answers)
    yield opened
    opened.close()


def question(listener: Listener, *, token: str = members.TOKEN, commit: str = "") -> str:
    return ask(
        listener.address, token=token, worker=members.worker(1), timeout_s=5.0, commit=commit
    )


def fetch(listener: Listener, request: str) -> Iterator[bytearray]:
    return fetch_state(
        listener.address,
        token=members.TOKEN,
        worker=members.worker(1),
        request=request,
        timeout_s=5.0,
    )


def keys(listener: Listener, *, process: str = "p", worker: WorkerId | None = None) -> RemoteKeys:
    hello = Hello(
        token=members.TOKEN,
        worker=worker or members.worker(1),
        kind=Kind.STORE,
        process=process,
        generation=members.FIRST,
    )
    return RemoteKeys(lambda: dial(listener.address, hello, timeout_s=5.0), timeout_s=5.0)


def test_whoever_knows_the_token_is_answered(listener: Listener) -> None:
    assert json.loads(question(listener)) == {"position": 7}


def test_a_wrong_token_is_closed_unanswered_and_its_commit_unheard(listener: Listener) -> None:
    with pytest.raises(Refused):
        question(listener, token="guess", commit='{"generation": [9, 9]}')
    assert HEARD == []


def test_a_commit_told_in_a_hello_is_heard(listener: Listener) -> None:
    question(listener, commit='{"generation": [9, 9]}')
    assert HEARD == ['{"generation": [9, 9]}']


@pytest.mark.parametrize(
    "garbage",
    (b"\n", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"\xff\xfe\n", b'{"version": 99}\n', b"[" * 9999),
)
def test_garbage_ends_its_own_connection_only(listener: Listener, garbage: bytes) -> None:
    with socket.create_connection(split_address(listener.address)) as connection:
        assert hear_out(connection, garbage) == b""
    assert question(listener)


def test_a_frame_above_the_limit_is_not_read(listener: Listener) -> None:
    hello = Hello(
        token=members.TOKEN,
        worker=members.worker(1),
        kind=Kind.STORE,
        generation=members.FIRST,
    )
    with socket.create_connection(split_address(listener.address)) as connection:
        connection.sendall(encode(hello).encode() + b"\n" + (MAX_FRAME_BYTES + 1).to_bytes(4))
        assert hear_out(connection) == b""


def test_keys_are_set_waited_for_counted_checked_and_deleted(listener: Listener) -> None:
    remote = keys(listener)
    local = listener.keys(members.FIRST)
    waited = threading.Thread(target=lambda: remote.wait(["a", "b"], timeout_s=5.0))
    waited.start()
    local.set("a", b"1")
    local.set("b", b"\0\n\xff")
    waited.join()
    assert remote.get("b", timeout_s=0.0) == b"\0\n\xff"
    assert (remote.add("n", 2), remote.add("n", 3), local.add("n", -1)) == (2, 5, 4)
    assert (remote.check(["a", "b"]), remote.check(["a", "c"])) == (True, False)
    assert (remote.delete("a"), remote.delete("a")) == (True, False)
    with pytest.raises(TimeoutError, match="nobody set"):
        remote.get("a", timeout_s=0.01)
    remote.close()


def test_each_generation_has_keys_of_its_own_and_old_ones_are_given_up(
    listener: Listener,
) -> None:
    first = listener.keys(members.FIRST)
    first.set("a", b"1")
    assert not listener.keys(GenerationNumber(1, 2)).check(["a"])
    for number in range(2, 20):
        listener.keys(GenerationNumber(1, number))
    with pytest.raises(TimeoutError):
        first.wait(["never"], timeout_s=60.0)
    assert not listener.keys(members.FIRST).check(["a"])


def test_a_second_process_that_claims_a_worker_id_is_refused(listener: Listener) -> None:
    remote = keys(listener, process="one")
    remote.set("a", b"1")
    twin = keys(listener, process="two")
    with pytest.raises(OSError, match=r"closed|reset|pipe"):
        twin.get("a", timeout_s=1.0)
    other = keys(listener, process="two", worker=members.worker(2))
    assert other.get("a", timeout_s=1.0) == b"1"
    for one in (remote, twin, other):
        one.close()


def test_a_state_stream_arrives_whole(listener: Listener) -> None:
    received = b"".join(fetch(listener, "all"))
    assert received == b"a" * 10 + b"b" * (MAX_FRAME_BYTES + 5)


@pytest.mark.parametrize("request_text", ("breaks", "none"))
def test_a_state_stream_that_ends_early_is_an_error(listener: Listener, request_text: str) -> None:
    with pytest.raises(StateIncomplete):
        list(fetch(listener, request_text))


def test_a_state_stream_with_another_digest_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = join_address(*server.getsockname()[:2])

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                frames = (HERE, b"data", b"", b"\0" * 32)
                connection.sendall(b"".join(len(one).to_bytes(4) + one for one in frames))
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(StateIncomplete, match="digest"):
            list(
                fetch_state(address, token="", worker=members.worker(0), request="", timeout_s=5.0)
            )
        thread.join()


def made_slowly(seconds: float) -> Iterator[bytes]:
    time.sleep(seconds)
    yield b"state"


def fetch_slow(
    state: Callable[[str], Iterator[bytes | None]], *, silence_s: float = 1.0
) -> tuple[bytes, float]:
    """Fetch from a listener of its own; returns what came and how long that took."""
    answers = Answers(know=lambda: "{}", state=state, heard=lambda _: None)
    opened = members.listen(0, answers)
    began_s = time.monotonic()
    try:
        chunks = fetch_state(
            opened.address,
            token=members.TOKEN,
            worker=members.worker(1),
            request="g",
            timeout_s=silence_s,
            interrupt=lambda: None,
        )
        return b"".join(chunks), time.monotonic() - began_s
    finally:
        opened.close()


def test_a_state_that_takes_longer_to_make_than_a_joiner_stands_silence_arrives() -> None:
    shelf = StateShelf(timeout_s=1.0)
    threading.Thread(target=shelf.put, args=("g", made_slowly(2.5)), daemon=True).start()
    came, seconds = fetch_slow(shelf.get)
    assert came == b"state"
    assert seconds > 1.5


def test_one_that_is_made_without_a_sign_does_not() -> None:
    with pytest.raises(StateIncomplete, match="timed out"):
        fetch_slow(lambda _: made_slowly(2.5))


def test_a_state_that_nobody_begins_to_make_is_refused_in_time() -> None:
    with pytest.raises(StateIncomplete, match="closed the connection"):
        fetch_slow(StateShelf(timeout_s=0.2).get, silence_s=5.0)


@pytest.mark.parametrize("is_over", (False, True))
def test_a_state_whose_making_fails_is_refused_at_once(*, is_over: bool) -> None:
    asked = threading.Event()

    def failing() -> Iterator[bytes]:
        assert is_over or asked.wait(20.0)
        yield b"half"
        raise GenerationBroken("no boundary to serve")

    def make() -> None:
        with pytest.raises(GenerationBroken, match="no boundary"):
            shelf.put("g", failing())

    def get(request: str) -> Iterator[bytes | None]:
        for chunk in shelf.get(request):
            asked.set()
            yield chunk

    shelf = StateShelf(timeout_s=60.0)
    thread = threading.Thread(target=make)
    thread.start()
    if is_over:
        thread.join()
    with pytest.raises(StateIncomplete, match="closed the connection"):
        fetch_slow(get, silence_s=20.0)
    thread.join()


def test_reading_a_silent_peer_ends_by_the_interrupt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = join_address(*server.getsockname()[:2])
        with pytest.raises(GenerationBroken, match="a newer commit came"):
            list(
                fetch_state(
                    address,
                    token="",
                    worker=members.worker(0),
                    request="",
                    timeout_s=60.0,
                    interrupt=lambda: "a newer commit came",
                )
            )


def test_closing_frees_everybody_who_waits(listener: Listener) -> None:
    remote = keys(listener)
    found: list[BaseException] = []

    def wait() -> None:
        try:
            remote.wait(["never"], timeout_s=60.0)
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    listener.close()
    thread.join()
    remote.close()
    assert len(found) == 1


@pytest.mark.parametrize(("host", "text"), (("10.0.0.1", "10.0.0.1:5"), ("fe80::1", "[fe80::1]:5")))
def test_addresses_of_both_families_are_written_and_read(host: str, text: str) -> None:
    assert join_address(host, 5) == text
    assert split_address(text) == (host, 5)


class ClosedUnderway(socket.socket):
    """Its wire is closed by another thread just before it waits for bytes."""

    wire: Wire
    descriptors: list[int]

    def recv_into(self, *given: Any, **named: Any) -> int:  # noqa: ANN401 - as the socket's own
        self.wire.close()
        self.descriptors.append(self.fileno())
        return super().recv_into(*given, **named)


def test_a_descriptor_is_kept_while_a_thread_is_on_its_way_into_a_wait() -> None:
    """Its number could be another socket's by then, which would be waited on for ever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    connection = ClosedUnderway(fileno=near.detach())
    connection.descriptors = []
    connection.wire = wire = Wire(connection)
    with pytest.raises(Refused):
        wire.receive(timeout_s=5.0)
    assert connection.descriptors[0] >= 0
    assert connection.fileno() == -1
    with pytest.raises(ConnectionError, match="closed on this side"):
        wire.send(b"more", timeout_s=5.0)
    far.close()
