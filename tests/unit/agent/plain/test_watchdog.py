"""Promises of workers, as torch's own client writes them."""

from torch.distributed.elastic.timer.file_based_local_timer import FileTimerRequest

from easyscale.agent.plain.watchdog import Timers


def line(pid: int, scope: str, expires_s: float, number: int = 9) -> bytes:
    return FileTimerRequest(pid, scope, expires_s, number).to_json().encode()


def test_a_promise_that_is_not_kept_is_told_once() -> None:
    timers = Timers()
    timers.take(line(7, "step", 100.0))
    timers.take(line(7, "save", 500.0))
    timers.take(line(8, "step", 300.0, 15))
    assert timers.expired(99.9) == []
    assert timers.expired(100.0) == [(7, "step", 9)]
    assert timers.expired(400.0) == [(8, "step", 15)]
    assert timers.expired(1e9) == []


def test_a_promise_may_be_taken_back_or_made_anew() -> None:
    timers = Timers()
    timers.take(line(7, "step", 100.0))
    timers.take(line(7, "step", -1.0))
    timers.take(line(8, "step", 100.0))
    timers.take(line(8, "step", 200.0))
    assert timers.expired(150.0) == []
    assert timers.expired(200.0) == [(8, "step", 9)]


def test_nonsense_is_passed_over() -> None:
    timers = Timers()
    for nonsense in (b"", b"{", b"[]", b"{}", b'{"pid": "x", "scope_id": 1}', b"\xff"):
        timers.take(nonsense)
    assert timers.expired(1e12) == []
