"""How a job without logical workers looks: ranks of processes, restarts, and no word of steps."""

import pytest

from easyscale.agent.plain import actions, events
from easyscale.agent.plain.values import Outcome, Sight
from easyscale.agent.plain.verdict import first_cause, summary
from easyscale.reports import JobEvent
from easyscale_cli.views import plain
from easyscale_cli.views.closing import first_cause_lines, summary_lines
from easyscale_cli.views.glyphs import ASCII, UNICODE
from easyscale_cli.views.launch import Page, event_lines
from easyscale_cli.views.style import Line
from tests.support.plain import Agent, fault, offer, round_of, settings, terms
from tests.unit.views.conftest import CompareScreen

CAUSE = fault(
    3,
    node="b",
    headline="ValueError: target 11 is out of bounds for 10 classes",
    file="train.py",
    line=41,
    function="check",
    caller="train.py:23",
    excerpt=((40, "    if y.max() >= CLASSES:"), (41, "        raise ValueError(target)")),
    hidden_frames=2,
    log="runs/job/logs/job_k2x/attempt_1/1/stderr.log",
)
FAILED = Outcome(
    exit_code=1,
    reason="1 of 1 restarts are spent",
    fault=CAUSE,
    restarts=1,
    victims=2,
    also_failed=1,
)


def stream(page: Page) -> list[Line]:
    """What an agent of two nodes says: it meets, starts, loses a node and starts again."""
    agent = Agent(settings(meets=True, min_nodes=1, max_nodes=2))
    both = (offer("a"), offer("b"))
    told: list[JobEvent] = []

    def feed(event: events.PlainEvent) -> None:
        told.extend(a.event for a in agent.feed(event) if isinstance(a, actions.Announce))

    feed(events.Met(store="etcd-0:2379", seconds=0.04, address="a"))
    first = round_of(Sight(offers=both), terms(1, 2))
    feed(events.Seen(sight=Sight(offers=both, round=first), leads=False))
    alone = (offer("a"),)
    lost = round_of(Sight(offers=alone, round=first), terms(1, 2))
    feed(events.Seen(sight=Sight(offers=alone, round=lost), leads=False))
    return [row for event in told for row in event_lines(event, page)]


@pytest.mark.parametrize("cells", [60, 80, 120])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_the_screens_of_a_plain_job(
    compare_screen: CompareScreen, cells: int, glyphs: object
) -> None:
    is_ascii = glyphs is ASCII
    page = Page(cells, ASCII if is_ascii else UNICODE)
    compare_screen("plain-stream", stream(page), cells=cells, is_ascii=is_ascii)
    box = first_cause_lines(first_cause(settings(), FAILED, round_number=2), page)
    compare_screen("plain-first-cause", box, cells=cells, is_ascii=is_ascii)
    done = summary(
        settings(),
        Outcome(exit_code=0, reason="", restarts=1),
        elapsed_s=75.0,
        rounds=2,
        log_dir="runs/job/logs/job_k2x",
    )
    compare_screen("plain-summary", summary_lines(done, page), cells=cells, is_ascii=is_ascii)


def test_a_pipe_is_told_of_no_steps_that_nobody_counts() -> None:
    done = summary(settings(), Outcome(exit_code=0, reason=""), elapsed_s=2.0, rounds=1, log_dir="")
    line = plain.summary_line("2026-10-04T14:00:00.000Z", done, None)
    assert "exit_code=0" in line
    assert "step" not in line
    assert "paused" not in line
