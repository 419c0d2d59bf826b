"""The command line finds this machine's agents and is answered, refused or told of silence."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from easyscale.agent.doors import control
from easyscale.agent.doors.control import ControlServer, ask, local_agents, run_folder
from easyscale.agent.doors.dialogue import AgentRefused, AgentSilent
from easyscale.errors import ExitCode, TooFewNodes, UsageError


@pytest.fixture
def folder() -> Path:
    return run_folder(os.environ)


def status(arguments: Mapping[str, Any]) -> object:
    return {"state": "running", "asked": arguments}


def refuse(arguments: Mapping[str, Any]) -> object:
    raise TooFewNodes("1 of 2 nodes came", hint="start another")


@pytest.fixture
def server(folder: Path) -> Iterator[ControlServer]:
    handlers = {"status": status, "drain": refuse}
    made = ControlServer(folder, job="resnet50", node="a", handlers=handlers)
    yield made
    made.close()


def test_a_request_is_answered(server: ControlServer) -> None:
    answer = ask(server.path, "status", {"story": True}, timeout_s=5)
    assert answer == {"state": "running", "asked": {"story": True}}


def test_an_error_of_the_agent_arrives_with_its_words_and_code(server: ControlServer) -> None:
    with pytest.raises(AgentRefused) as refused:
        ask(server.path, "drain", timeout_s=5)
    error = refused.value
    assert (error.message, error.hint) == ("1 of 2 nodes came", "start another")
    assert (error.code, error.exit_code) == ("too_few_nodes", ExitCode.TOO_FEW_NODES)


def test_an_unknown_request_names_those_that_there_are(server: ControlServer) -> None:
    with pytest.raises(AgentRefused, match="no request 'sing'; there are drain, status, who"):
        ask(server.path, "sing", timeout_s=5)


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"null\n", b"{}\n", b'"who"\n'])
def test_what_is_no_request_is_answered_so(server: ControlServer, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(server.path))
        connection.sendall(line)
        assert b"the request is not understood" in connection.recv(65536)
    assert ask(server.path, "status", timeout_s=5)


def test_the_jobs_of_this_machine_are_found(server: ControlServer, folder: Path) -> None:
    second = ControlServer(folder, job="x" * 64, node="b" * 64, handlers={})
    try:
        found = {(agent.job, agent.node, agent.pid) for agent in local_agents(folder)}
        assert found == {("resnet50", "a", os.getpid()), ("x" * 64, "b" * 64, os.getpid())}
    finally:
        second.close()
    assert [agent.job for agent in local_agents(folder)] == ["resnet50"]


def test_the_socket_of_a_killed_agent_is_removed(folder: Path) -> None:
    text = (
        "import os\nfrom easyscale.agent.doors.control import *\n"
        "s = ControlServer(run_folder(os.environ), job='j', node='n', handlers={})\n"
        "print(s.path, flush=True)\nos.kill(os.getpid(), 9)"
    )
    ended = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=False)
    left = Path(ended.stdout.decode().strip())
    assert left.is_socket()
    with pytest.raises(AgentSilent):
        ask(left, "who", timeout_s=5)
    assert local_agents(folder) == ()
    assert not left.exists()


def test_an_agent_that_is_busy_is_silent_and_keeps_its_socket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_DISCOVERY_S", 0.2)
    stop = threading.Event()
    server = ControlServer(folder, job="j", node="n", handlers={"who": lambda _: stop.wait(10)})
    try:
        started = time.monotonic()
        with pytest.raises(AgentSilent, match=r"did not answer within 0\.1 s"):
            ask(server.path, "who", timeout_s=0.1)
        assert local_agents(folder) == ()
        assert time.monotonic() - started < 2
        assert server.path.exists()
    finally:
        stop.set()
        server.close()


def test_an_agent_that_ends_leaves_no_socket(folder: Path) -> None:
    server = ControlServer(folder, job="j", node="n", handlers={})
    server.close()
    assert list(folder.iterdir()) == []


def test_many_ask_at_once(server: ControlServer) -> None:
    answers: list[object] = []
    threads = [
        threading.Thread(
            target=lambda n: answers.append(ask(server.path, "status", {"n": n}, timeout_s=10)),
            args=(number,),
        )
        for number in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer["asked"]["n"] for answer in answers) == list(range(10))  # type: ignore[index]


def test_the_folder_is_private_and_found_without_a_runtime_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert folder == Path(os.environ["XDG_RUNTIME_DIR"]) / "easyscale"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert run_folder({}) == Path(os.environ["TMPDIR"]) / f"easyscale-{os.getuid()}"
    long = tmp_path / ("long" * 30)
    long.mkdir()
    assert run_folder({"XDG_RUNTIME_DIR": str(long)}) == run_folder({})
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with pytest.raises(UsageError, match="holds 107 bytes"):
        run_folder({})


def test_a_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    folder.chmod(0o755)
    with pytest.raises(UsageError, match="is not a folder of this user alone"):
        run_folder(os.environ)
    folder.rmdir()
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")
    with pytest.raises(UsageError, match="is not a folder of this user alone"):
        run_folder(os.environ)


def test_another_users_process_is_not_answered(
    server: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_CREDENTIALS", _Stranger())
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect(str(server.path))
        assert connection.recv(1) == b""
    with pytest.raises(AgentSilent, match="belongs to another user"):
        ask(server.path, "status", timeout_s=5)


class _Stranger:
    size = 12

    @staticmethod
    def unpack(data: bytes) -> tuple[int, int, int]:
        return (1, 999, 999)
