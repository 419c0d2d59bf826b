"""The snapshots of a job: what there is, whether it is whole, and how two of them differ; pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from easyscale_cli.views import numbers, plain
from easyscale_cli.views.glyphs import Glyphs
from easyscale_cli.views.layout import Column, columns, cut, hang, line, trim, width, wrap
from easyscale_cli.views.style import Line, Role, Span

#: Where less room is left beside a name, its prose goes below it.
_LEAST_PROSE = 24


def short_name(name: str) -> str:
    """`step-00006400` of `step-00006400-g1.5-3fa9c2d1`."""
    return "-".join(name.split("-")[:2])


class SnapshotRow(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot; `state` is verified, complete, damaged or unfinished."""

    #: The folder's name, `step-00006400-g1.5-3fa9c2d1`.
    name: str
    step: int
    #: Unknown of one that cannot be read.
    epoch: int | None
    era: int
    generation: int
    bytes: int | None
    state: str
    digest: str | None
    nodes: tuple[str, ...]
    age_s: float | None

    @property
    def short_name(self) -> str:
        """`step-00006400`."""
        return short_name(self.name)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What reading a snapshot whole has shown; `fault` is empty for a good one."""

    name: str
    bytes: int
    tensors: int | None
    took_s: float
    fault: str = ""
    cure: str = ""
    #: Its job, or a person, removed it before it was read: no fault, and no proof either.
    is_gone: bool = False

    @property
    def state(self) -> str:
        return "gone" if self.is_gone else "damaged" if self.fault else "verified"


class TensorDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that two snapshots do not share."""

    name: str
    shape: str
    #: Set where the other one has another shape.
    other_shape: str = ""
    #: Set where only one of the two has it: its name.
    only_in: str = ""
    differing: int = 0
    elements: int = 0
    largest: float | None = None
    first: str = ""
    before: float | None = None
    after: float | None = None


class ValueDifference(Protocol):
    """A plain value that two snapshots do not share."""

    @property
    def name(self) -> str: ...
    @property
    def before(self) -> str: ...
    @property
    def after(self) -> str: ...


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that was removed, or would be."""

    name: str
    bytes: int | None
    reason: str


def snapshot_names(rows: Sequence[SnapshotRow]) -> dict[str, str]:
    """What each is called in a table: short, but whole where two would share the short name."""
    times = Counter(row.short_name for row in rows)
    return {row.name: row.short_name if times[row.short_name] == 1 else row.name for row in rows}


def snapshots_lines(
    rows: Sequence[SnapshotRow], *, footer: str, cells: int, glyphs: Glyphs
) -> list[Line]:
    """The table, and what a restore would take."""
    table = [
        Column("SNAPSHOT"),
        Column("STEP", right=True, leaves=3),
        Column("EPOCH", right=True, leaves=5),
        Column("GEN", right=True, leaves=6),
        Column("SIZE", right=True, leaves=2),
        Column("STATE"),
        Column("DIGEST", leaves=4),
        Column("ON", leaves=1),
        Column("AGE", right=True),
    ]
    names = snapshot_names(rows)
    cells_of = [_row(row, names[row.name], glyphs) for row in rows]
    lines = columns(table, cells_of, cells, mark=glyphs.cut) if rows else []
    return [*lines, *wrap(line(glyphs.prose(footer)), cells)] if footer else lines


def _row(row: SnapshotRow, name: str, glyphs: Glyphs) -> list[Line]:
    generation = numbers.generation(row.era, row.generation).removeprefix("gen ")
    return [
        line(glyphs.name(name)),
        line(numbers.count(row.step)),
        line(numbers.count(row.epoch)),
        line(generation),
        line(numbers.data_size(row.bytes)),
        _state(row.state, glyphs),
        line(glyphs.name(numbers.short_digest(row.digest or ""))),
        line(glyphs.name(", ".join(row.nodes)) or "-"),
        line("-" if row.age_s is None else numbers.duration(row.age_s)),
    ]


def _state(state: str, glyphs: Glyphs) -> Line:
    match state:
        case "verified":
            return line(Span(glyphs.done, Role.GOOD), " verified")
        case "damaged":
            return line(Span(glyphs.failed, Role.FAILED), Span(" damaged", Role.FAILED_NAME))
        case "unfinished":
            return line(Span(glyphs.waiting, Role.LIVE), " unfinished")
        case _:
            return line(Span(glyphs.snapshot, Role.LIVE), f" {glyphs.name(state)}")


def verdict_lines(verdict: Verdict, *, cells: int, glyphs: Glyphs) -> list[Line]:
    """What one snapshot proved to be; a damaged one with what follows from it."""
    if verdict.is_gone:
        lead = line(Span(glyphs.left, Role.QUIET), f" {glyphs.name(verdict.name)}  ")
        return hang(lead, wrap(line("was removed before it was read"), cells - width(lead)))
    is_good = not verdict.fault
    mark = Span(glyphs.done, Role.GOOD) if is_good else Span(glyphs.failed, Role.FAILED)
    lead = line(mark, f" {glyphs.name(verdict.name)}  ")
    if is_good:
        tensors = ""
        if verdict.tensors is not None:
            tensors = f"{numbers.counted(verdict.tensors, 'tensor')}, "
        told = f"{numbers.data_size(verdict.bytes)}, {tensors}blake2b and digest agree"
        return hang(
            lead, wrap(line(f"{told}, {numbers.took(verdict.took_s)}"), cells - width(lead))
        )
    rows = wrap(line(glyphs.prose(verdict.fault)), cells - width(lead))
    if verdict.cure:
        cure = line(f"{glyphs.arrow} ", Span(glyphs.prose(verdict.cure), Role.NAME))
        rows += wrap(cure, cells - width(lead))
    return hang(lead, rows)


def difference_lines(
    tensors: Sequence[TensorDifference],
    values: Sequence[ValueDifference] = (),
    *,
    names: tuple[str, str],
    count: int,
    most: int | None,
    cells: int,
    glyphs: Glyphs,
) -> list[Line]:
    """How two snapshots differ, tensor by tensor, then in plain values; at most `most` rows."""
    if not (tensors or values):
        told = f"{numbers.counted(count, 'tensor')} and all plain values are equal, bit by bit"
        return hang(line(Span(glyphs.done, Role.GOOD), " "), wrap(line(told), cells - 2))
    only = sum(bool(tensor.only_in) for tensor in tensors)
    shaped = sum(bool(tensor.other_shape) for tensor in tensors)
    valued = len(tensors) - only - shaped
    told = f"{valued:,} differ in value, {shaped:,} in shape, {only:,} only in one"
    heading = wrap(line(f"{numbers.counted(count, 'tensor')}: {told}"), cells)
    lines = [*heading, *_tensor_lines(tensors, names, most, cells, glyphs)]
    return [*lines, *_value_lines(values, names, most, cells, glyphs)]


def _tensor_lines(
    tensors: Sequence[TensorDifference],
    names: tuple[str, str],
    most: int | None,
    cells: int,
    glyphs: Glyphs,
) -> list[Line]:
    if not tensors:
        return []
    table = [
        Column("TENSOR"),
        Column("SHAPE", leaves=2),
        Column("DIFFER", right=True),
        Column("MAX DIFF", right=True),
        Column("FIRST", leaves=1),
        Column(glyphs.name(names[0]), right=True),
        Column(glyphs.name(names[1]), right=True),
    ]
    rows = [_difference(tensor, glyphs) for tensor in tensors[:most]]
    return [*columns(table, rows, cells, mark=glyphs.cut), *_more(len(tensors), most, glyphs)]


def _value_lines(
    values: Sequence[ValueDifference],
    names: tuple[str, str],
    most: int | None,
    cells: int,
    glyphs: Glyphs,
) -> list[Line]:
    if not values:
        return []
    table = [
        Column("VALUE"),
        Column(glyphs.name(names[0]), right=True),
        Column(glyphs.name(names[1]), right=True),
    ]
    rows = [
        [
            line(glyphs.name(each.name)),
            line(glyphs.name(each.before)),
            line(glyphs.name(each.after)),
        ]
        for each in values[:most]
    ]
    lines = columns(table, rows, cells, mark=glyphs.cut)
    return [*lines, *_more(len(values), most, glyphs)]


def _more(count: int, most: int | None, glyphs: Glyphs) -> list[Line]:
    if most is None or count <= most:
        return []
    return [line(Span(f"{glyphs.cut} {count - most:,} more: --all", Role.QUIET))]


def _difference(tensor: TensorDifference, glyphs: Glyphs) -> list[Line]:
    name, shape = line(glyphs.name(tensor.name)), glyphs.name(tensor.shape)
    if tensor.only_in:
        return [name, line(shape), line(f"only in {glyphs.name(tensor.only_in)}"), (), (), (), ()]
    if tensor.other_shape:
        shapes = f"{shape} {glyphs.arrow} {glyphs.name(tensor.other_shape)}"
        return [name, line(shapes), line("shape"), (), (), (), ()]
    every = tensor.differing == tensor.elements
    told = f"all {tensor.elements:,}" if every else f"{tensor.differing:,} of {tensor.elements:,}"
    return [
        name,
        line(shape),
        line(told),
        line("-" if tensor.largest is None else f"{tensor.largest:.1e}"),
        line(glyphs.name(tensor.first) or "-"),
        line(_value(tensor.before)),
        line(_value(tensor.after)),
    ]


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.7f}"


def pruned_lines(
    removed: Sequence[Removed], *, kept: Sequence[str], is_dry: bool, cells: int, glyphs: Glyphs
) -> list[Line]:
    """What went and why, and what stays."""
    lines: list[Line] = []
    for each in removed:
        lead = line(Span(glyphs.left, Role.FAILED), f" {glyphs.name(each.name)}  ")
        size = "" if each.bytes is None else f"{numbers.data_size(each.bytes)}, "
        told = line(f"{size}{glyphs.prose(each.reason)}")
        if width(lead) + _LEAST_PROSE <= cells:
            lines += hang(lead, wrap(told, cells - width(lead)))
        else:
            lines += [trim(cut(lead, cells, glyphs.cut)), *hang(line("  "), wrap(told, cells - 2))]
    total = sum(each.bytes or 0 for each in removed)
    verb = "would go" if is_dry else "removed"
    what = f"{len(removed):,} {verb}, {numbers.data_size(total)}"
    stay = f"{numbers.counted(len(kept), 'snapshot')} {'stays' if len(kept) == 1 else 'stay'}"
    newest = f", the newest {glyphs.name(short_name(kept[0]))}" if kept else ""
    return [
        *lines,
        *wrap(line(f"{what if removed else 'nothing to remove'}; {stay}{newest}"), cells),
    ]


def pruned_json(job: str, removed: Sequence[Removed], *, kept: Sequence[str], is_dry: bool) -> str:
    """The one object of `snapshots prune --json`."""
    value = {"job": job, "dry_run": is_dry, "removed": msgspec.to_builtins(list(removed))}
    return plain.to_json({"version": plain.JSON_VERSION, **value, "kept": list(kept)})


def verdicts_json(job: str, verdicts: Sequence[Verdict]) -> str:
    """The one object of `snapshots verify --json`."""
    rows = [
        {
            "name": each.name,
            "bytes": each.bytes,
            "tensors": each.tensors,
            "seconds": each.took_s,
            "state": each.state,
            "reason": each.fault,
        }
        for each in verdicts
    ]
    return plain.to_json({"version": plain.JSON_VERSION, "job": job, "snapshots": rows})


def difference_json(
    tensors: Sequence[TensorDifference],
    values: Sequence[ValueDifference],
    *,
    count: int,
    names: tuple[str, str],
) -> str:
    """The one object of `snapshots diff --json`."""
    value = {
        "version": plain.JSON_VERSION,
        "snapshots": list(names),
        "same": not (tensors or values),
        "count": count,
        "tensors": msgspec.to_builtins(list(tensors)),
        "values": [{"name": v.name, "before": v.before, "after": v.after} for v in values],
    }
    return plain.to_json(value)


def snapshots_json(rows: Sequence[SnapshotRow]) -> str:
    """The list of `snapshots ls --json`."""
    value: list[dict[str, Any]] = msgspec.to_builtins(list(rows))
    return plain.to_json([{"version": plain.JSON_VERSION, **row} for row in value])
