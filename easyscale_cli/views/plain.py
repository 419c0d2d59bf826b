"""The same events for pipes and programs: `key=value` or JSON lines; pure."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from easyscale.reports import EventKind, Fact, FirstCause, JobEvent, Progress, Summary
from easyscale_cli.views import numbers
from easyscale_cli.views.literal import literal

JSON_VERSION: Final = 1
#: What stands before the step, between step and generation, and behind them; others follow by name.
_PLACE: Final = (
    "node",
    "slot",
    "slots",
    "kind",
    "workers",
    "endpoint",
    "pid",
    "exit_code",
    "signal",
)
_OUTCOME: Final = ("pause_s", "steps_lost", "workers_kept", "ranks_moved", "digest")
_OF_STEPS: Final = frozenset({"paused_s", "longest_pause_s", "steps_lost"})
_BARE: Final = re.compile(r"[^\s\"=\\]+")


def event_line(event: JobEvent) -> str:
    """One change as a line that both a person and `grep` can read."""
    facts = event.facts
    middle = ("ranks",)
    rest = sorted(set(facts).difference(_PLACE, middle, _OUTCOME))
    pairs: list[tuple[str, object]] = [("job", event.job), ("event", str(event.event))]
    pairs += [(key, facts.get(key)) for key in _PLACE]
    pairs += [("step", event.step), ("ranks", facts.get("ranks"))]
    pairs += _generation(event.era, event.generation)
    pairs += [(key, facts.get(key)) for key in (*_OUTCOME, *rest)]
    pairs.append(("reason", event.reason or None))
    return _line(event.at, pairs)


def progress_line(progress: Progress) -> str:
    """Where training is, once per interval."""
    value = None if progress.value is None else numbers.logged_metric(progress.value)
    pairs: list[tuple[str, object]] = [
        ("job", progress.job),
        ("event", "progress"),
        ("step", progress.step),
        ("steps", progress.steps),
        ("epoch", progress.epoch),
        (progress.metric or "metric", value),
        ("steps_per_s", _rate(progress.steps_per_s)),
        ("samples_per_s", _rate(progress.samples_per_s)),
        ("left_s", None if progress.left_s is None else round(progress.left_s)),
        ("nodes", progress.nodes),
        ("slots", progress.slots),
        *_generation(progress.era, progress.generation),
        ("slow", progress.slow or None),
    ]
    return _line(progress.at, pairs)


def heading_line(at: str, job: str, told: Mapping[str, Fact], *, version: str) -> str:
    """The first line: what is fixed for the job's life."""
    return _line(at, [("job", job), ("version", version), *told.items()])


def summary_line(at: str, summary: Summary, event: JobEvent | None) -> str:
    """The closing facts of a job, on the line of the event that ended it where there was one."""
    told = {key: value for key, value in summary_fields(summary).items() if value not in {None, ""}}
    if summary.step is None:  # without steps none are lost, and nothing is known of pauses
        told = {key: value for key, value in told.items() if key not in _OF_STEPS}
    if event is not None:
        return event_line(msgspec.structs.replace(event, facts={**event.facts, **told}))
    kind = EventKind.FINISHED if summary.finished else EventKind.DRAINED
    pairs = [("job", summary.job), ("event", str(kind)), ("step", summary.step)]
    return _line(at, [*pairs, *told.items(), ("reason", summary.reason or None)])


def _generation(era: int, number: int) -> list[tuple[str, object]]:
    return [("era", era if era > 1 else None), ("generation", number)]


def _rate(value: float | None) -> str | None:
    return None if value is None else numbers.rate(value).replace(",", "")


def _line(at: str, pairs: Sequence[tuple[str, object]]) -> str:
    told = [f"{_word(key)}={_value(key, value)}" for key, value in pairs if value is not None]
    return " ".join([literal(at), "easyscale", *told])


def _word(key: str) -> str:
    return re.sub(r"[^\w.]", "_", literal(key))


def _value(key: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return _decimal(key, value)
        case tuple() | list():
            whole = [each for each in value if isinstance(each, int)]
            joined = len(whole) == len(value) and key.startswith("ranks")
            return _quoted(numbers.spans(whole) if joined else ",".join(map(str, value)))
        case _:
            return _quoted(str(value))


def _decimal(key: str, value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    text = f"{value:.3f}"
    return text if key.endswith("pause_s") else text.rstrip("0").rstrip(".")


def _quoted(text: str) -> str:
    shown = literal(text)
    if _BARE.fullmatch(shown):
        return shown
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'


def event_json(event: JobEvent, *, further: Mapping[str, Any] | None = None) -> str:
    """One change as one line of JSON; `further` are fields that are more than facts."""
    return to_json(event_fields(event, further=further))


def event_fields(event: JobEvent, *, further: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields of a change in their order: what it is, its facts, its reason."""
    value: dict[str, Any] = {
        "version": JSON_VERSION,
        "at": event.at,
        "job": event.job,
        "event": str(event.event),
        "step": event.step,
        "era": event.era,
        "generation": event.generation,
    }
    value |= event.facts
    value |= further or {}
    return value | {"reason": event.reason}


def progress_json(progress: Progress) -> str:
    """Where training is, as a line of the same stream."""
    fields = msgspec.structs.asdict(progress)
    first = {key: fields.pop(key) for key in ("at", "job")}
    order = {"step": fields.pop("step"), "era": fields.pop("era")}
    order["generation"] = fields.pop("generation")
    fields.pop("history")
    head = {"version": JSON_VERSION, **first, "event": "progress", **order}
    return to_json({**head, **fields, "reason": ""})


def first_cause_fields(cause: FirstCause, facts: Mapping[str, Fact]) -> dict[str, Any]:
    """The first cause as the `failed` event carries it."""
    kind, _, message = cause.headline.partition(": ")
    is_type = bool(message) and kind.replace(".", "_").isidentifier()
    return {
        "exit_code": cause.exit_code,
        "first_cause": {
            "type": kind if is_type else None,
            "message": message if is_type else cause.headline,
            "rank": cause.rank,
            "step": cause.step,
            "node": cause.node,
            "slot": cause.slot,
            "pid": cause.pid,
            "file": cause.file or None,
            "line": cause.line if cause.file else None,
            "function": cause.function or None,
            "log": cause.log or None,
            "also_on": facts.get("also_on"),
            "blames": facts.get("blames"),
        },
        "why_ended": cause.why_ended,
        "victims": cause.victims,
        "also_failed": cause.also_failed or 0,
        "next": cause.next_steps,
    }


def summary_fields(summary: Summary) -> dict[str, Any]:
    """The closing facts as the event that ends a job carries them."""
    return {
        "exit_code": summary.exit_code,
        "digest": summary.digest or None,
        "elapsed_s": summary.elapsed_s,
        "paused_s": summary.paused_s,
        "longest_pause_s": summary.longest_pause_s,
        "steps_lost": summary.steps_lost,
        "restarts": summary.restarts,
        "steps_per_s": summary.steps_per_s,
        "samples_per_s": summary.samples_per_s,
        "snapshot_step": summary.snapshot_step,
        "snapshot_path": summary.snapshot_path or None,
        "log_dir": summary.log_dir or None,
    }


def error_json(*, code: str, message: str, hint: str, exit_code: int) -> str:
    """What a command with `--json` says instead of its object."""
    error = {"code": code, "message": message, "try": hint, "exit_code": exit_code}
    return to_json({"version": JSON_VERSION, "error": error})


def to_json(value: object) -> str:
    """One line; what JSON cannot say (nan, infinity) is null."""
    return json.dumps(_sayable(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _sayable(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {str(key): _sayable(each) for key, each in value.items()}
        case list() | tuple():
            return [_sayable(each) for each in value]
        case _:
            return value
