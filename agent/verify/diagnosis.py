"""Why two runs of one training differ: the likely cause, with its evidence. Pure but for sources.

What a script keeps beside what it registered was written down with both runs; what differs there
where the bits first differ is the suspect.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from easyscale.agent.verify import source
from easyscale.agent.verify.comparison import first_unequal
from easyscale.agent.verify.verified import Cause, Diagnosis
from easyscale.recording import USER_STATE, ClockRead, Operator, Point, Run, Stage

_KINDS = {"generator": 0, "tensor": 1, "float": 2, "int": 3, "order": 4}
_MOST_EVIDENCE = 3


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    """One thing outside that is another one in the other run."""

    path: str
    expected: str
    got: str
    #: What it was before the first micro-step of the fixed run.
    at_begin: str
    #: The micro-step that found it so.
    step: int
    rank: int

    @property
    def kind(self) -> str:
        return (self.expected or self.got).partition(" ")[0]

    @property
    def is_as_at_begin(self) -> bool:
        return self.got == self.at_begin

    @property
    def name(self) -> str:
        """The last word of its path: `running_scale` of `model.backbone.3.running_scale`."""
        words = self.path.removesuffix(".len").partition("[")[0].split(".")
        return words[-1]


def suspects(point: Point, fixed: Run, other: Run, *, equal: Sequence[Run]) -> list[Suspect]:
    """What stood outside and differed in the micro-steps that led to the difference.

    What differed just so in a run of equal bits is none: it did no harm there.
    """
    found: dict[str, Suspect] = {}
    begin = next((fixed.outside[key] for key in sorted(fixed.outside)), {})
    for key in _leading_to(point, fixed):
        expected, got = fixed.outside.get(key, {}), other.outside.get(key)
        if got is None:
            continue
        for path in expected.keys() | got.keys():
            one, two = expected.get(path, ""), got.get(path, "")
            if one == two or path in found:
                continue
            if all(run.outside.get(key, expected).get(path, "") == one for run in equal):
                found[path] = Suspect(
                    path=path,
                    expected=one,
                    got=two,
                    at_begin=begin.get(path, ""),
                    step=key[0],
                    rank=key[1],
                )
    return sorted(found.values(), key=lambda one: (_KINDS.get(one.kind, 9), one.path))


def _leading_to(point: Point, run: Run) -> Iterator[tuple[int, int]]:
    """The micro-step itself; for a later stage all of the step, and of the next that was seen."""
    if point.rank >= 0:
        yield (point.step, point.rank)
        return
    for step in (point.step, point.step + 1):
        yield from sorted(key for key in run.micro_steps if key[0] == step)


def of_suspect(suspect: Suspect, files: Sequence[str]) -> Diagnosis:
    """The cause that a thing outside stands for."""
    places = source.places_of(suspect.name, files)
    where = source.first_update(places)
    begin = source.first_beginning(places)
    told = _values(suspect)
    match suspect.kind:
        case "generator":
            cause = Cause.OWN_GENERATOR
            told = f"{suspect.path} stands elsewhere than in the fixed run"
            verb = "starts"
            where = begin or where
            advice = (
                "draw from torch, numpy.random or random themselves, which are seeded for each "
                "micro-step, or start it anew from step.number and step.rank"
            )
        case "int" | "len":
            cause, verb = Cause.GLOBAL_COUNTER, "counts"
            advice = "step.number, step.rank or the sample's index in its place"
        case "order":
            cause, verb = Cause.SET_ORDER, "makes"
            told = f"{suspect.path} gives its elements in another order"
            advice = f"sorted({suspect.name}) where it is gone through"
        case _:
            cause, verb = Cause.UNREGISTERED_STATE, "writes"
            advice = _registration(suspect, begin)
    target = suspect.name if where is None else where.target
    evidence = () if where is None else (f"{where.label} {verb} {target}",)
    return Diagnosis(cause=cause, told=told, evidence=evidence, advice=advice)


def _values(suspect: Suspect) -> str:
    if suspect.kind == "tensor":
        since = ": its value before step 1" if suspect.is_as_at_begin else ""
        return f"{suspect.path} is not registered with the job, each process has its own{since}"
    got, expected = (shown(text) for text in (suspect.got, suspect.expected))
    return f"{suspect.path} is {got}, in the fixed run {expected}; each process has its own"


def shown(text: str) -> str:
    """The value of `kind value` as people write it."""
    kind, _, value = text.partition(" ")
    if kind == "float":
        return repr(float.fromhex(value))
    return value or "not there"


def _registration(suspect: Suspect, begin: source.Place | None) -> str:
    if begin is not None and begin.target.startswith("self.") and suspect.kind == "tensor":
        return f'{begin.label}: self.register_buffer("{suspect.name}", {begin.value})'
    if suspect.kind == "tensor":
        return f"job.register(..., {suspect.name}={suspect.name})"
    return f"job.state({suspect.name}=...), which goes where the training goes"


def of_clock(reads: Sequence[ClockRead]) -> Diagnosis:
    """Runs that see a fixed clock are equal, the others are not."""
    return Diagnosis(
        cause=Cause.WALL_TIME,
        told="with a clock that stands still the script is equal to itself",
        evidence=_places("asks", reads),
        advice="leave the clock out of whatever reaches a batch, a loss or a weight",
    )


def of_entropy(reads: Sequence[ClockRead]) -> Diagnosis:
    """Runs whose generators start from a number are equal, the others are not."""
    return Diagnosis(
        cause=Cause.OWN_GENERATOR,
        told="with generators that start from a number the script is equal to itself",
        evidence=_places("starts from the machine's entropy:", reads),
        advice="draw from torch, numpy.random or random themselves: easyscale seeds them",
    )


def of_hash_order(fixed: Run, other: Run, files: Sequence[str]) -> Diagnosis:
    """The fixed run is another one where sets of text have another order."""
    evidence = []
    begin_one, begin_two = (
        next((run.outside[key] for key in sorted(run.outside)), {}) for run in (fixed, other)
    )
    for path in sorted(begin_one):
        if begin_one[path] != begin_two.get(path) and begin_one[path].startswith("order "):
            places = source.places_of(path.rpartition(".")[2], files)
            where = "" if not places else f"{places[0].label}: "
            evidence.append(f"{where}{path} gives its elements in another order")
    if not evidence:
        evidence = [f"{place} goes through a set" for place in source.set_loops(files)]
    return Diagnosis(
        cause=Cause.SET_ORDER,
        told="equal with the same PYTHONHASHSEED, unequal with another, as on another node",
        evidence=tuple(evidence[:_MOST_EVIDENCE]),
        advice="sorted(...) around the set before it is gone through",
    )


def _places(verb: str, reads: Sequence[ClockRead]) -> tuple[str, ...]:
    texts = dict.fromkeys(f"{short_place(read.place)} {verb} {read.what}" for read in reads)
    return tuple(texts)[:_MOST_EVIDENCE]


def short_place(place: str) -> str:
    """`train.py:31` of a whole path."""
    return Path(place).name


def unequal_operators(
    one: Sequence[Operator], other: Sequence[Operator]
) -> Iterator[tuple[Operator, Operator]]:
    """Those with unequal results, up to where the two logs are no longer of the same calls."""
    for mine, theirs in zip(one, other, strict=False):
        if mine.name != theirs.name:
            return
        if mine.outputs != theirs.outputs:
            yield mine, theirs


def first_unequal_operator(one: Sequence[Operator], other: Sequence[Operator]) -> Operator | None:
    """The first operator that gave other bits for equal inputs; None: it is none of them."""
    mine, theirs = next(unequal_operators(one, other), (None, None))
    if mine is None or theirs is None or mine.inputs != theirs.inputs:
        return None
    return mine


def of_operator(operator: Operator) -> Diagnosis:
    where = f"{short_place(operator.place)}: " if operator.place else ""
    return Diagnosis(
        cause=Cause.OPERATOR,
        told=f"{operator.name} gives other bits for equal inputs",
        evidence=(f"{where}{operator.name}, inputs equal, outputs not",),
        advice="an operator in its place that is deterministic, or one thread for it",
    )


def of_job_state(point: Point, files: Sequence[str]) -> Diagnosis:
    """Processes put different values there, and nothing else that they keep explains it."""
    name = point.name.removeprefix(USER_STATE).partition(".")[0]
    places = [place for place in source.places_of(name, files) if "." in place.target]
    return Diagnosis(
        cause=Cause.UNKNOWN,
        told=f"not every process puts the same into {USER_STATE}{name}",
        evidence=tuple(f"{place.label} writes {place.target}" for place in places)[:_MOST_EVIDENCE],
        advice=(
            "write it in every process, from what all of them have alike: not under job.is_main, "
            "not from what one process did"
        ),
    )


def unknown(point: Point, *, comparable: bool) -> Diagnosis:
    told = "nothing that could be looked at explains it"
    if not comparable:
        told = "neither time nor own generators nor a single operator explain it"
    where = "its first unequal thing is " + describe(point)
    return Diagnosis(cause=Cause.UNKNOWN, told=told, evidence=(where,))


def describe(point: Point) -> str:
    """A point in words."""
    word = {
        Stage.BATCH: "the batch",
        Stage.GRADIENT: f"the gradient of {point.name}",
        Stage.REDUCED: f"the mean gradient of {point.name}",
        Stage.EVALUATION: f"the result of {point.name}",
        Stage.STATE: point.name,
    }.get(point.stage, point.name)
    rank = f" of rank {point.rank}" if point.rank >= 0 else ""
    return f"{word}{rank}" + (" before the first step" if point.step < 0 else "")


def ruled_out(cause: Cause, *, same_batch: bool, comparable: bool) -> tuple[str, ...]:
    """What the runs have shown not to be it."""
    found = []
    if same_batch:
        found.append("data order")
    if comparable:
        found += ["time", "generators started by chance"]
        if cause is not Cause.SET_ORDER:
            found.append("set order")
    if comparable and cause is not Cause.OPERATOR:
        found.append("operators that differ by chance")
    return tuple(found)


def unequal_begin(fixed: Run, other: Run) -> str | None:
    """What the script's top built otherwise, if it did."""
    one, two = fixed.boundaries.get(0), other.boundaries.get(0)
    if one is None or two is None:
        return None
    states: tuple[Mapping[str, str], Mapping[str, str]] = (one.state, two.state)
    return first_unequal(*states)
