"""When a wait asks the others whether they are still there."""

import pytest

from easyscale.errors import GenerationBroken
from easyscale.runtime import neighbours
from easyscale.runtime.group import Membership, Probe
from easyscale.runtime.neighbours import Patience
from tests.support.views import commit, worker


class Session:
    """One that has heard of nothing."""

    lost = frozenset[object]()


@pytest.mark.parametrize(("first_ask_s", "asked_at"), ((None, [2.5, 5.0]), (0.2, [0.2, 2.7, 5.2])))
def test_the_first_round_of_asking_may_come_early(
    monkeypatch: pytest.MonkeyPatch, first_ask_s: float | None, asked_at: list[float]
) -> None:
    now = [0.0]
    asked: list[float] = []

    def ask(*_: object, **__: object) -> tuple[Probe, dict[int, object]]:
        asked.append(round(now[0], 3))
        return Probe({}, (), (1,)), {}

    monkeypatch.setattr("easyscale.runtime.neighbours.time.monotonic", lambda: now[0])
    monkeypatch.setattr(neighbours, "ask_all", ask)
    patience = Patience(
        Membership(commit(1, [worker("a"), worker("b")]), worker("a"), "t"),
        Session(),  # type: ignore[arg-type]
        "forming",
        deadline_s=10.0,
        is_coming=lambda _: True,
        superseded=lambda: None,
        first_ask_s=first_ask_s,
    )
    for tick in range(1, 56):
        now[0] = tick / 10
        assert patience() is None
    assert asked == asked_at


def test_whoever_refuses_ends_the_wait_at_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "ask_all", lambda *_, **__: (Probe({}, (1,), ()), {}))
    patience = Patience(
        Membership(commit(1, [worker("a"), worker("b")]), worker("a"), "t"),
        Session(),  # type: ignore[arg-type]
        "forming",
        deadline_s=10.0,
        is_coming=lambda _: True,
        superseded=lambda: None,
        first_ask_s=0.0,
    )
    with pytest.raises(GenerationBroken, match="nobody answers there") as broken:
        patience()
    assert broken.value.suspects == (1,)
