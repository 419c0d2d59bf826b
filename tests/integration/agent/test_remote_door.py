"""The remote door tells those who know the job's token, and costs others little of its time."""

import contextlib
import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from easyscale.agent.doors import remote_door
from easyscale.agent.doors.dialogue import MAX_QUESTION_BYTES, AgentRefused, AgentSilent
from easyscale.agent.doors.remote_door import RemoteDoor, ask_at
from easyscale.errors import ExitCode, TooFewNodes
from tests.support.callers import hear_out

TOKEN = "5f3c" * 8


def tell(arguments: Mapping[str, Any]) -> object:
    return {"state": "running", "asked": arguments}


def refuse(arguments: Mapping[str, Any]) -> object:
    raise TooFewNodes("1 of 2 nodes came", hint="start another")


@pytest.fixture
def door() -> Iterator[RemoteDoor]:
    made = RemoteDoor("127.0.0.1")
    made.open(token=lambda: TOKEN, handlers={"status": tell, "drain": refuse})
    yield made
    made.close()


def stranger(door: RemoteDoor) -> socket.socket:
    """A caller that has connected and read the greeting, and speaks for itself from there."""
    host, _, port = door.address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=10)
    assert b'"challenge"' in connection.recv(4096)
    return connection


def test_who_knows_the_token_is_answered(door: RemoteDoor) -> None:
    answer = ask_at(door.address, TOKEN, "status", {"rank": 3}, timeout_s=5)
    assert answer == {"state": "running", "asked": {"rank": 3}}


def test_an_error_of_the_agent_arrives_with_its_words_and_code(door: RemoteDoor) -> None:
    with pytest.raises(AgentRefused) as refused:
        ask_at(door.address, TOKEN, "drain", timeout_s=5)
    assert (refused.value.message, refused.value.exit_code) == (
        "1 of 2 nodes came",
        ExitCode.TOO_FEW_NODES,
    )
    with pytest.raises(AgentRefused, match="no request 'sing'; there are drain, status"):
        ask_at(door.address, TOKEN, "sing", timeout_s=5)


def test_who_knows_only_a_former_token_is_answered_no_more() -> None:
    """A job that strangers took over has another token from then on, and this agent goes on."""
    tokens = [TOKEN]
    made = RemoteDoor("127.0.0.1")
    made.open(token=lambda: tokens[-1], handlers={"status": lambda _: "fine"})
    try:
        assert ask_at(made.address, TOKEN, "status", timeout_s=5) == "fine"
        tokens.append("another")
        assert ask_at(made.address, "another", "status", timeout_s=5) == "fine"
        with pytest.raises(AgentSilent):
            ask_at(made.address, TOKEN, "status", timeout_s=5)
        tokens.append("")
        with pytest.raises(AgentSilent):
            ask_at(made.address, "", "status", timeout_s=5)
    finally:
        made.close()


@pytest.mark.parametrize("token", ["", "x", TOKEN.upper(), TOKEN[:-1]])
def test_a_wrong_token_is_refused_without_a_word(door: RemoteDoor, token: str) -> None:
    asked: list[object] = []
    door._handlers = {"status": asked.append}
    with pytest.raises(AgentSilent, match="refused: it serves another job"):
        ask_at(door.address, token, "status", timeout_s=5)
    assert asked == []


def test_a_proof_holds_for_its_own_connection_and_question_only(door: RemoteDoor) -> None:
    """Who has listened to a conversation cannot have another one, nor change its question."""
    nonce, asked = "00" * 16, json.dumps({"request": "status", "arguments": {}}).encode()

    def proof(challenge: str, body: bytes) -> str:
        text = b"\0".join((b"ask", challenge.encode(), nonce.encode(), body))
        return hmac.new(TOKEN.encode(), text, hashlib.sha256).hexdigest()

    def says(head_proof: str, body: bytes, connection: socket.socket) -> bytes:
        head = json.dumps({"version": 1, "nonce": nonce, "proof": head_proof}).encode()
        connection.sendall(head + b"\n" + body + b"\n")
        return hear_out(connection)

    host, _, port = door.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as first:
        challenge = json.loads(first.recv(4096))["challenge"]
        heard = proof(challenge, asked)
        assert b'"running"' in says(heard, asked, first)
    with stranger(door) as again:
        assert says(heard, asked, again) == b""
    with socket.create_connection((host, int(port)), timeout=10) as other:
        challenge = json.loads(other.recv(4096))["challenge"]
        assert says(proof(challenge, asked), asked.replace(b"status", b"drain "), other) == b""


@pytest.mark.parametrize(
    "bytes_", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"{}\n{}\n", b"\x80\x04\x95.\n", b"null\nnull\n"]
)
def test_who_speaks_another_language_is_not_answered(door: RemoteDoor, bytes_: bytes) -> None:
    with stranger(door) as connection:
        assert hear_out(connection, bytes_) == b""
    assert ask_at(door.address, TOKEN, "status", timeout_s=5)


def test_a_slow_caller_is_cut_off_however_it_dribbles(
    door: RemoteDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_door, "_HELLO_S", 0.5)
    with stranger(door) as silent, stranger(door) as dribbling:
        began_s = time.monotonic()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while time.monotonic() - began_s < 10:
                dribbling.sendall(b" ")
                time.sleep(0.05)
        assert hear_out(silent) == b""
        assert time.monotonic() - began_s < 5


def test_a_message_that_is_too_long_is_cut_off(door: RemoteDoor) -> None:
    for sent in (b"x" * 100_000, b'{"version":1,"nonce":"","proof":""}\n' + b"x" * 1_000_000):
        with stranger(door) as connection:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(sent)
            assert hear_out(connection) == b""
    long = {"word": "x" * (MAX_QUESTION_BYTES + 1)}
    with pytest.raises(AgentSilent):
        ask_at(door.address, TOKEN, "status", long, timeout_s=5)


def test_an_answer_that_is_too_long_is_an_error_in_words(door: RemoteDoor) -> None:
    door._handlers = {"status": lambda _: "x" * (9 << 20)}
    with pytest.raises(AgentRefused, match="the limit is 8388608"):
        ask_at(door.address, TOKEN, "status", timeout_s=10)


def test_who_poses_as_an_agent_is_not_believed() -> None:
    """It cannot prove its answer, and learns nothing that it could prove one with."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pose() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"version":1,"challenge":"00"}\n')
                heard = b""
                while heard.count(b"\n") < 2:
                    heard += connection.recv(65536)
                assert TOKEN.encode() not in heard
                connection.sendall(b'{"proof":"' + b"0" * 64 + b'"}\n{"answer":{}}\n')

        thread = threading.Thread(target=pose)
        thread.start()
        port = listener.getsockname()[1]
        with pytest.raises(AgentSilent, match="does not know the job's token"):
            ask_at(f"127.0.0.1:{port}", TOKEN, "status", timeout_s=5)
        thread.join()


def test_an_agent_of_another_version_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b'{"version":9,"challenge":"00"}\n')

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(AgentSilent, match="speaks version 9, this is 1"):
            ask_at(f"127.0.0.1:{listener.getsockname()[1]}", TOKEN, "status", timeout_s=5)
        thread.join()


def test_nobody_there_and_nobody_who_speaks_are_told_apart_from_an_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(AgentSilent, match=r"did not answer within 0\.2 s"):
            ask_at(address, TOKEN, "status", timeout_s=0.2)
    with pytest.raises(AgentSilent, match="refused"):
        ask_at(address, TOKEN, "status", timeout_s=5)


def test_a_door_that_was_never_opened_closes() -> None:
    door = RemoteDoor("127.0.0.1")
    door.close()
    with pytest.raises(AgentSilent):
        ask_at(door.address, TOKEN, "status", timeout_s=1)


def test_many_strangers_do_not_keep_the_door_shut(
    door: RemoteDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_door, "_HELLO_S", 0.5)
    crowd = [stranger(door) for _ in range(remote_door._MOST_AT_ONCE)]
    with pytest.raises(AgentSilent):
        ask_at(door.address, TOKEN, "status", timeout_s=5)
    deadline_s = time.monotonic() + 10
    answer = None
    while answer is None and time.monotonic() < deadline_s:
        try:
            answer = ask_at(door.address, TOKEN, "status", timeout_s=5)
        except AgentSilent:
            time.sleep(0.1)
    assert answer is not None
    for connection in crowd:
        connection.close()
