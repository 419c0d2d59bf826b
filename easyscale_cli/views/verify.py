"""Whether a script keeps its bits: a row a run, then the verdict, its place, its cause; pure."""

from collections.abc import Sequence
from typing import Any

import msgspec

from easyscale.agent.verify.verified import (
    Diagnosis,
    Failed,
    FirstDifference,
    RunRow,
    Verdict,
    Verified,
)
from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import (
    GAP,
    Column,
    blank,
    columns,
    hang,
    in_gutter,
    line,
    width,
    wrap,
)
from easyscale_cli.views.style import Line, Role, Span

_GUTTER = 13
#: Of a script's traceback, the last lines.
_LOG_LINES = 6

_MARKS = {
    Verdict.SAME_BITS: ("done", Role.GOOD),
    Verdict.BITS_DIFFER: ("failed", Role.FAILED),
    Verdict.NOT_COMPARABLE: ("failed", Role.FAILED),
    Verdict.NOT_FINISHED: ("failed", Role.FAILED),
}


def run_lines(rows: Sequence[RunRow], *, steps: int, cells: int, glyphs: Glyphs) -> list[Line]:
    """The head of the table and one line for each run, those that are yet to come too."""
    table = [
        Column("RUN"),
        Column("LAYOUT", leaves=1),
        Column("CHANGE", leaves=2),
        Column("DIGEST", least=12),
        Column("TOOK", right=True, least=6),
    ]
    shown = [_row(row, steps, glyphs) for row in rows]
    return columns(table, shown, cells, mark=glyphs.cut)


def _row(row: RunRow, steps: int, glyphs: Glyphs) -> list[Line]:
    is_over = row.seconds is not None or row.same is not None
    mark = Span(" ")
    digest = ""
    if is_over:
        good = row.same is not False
        mark = Span(glyphs.done, Role.GOOD) if good else Span(glyphs.failed, Role.FAILED)
        digest = "-" if row.digest is None else numbers.short_digest(row.digest)
    elif row.step is not None:
        mark = Span(glyphs.waiting, Role.LIVE)
        digest = f"step {row.step}/{steps}"
    return [
        line(mark, f" {row.name}"),
        line(glyphs.prose(row.layout)),
        line(row.changes or "-"),
        line(digest),
        line("" if row.seconds is None else numbers.duration(row.seconds)),
    ]


def verdict_lines(verified: Verified, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """What stands below the table."""
    lines: list[Line] = []
    if verified.not_started:
        left = numbers.counted(verified.not_started, "run")
        lines.append(line("  ", Span(f"{left} not started (--keep-going runs them)", Role.QUIET)))
    name, role = _MARKS[verified.verdict]
    mark = line(Span(getattr(glyphs, name), role), " ")
    lines += [(), *hang(mark, wrap(line(_headline(verified)), cells - width(mark)))]
    if verified.digest is not None:
        lines.append(line(f"  digest {verified.digest}"))
    if verified.first_difference is not None:
        lines += [(), *_difference(verified.first_difference, cells, glyphs)]
    if verified.diagnosis is not None:
        lines += [(), *_diagnosis(verified.diagnosis, cells, glyphs)]
    if verified.failed is not None:
        lines += [(), *_failed(verified.failed, cells, glyphs)]
    for note in verified.notes:
        lines += hang(line(Span(glyphs.look, Role.LOOK), " "), wrap(line(note), cells - GAP))
    if verified.kept:
        lines += wrap(line(f"  records are kept in {glyphs.name(verified.kept)}"), cells)
    if verified.verdict is not Verdict.SAME_BITS:
        lines += [(), line(Span(f"exit 1: {verified.verdict.words}", Role.NAME))]
    return lines


def _headline(verified: Verified) -> str:
    runs = len(verified.runs)
    match verified.verdict:
        case Verdict.SAME_BITS:
            workers = numbers.counted(verified.logical_workers, "logical worker")
            return (
                f"same bits in {runs} of {runs} runs of {verified.steps:,} steps, {workers}, "
                f"{verified.level}, {verified.batches:,} batches"
            )
        case Verdict.BITS_DIFFER:
            return f"bits differ first {_place(verified.first_difference)}"
        case Verdict.NOT_COMPARABLE:
            return (
                "not comparable: the fixed run differs from itself, first "
                f"{_place(verified.first_difference)}"
            )
        case Verdict.NOT_FINISHED:
            failed = verified.failed
            name = "a run" if failed is None else f'"{failed.run}"'
            return f"not finished: {name} ended before its last step"


def _place(difference: FirstDifference | None) -> str:
    if difference is None:
        return "somewhere"
    if difference.step < 0:
        return "before the first step: the script builds another state"
    where = f"at step {difference.step:,}"
    if difference.rank is None:
        return f"{where}, in its {difference.where}"
    same = "is the same" if difference.same_batch else "is another one"
    return f"{where}, logical rank {difference.rank}; its batch {same}"


def _difference(difference: FirstDifference, cells: int, glyphs: Glyphs) -> list[Line]:
    index = f"[{','.join(map(str, difference.index))}]" if difference.index else ""
    about = "" if difference.registered else "   not registered with the job"
    what = "tensor" if difference.registered or difference.expected_bits else "value"
    lines = _said(what, f"{glyphs.name(difference.tensor)}{index}{about}", cells, glyphs)
    if difference.expected is not None and difference.got is not None:
        shown = max(len(difference.expected), len(difference.got))
        since = "   its value before step 1" if difference.as_at_begin else ""
        for name, value, bits, more in (
            ("fixed", difference.expected, difference.expected_bits, ""),
            (_short(difference.run), difference.got, difference.got_bits, since),
        ):
            lines += _said(name, f"{value:<{shown}}   {bits or ''}{more}".rstrip(), cells, glyphs)
    if difference.then:
        lines += _said("then", ", then ".join(difference.then), cells, glyphs)
    return lines


def _short(run: str) -> str:
    """The word of the gutter for a run: `changed`, `killed`."""
    words = {
        "changing in place": "changed",
        "SIGKILL in reduce": "after a kill",
        "snapshot and restore": "restored",
        "uneven and scattered": "scattered",
        "other loader workers": "other loader",
        "fixed, other hash order": "other order",
        "fixed, 1 process": "again",
    }
    return words.get(run, run)


def _diagnosis(diagnosis: Diagnosis, cells: int, glyphs: Glyphs) -> list[Line]:
    lines = _said("likely cause", f"{diagnosis.cause.words}: {diagnosis.told}", cells, glyphs)
    for number, evidence in enumerate(diagnosis.evidence):
        lines += _said("" if number else "evidence", evidence, cells, glyphs)
    if diagnosis.ruled_out:
        lines += _said("ruled out", ", ".join(diagnosis.ruled_out), cells, glyphs)
    if diagnosis.advice:
        lines += _said("do", diagnosis.advice, cells, glyphs, role=Role.NAME)
    return lines


def _failed(failed: Failed, cells: int, glyphs: Glyphs) -> list[Line]:
    where = f"{failed.place}: " if failed.place else ""
    lines = _said("first cause", f"{where}{failed.reason}", cells, glyphs)
    for text in failed.log.splitlines()[-_LOG_LINES:]:
        lines += [
            blank(_GUTTER + 1) + part for part in wrap(line(glyphs.name(text)), cells - _GUTTER - 1)
        ]
    return lines


def _said(tag: str, text: str, cells: int, glyphs: Glyphs, *, role: Role = Role.TEXT) -> list[Line]:
    first = in_gutter(line(Span(tag, Role.QUIET)) if tag else (), _GUTTER, glyphs.cut) + blank(1)
    return hang(first, wrap(line(Span(glyphs.prose(text), role)), cells - _GUTTER - 1))


def verified_json(verified: Verified) -> str:
    """The one object of `verify --json`."""
    value: dict[str, Any] = msgspec.to_builtins(verified)
    told = value.pop("diagnosis") or {}
    value |= {
        "likely_cause": told.get("cause"),
        "told": told.get("told"),
        "evidence": told.get("evidence", []),
        "ruled_out": told.get("ruled_out", []),
        "try": told.get("advice"),
    }
    for run in value["runs"]:
        run.pop("step")
    return plain.to_json({"version": plain.JSON_VERSION, **value})
