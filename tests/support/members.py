"""Members of a generation as threads of this process, each with its own listener and group.

gloo does not mind, a member costs no import of torch, and a failing one is reported with its rank.
"""

import gc
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from easyscale.errors import EasyScaleError
from easyscale.model import Commit, GenerationNumber, LogicalRank, Member, Mode, WorkerId
from easyscale.runtime.group import Group, Membership, Wait, form
from easyscale.runtime.listener import Answers, Listener

T = TypeVar("T")

TOKEN = "token-of-this-test"
#: Bounds every wait of a test; nothing comes near it unless it hangs.
WAIT = Wait(timeout_s=20.0)
FIRST = GenerationNumber(1, 1)


def worker(rank: int) -> WorkerId:
    return WorkerId(f"node-{rank}", "0", "cpu:0", 0)


def quiet() -> Answers:
    return Answers(know=lambda: "{}", state=lambda _: None, heard=lambda _: None)


def listen(rank: int, answers: Answers | None = None) -> Listener:
    return Listener(host="127.0.0.1", token=TOKEN, worker=worker(rank), answers=answers or quiet())


def commit(
    addresses: Sequence[str],
    *,
    generation: GenerationNumber = FIRST,
    shares: Sequence[Sequence[int]] | None = None,
    ranks: Sequence[int] | None = None,
) -> Commit:
    """Make a commit record; `ranks` say which workers its members are."""
    shares = shares or [()] * len(addresses)
    ranks = ranks or range(len(addresses))
    members = tuple(
        Member(worker(rank), address, tuple(LogicalRank(one) for one in share))
        for rank, address, share in zip(ranks, addresses, shares, strict=True)
    )
    return Commit(
        generation=generation,
        mode=Mode.RESTORE,
        members=members,
        main=worker(0),
        reason="a test",
    )


@dataclass
class Attempt(Generic[T]):
    result: T | None = None
    error: BaseException | None = None


def run_members(size: int, body: Callable[[Group], T]) -> list[T]:
    """Form a group of `size` threads, run `body` in each, and return what they returned."""
    return [_settled(member) for member in attempt_members(size, body)]


def attempt_members(size: int, body: Callable[[Group], T]) -> list[Attempt[T]]:
    """Like `run_members`, errors kept."""
    listeners = [listen(rank) for rank in range(size)]
    record = commit([listener.address for listener in listeners])
    members: list[Attempt[T]] = [Attempt() for _ in range(size)]
    groups: list[Group] = []

    def run(rank: int) -> None:
        try:
            group = form(
                Membership(record, worker(rank), TOKEN), listener=listeners[rank], wait=WAIT
            )
            groups.append(group)
            members[rank].result = body(group)
        except BaseException as error:  # noqa: BLE001  raised again in the test's thread
            members[rank].error = error

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"member-{rank}") for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leave(groups, listeners)
    return members


def leave(groups: Sequence[Group], listeners: Sequence[Listener]) -> None:
    """End groups that all members are done with: one that leaves early breaks the others."""
    for group in groups:
        group.close()
    for listener in listeners:
        listener.close()
    for thread in threading.enumerate():
        if thread.name.startswith(("exchange ", "forming", "listener", "probe")):
            thread.join(timeout=10.0)
    # Errors refer to frames that refer to them: what these hold ends here, not at some later time.
    gc.collect()


def _settled(member: Attempt[T]) -> T:
    if member.error is not None:
        if isinstance(member.error, EasyScaleError):
            raise member.error
        raise RuntimeError("a member failed") from member.error
    assert member.result is not None
    return member.result
