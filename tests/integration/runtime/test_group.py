"""Claims about forming a group: from the record alone, interruptible, suspects named."""

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed

from easyscale.errors import GenerationBroken
from easyscale.model import GenerationNumber
from easyscale.runtime import group as groups
from easyscale.runtime.group import Group, Membership, Wait, form
from easyscale.runtime.listener import Answers
from tests.support import members


@pytest.fixture
def _forgotten() -> Iterator[None]:
    """Let go of the abandoned groups of a test whose members have all given up."""
    yield
    groups._ABANDONED.clear()
    members.leave((), ())


def membership(addresses: list[str], rank: int, number: int = 1) -> Membership:
    record = members.commit(addresses, generation=GenerationNumber(1, number))
    return Membership(record, members.worker(rank), members.TOKEN)


@pytest.mark.parametrize("size", (1, 2, 4))
def test_members_meet_by_the_addresses_of_the_commit(size: int) -> None:
    def body(group: Group) -> tuple[int, int]:
        if size > 1:
            into = torch.zeros(size)
            group.transport.all_gather(into, torch.full((1,), float(group.rank)))
            assert into.tolist() == list(range(size))
        return group.rank, group.size

    assert members.run_members(size, body) == [(rank, size) for rank in range(size)]
    assert not torch.distributed.is_initialized()


def test_a_member_knows_who_answers_and_who_is_gone() -> None:
    known = [members.listen(rank) for rank in range(3)]
    addresses = [listener.address for listener in known]
    known[2].close()
    probe = Group(membership(addresses, 0), None).probe(timeout_s=5.0)
    assert probe.answers == {1: "{}"}
    assert probe.refused == (2,)
    assert probe.silent == ()
    for listener in known[:2]:
        listener.close()


def test_a_member_that_is_gone_is_suspected_at_once() -> None:
    first, second = members.listen(0), members.listen(1)
    addresses = [first.address, second.address]
    first.close()
    began = time.monotonic()
    with pytest.raises(GenerationBroken) as caught:
        form(membership(addresses, 1), listener=second, wait=members.WAIT)
    assert caught.value.suspects == (0,)
    assert time.monotonic() - began < 5.0
    second.close()


@pytest.mark.usefixtures("_forgotten")
def test_a_member_that_does_not_come_is_suspected_when_forming_takes_too_long() -> None:
    listeners = [members.listen(rank) for rank in range(3)]
    addresses = [listener.address for listener in listeners]
    errors: list[GenerationBroken] = []

    def run(rank: int) -> None:
        with pytest.raises(GenerationBroken) as caught:
            form(membership(addresses, rank), listener=listeners[rank], wait=Wait(timeout_s=0.5))
        errors.append(caught.value)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # It answers, so its listener lives; it is the one whose arrival is missing.
    assert {error.suspects for error in errors} <= {(2,), (0,)}
    assert (2,) in {error.suspects for error in errors}
    for listener in listeners:
        listener.close()


@pytest.mark.usefixtures("_forgotten")
def test_a_newer_commit_ends_forming_and_the_next_group_forms() -> None:
    listeners = [members.listen(rank) for rank in range(3)]
    addresses = [listener.address for listener in listeners]
    newer = threading.Event()
    reached: list[Group] = []

    def run(rank: int) -> None:
        wait = Wait(
            timeout_s=20.0,
            interrupt=lambda: "generation 1.2 was committed" if newer.is_set() else None,
        )
        with pytest.raises(GenerationBroken, match=r"1\.2 was committed"):
            form(membership(addresses, rank), listener=listeners[rank], wait=wait)
        group = form(
            membership(addresses[:2], rank, 2), listener=listeners[rank], wait=members.WAIT
        )
        reached.append(group)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    newer.set()
    for thread in threads:
        thread.join()
    assert sorted(group.rank for group in reached) == [0, 1]
    members.leave(reached, listeners)


def test_the_commit_travels_with_whoever_comes_to_form_it() -> None:
    heard: list[str] = []
    answers = Answers(know=lambda: "{}", state=lambda _: None, heard=heard.append)
    listeners = [members.listen(0, answers), members.listen(1)]
    addresses = [listener.address for listener in listeners]

    formed: list[Group] = []

    def run(rank: int) -> None:
        group = form(membership(addresses, rank), listener=listeners[rank], wait=members.WAIT)
        formed.append(group)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [json.loads(record)["generation"] for record in heard] == [[1, 1]]
    members.leave(formed, listeners)


FORMING = """
import socket
def refuse(*_, **__):
    raise AssertionError("a name was looked up")
socket.getfqdn = socket.gethostbyaddr = socket.getnameinfo = refuse
from tests.support import members
members.run_members(2, lambda group: group.size)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_forming_looks_no_name_up(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    tool = ["strace", "-f", "-qq", "-e", "trace=connect,openat", "-o", str(trace)]
    done = subprocess.run(
        [*tool, sys.executable, "-c", FORMING], capture_output=True, text=True, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("this machine forbids tracing")
    assert done.returncode == 0, done.stderr
    calls = trace.read_text()
    assert "sin_port" in calls
    assert "htons(53)" not in calls
    assert "/etc/resolv.conf" not in calls


LEFT_BEHIND = """
import gc, os
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo
from easyscale.runtime import group

gc.disable()
made = [ProcessGroupGloo(HashStore(), 0, 1)]
made.append(made)
del made
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0)
print(os.waitpid(child, 0)[1], gc.collect() > 0)
"""


def test_a_fork_does_not_collect_the_groups_that_its_parent_has_left() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "0 True\n", done.stderr
