"""What Prometheus is told: the names that the page documents, from a real text exposition."""

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from easyscale.agent.doors.metrics import FAMILIES, Kind, Seen
from easyscale.agent.doors.metrics_server import _Agent
from easyscale.job_status import JobStatus
from easyscale.model import JobState
from tests.unit.views import status_states as states

ROOT = Path(__file__).parents[3]
NAMES = {family.name for family in FAMILIES}
STATUS = states.two_by_four("█▇▆▅▄▃▂▁")


def seen(status: JobStatus = STATUS, *, node: str = "b") -> Seen:
    return Seen(status=status, node=node, version="0.1.0", leads=True, told={"lost": 2})


def exposed(what: Seen) -> dict[str, list[tuple[Mapping[str, str], float]]]:
    """Samples by name, from the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Agent(lambda: what))
    text = generate_latest(registry).decode()
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_a_job_is_told_in_numbers() -> None:
    told = exposed(seen())
    assert told["easyscale_step"] == [({"job_id": "resnet50"}, 6412.0)]
    assert told["easyscale_steps"] == [({"job_id": "resnet50"}, 10_000.0)]
    assert ({"job_id": "resnet50", "state": "running"}, 1.0) in told["easyscale_job_state"]
    assert sum(value for _, value in told["easyscale_job_state"]) == 1.0
    assert len(told["easyscale_job_state"]) == len(JobState)
    assert ({"job_id": "resnet50", "state": "in_use"}, 8.0) in told["easyscale_slots"]
    assert told["easyscale_metric"][0][0]["name"] == "loss"
    lost = ({"job_id": "resnet50", "node": "b", "event": "lost"}, 2.0)
    assert told["easyscale_events_total"] == [lost]


def test_each_agent_tells_of_the_slots_of_its_own_node() -> None:
    told = exposed(seen())["easyscale_slot_micro_step_seconds"]
    assert {labels["node"] for labels, _ in told} == {"b"}
    assert [(labels["slot"], value) for labels, value in told][1] == ("cuda:1", 0.131)


def test_every_family_is_exposed_once_its_fact_is_known() -> None:
    status = msgspec.structs.replace(
        STATUS, job=msgspec.structs.replace(STATUS.job, samples_per_s=1.0, left_s=1.0)
    )
    assert set(exposed(seen(status))) == NAMES


def test_what_is_unknown_is_absent_rather_than_zero() -> None:
    told = exposed(seen(states.SMALL_STATES["waiting"]))
    assert "easyscale_steps_per_second" not in told
    assert "easyscale_slot_micro_step_seconds" not in told
    assert told["easyscale_step"][0][1] == 0.0


@pytest.mark.parametrize("name", ["\x1b[2J\u202eodd", 'quo"te\\', "a\nb"])
def test_odd_names_stay_labels(name: str) -> None:
    slots = tuple(msgspec.structs.replace(slot, node=name) for slot in STATUS.slots)
    told = exposed(seen(msgspec.structs.replace(STATUS, slots=slots), node=name))
    assert {labels["node"] for labels, _ in told["easyscale_slot_ranks"]} == {name}


def test_counters_end_as_prometheus_counters_do() -> None:
    for family in FAMILIES:
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
        assert re.fullmatch(r"easyscale_[a-z_]+", family.name)
        assert family.help.endswith(".")


def test_the_page_documents_each_name_and_no_other() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    documented = set(re.findall(r"^\| `(easyscale_\w+)`", page, re.MULTILINE))
    assert documented == NAMES


BOARD = json.loads((ROOT / "examples" / "monitoring" / "grafana-board.json").read_text())


def expressions(value: object) -> list[str]:
    """Every query of the board, wherever it stands."""
    if isinstance(value, list):
        return [each for item in value for each in expressions(item)]
    if isinstance(value, dict):
        own = [text for key in ("expr", "query") if isinstance(text := value.get(key), str)]
        return own + [each for item in value.values() for each in expressions(item)]
    return []


def test_the_board_asks_for_metrics_that_there_are() -> None:
    asked = {name for text in expressions(BOARD) for name in re.findall(r"easyscale_\w+", text)}
    assert len(asked) > 20
    assert asked <= NAMES


def test_the_board_can_be_imported() -> None:
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        assert panel["targets"]
        assert panel["description"].endswith(".")
    labels = {label for family in FAMILIES for label in family.labels}
    used = {name for panel in BOARD["panels"] for t in panel["targets"]
            for name in re.findall(r"{{(\w+)}}", t["legendFormat"])}  # fmt: skip
    assert used <= labels
