"""`easyscale snapshots`: what a job can go on from, whether it is whole, and what may go."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from easyscale.agent.snapshots import SnapshotEntry, SnapshotState, beyond_newest
from easyscale.errors import ExitCode, UsageError
from easyscale.inspection import Difference, Differences, Inspected, Request
from easyscale.model import SnapshotRecord
from easyscale_cli.inspecting import ask_runtime, read_limit_s
from easyscale_cli.options import look_options, option, store_options
from easyscale_cli.output import Output
from easyscale_cli.snapshot_folder import Snapshots, chosen_folder, find_snapshots
from easyscale_cli.views import numbers
from easyscale_cli.views.help import PageCommand, PageGroup
from easyscale_cli.views.layout import line
from easyscale_cli.views.snapshots import (
    Removed,
    SnapshotRow,
    TensorDifference,
    Verdict,
    difference_json,
    difference_lines,
    pruned_json,
    pruned_lines,
    snapshots_json,
    snapshots_lines,
    verdict_lines,
    verdicts_json,
)

#: A larger snapshot is not read whole only to be listed.
_MOST_READ_BYTES = 2_000_000_000
_MOST_DIFFERENCES = 20
_WORTH_A_WORD_BYTES = 500_000_000
_HELP = {"help_option_names": ["-h", "--help"]}


@click.group(cls=PageGroup, context_settings=_HELP)
def command() -> None:
    """List, check, compare and remove the snapshots of a job."""


def _folder_option(function: Any) -> Any:
    return option(
        "--snapshot-dir",
        metavar="DIR",
        default="",
        help="Where they are [what the launch was given, else runs/JOB].",
    )(function)


@command.command(
    "ls",
    cls=PageCommand,
    short_help="List them, and which one a restore would take",
    context_settings=_HELP,
)
@click.argument("job", required=False)
@_folder_option
@store_options
@look_options
def ls(job: str | None, **asked: Any) -> int:
    """List the snapshots of JOB, newest first, and which one a restore would take."""
    output = Output(asked)
    with output.answering():
        found = find_snapshots(job, asked)
        entries, footer = _looked_at(found)
        here = [_row(found, entry) for entry in entries]
        rows = sorted(
            [*here, *map(_row_elsewhere, found.elsewhere(entries))],
            key=lambda row: (row.step, row.era, row.generation, row.name),
            reverse=True,
        )
        if output.as_json:
            output.say(snapshots_json(rows))
        elif rows:
            shown = snapshots_lines(rows, footer=footer, cells=output.cells, glyphs=output.glyphs)
            output.show(shown)
        else:
            output.show([line(f"no snapshots of {found.job} in {found.folder}")])
    return ExitCode.DONE


def _looked_at(found: Snapshots) -> tuple[list[SnapshotEntry], str]:
    """The entries, read as far as a restore would read them, and what that restore would take."""
    entries = list(found.catalogue.entries())
    taken, unread = "", False
    for number, entry in enumerate(entries):
        if entry.state is not SnapshotState.COMPLETE:
            continue
        if entry.bytes > _MOST_READ_BYTES:
            taken, unread = entry.short_name, True
            break
        entries[number] = found.catalogue.verify(entry)
        if entries[number].is_good:
            taken = entry.short_name
            break
    if not taken:
        return entries, "none of them is whole: a restore would begin anew" if entries else ""
    told = f"restore would take {taken}"
    if unread:
        told = f"restore would try {taken} first, which was not read: easyscale snapshots verify"
    return entries, f"{told}{_next_to_go(found, entries)}"


def _next_to_go(found: Snapshots, entries: Sequence[SnapshotEntry]) -> str:
    keep, every = found.known.keep, found.known.every_steps
    if keep is None:
        return ""
    good = [entry for entry in entries if entry.is_good]
    if len(good) < keep or not every:
        return f"; keeps {keep}"
    last, next_step = good[keep - 1].step, good[0].step + every
    return f"; keeps {keep}, so {numbers.count(last)} goes after {numbers.count(next_step)}"


def _row(found: Snapshots, entry: SnapshotEntry) -> SnapshotRow:
    manifest = entry.manifest
    record = found.records.get(entry.name)
    era, _, number = entry.name.split("-")[2].removeprefix("g").partition(".")
    state = entry.state
    if record is not None and record.rejected and entry.is_good:
        state = SnapshotState.DAMAGED
    return SnapshotRow(
        name=entry.name,
        step=entry.step,
        epoch=manifest.epoch if manifest else None,
        era=int(era),
        generation=int(number),
        bytes=entry.bytes,
        state=str(state),
        digest=manifest.digest if manifest else None,
        nodes=found.nodes(entry),
        age_s=max(0.0, time.time() - entry.changed),
    )


def _row_elsewhere(record: SnapshotRecord) -> SnapshotRow:
    return SnapshotRow(
        name=record.name,
        step=record.step,
        epoch=record.epoch,
        era=record.generation.era,
        generation=record.generation.number,
        bytes=record.bytes,
        state=str(SnapshotState.DAMAGED if record.rejected else SnapshotState.COMPLETE),
        digest=record.digest,
        nodes=record.nodes,
        age_s=None,
    )


@command.command(
    "verify",
    cls=PageCommand,
    short_help="Read them whole: every file, every tensor",
    context_settings=_HELP,
)
@click.argument("job", required=False)
@click.argument("snapshots", metavar="[SNAPSHOT]...", nargs=-1)
@_folder_option
@store_options
@look_options
def verify(job: str | None, snapshots: tuple[str, ...], **asked: Any) -> int:
    """Read snapshots of JOB whole: files against the manifest, tensors against the digest.

    All of them, or those that are named by step or name. Nothing in a snapshot is executed.
    """
    output = Output(asked)
    with output.answering():
        found = find_snapshots(job, asked)
        if snapshots:
            entries = [found.choose(word) for word in snapshots]
        else:
            unfinished = SnapshotState.UNFINISHED
            entries = [e for e in found.catalogue.entries() if e.state is not unfinished]
        if not entries and not output.as_json:
            output.show([line(f"no snapshots of {found.job} in {found.folder}")])
        verdicts: list[Verdict] = []
        for verdict in _verdicts(found, entries, output):
            verdicts.append(verdict)
            if not output.as_json:
                lines = verdict_lines(verdict, cells=output.cells, glyphs=output.glyphs)
                output.show(lines)
        if output.as_json:
            output.say(verdicts_json(found.job, verdicts))
    return _exit_code(verdicts)


def _exit_code(verdicts: Sequence[Verdict]) -> int:
    """Nothing is damaged, and unless there was nothing to read, something has been read."""
    is_unread = bool(verdicts) and all(verdict.is_gone for verdict in verdicts)
    is_bad = is_unread or any(verdict.fault for verdict in verdicts)
    return ExitCode.JOB_FAILED if is_bad else ExitCode.DONE


def _verdicts(
    found: Snapshots, entries: Sequence[SnapshotEntry], output: Output
) -> Iterator[Verdict]:
    """What is damaged at first sight is told at once; everything else the runtime reads whole."""
    whole = [entry for entry in entries if entry.state is SnapshotState.COMPLETE]
    request = Request(paths=tuple(entry.path for entry in whole))
    with contextlib.closing(ask_runtime(request, sizes=[e.bytes for e in whole])) as answers:
        for entry in entries:
            fault, cure, tensors, took_s = entry.reason, "", None, 0.0
            if entry.state is SnapshotState.UNFINISHED:
                fault = "unfinished: it is being written, or its writer has ended"
            elif entry.state is SnapshotState.COMPLETE:
                _tell_wait(output, entry.short_name, entry.bytes)
                inspected = next(answers)
                assert isinstance(inspected, Inspected)
                fault, tensors = inspected.fault, inspected.tensors
                took_s = inspected.seconds
            # A job that runs removes its old ones meanwhile, in one step.
            was_whole = entry.state is not SnapshotState.UNFINISHED
            is_gone = bool(fault) and was_whole and not Path(entry.path).is_dir()
            if is_gone:
                fault = ""
            elif fault and was_whole:
                cure = f"skipped by restore; easyscale snapshots prune {found.job} --damaged"
            yield Verdict(
                name=_called(entry, entries),
                bytes=entry.bytes,
                tensors=tensors,
                took_s=took_s,
                fault=fault,
                cure=cure,
                is_gone=is_gone,
            )


def _tell_wait(output: Output, what: str, size: int) -> None:
    """Reading so much takes long enough for a person to wonder."""
    if size >= _WORTH_A_WORD_BYTES:
        output.wait_for(f"{what} to be read", waited_s=0.0, limit_s=read_limit_s(size))


def _called(entry: SnapshotEntry, among: Sequence[SnapshotEntry]) -> str:
    """Its short name, unless another one is of the same step."""
    is_alone = sum(each.step == entry.step for each in among) == 1
    return entry.short_name if is_alone else entry.name


@command.command(
    "diff",
    cls=PageCommand,
    short_help="Say in which tensors two of them differ",
    context_settings=_HELP,
)
@click.argument("job")
@click.argument("first")
@click.argument("second")
@click.option("--all", "show_all", is_flag=True, help="Every tensor, not only the first 20.")
@_folder_option
@store_options
@look_options
def diff(job: str, first: str, second: str, *, show_all: bool, **asked: Any) -> int:
    """Say in which tensors two snapshots of JOB differ, bit by bit, the largest difference first.

    FIRST and SECOND are steps, names, or paths of snapshot folders of any job. Everything that the
    digest covers is compared.
    """
    output = Output(asked)
    with output.answering():
        entries = [_meant(job, word, asked) for word in (first, second)]
        size = sum(entry.bytes for entry in entries)
        names = _two_names(*entries)
        _tell_wait(output, "both", size)
        request = Request(paths=tuple(entry.path for entry in entries), compare=True)
        with contextlib.closing(ask_runtime(request, sizes=[size])) as answers:
            differences = next(answers)
        assert isinstance(differences, Differences)
        tensors = [_tensor(each, names) for each in differences.tensors]
        if output.as_json:
            output.say(
                difference_json(tensors, differences.values, count=differences.count, names=names)
            )
        else:
            output.show(
                difference_lines(
                    tensors,
                    differences.values,
                    names=names,
                    count=differences.count,
                    most=None if show_all else _MOST_DIFFERENCES,
                    cells=output.cells,
                    glyphs=output.glyphs,
                )
            )
    is_same = not (differences.tensors or differences.values)
    return ExitCode.DONE if is_same else ExitCode.JOB_FAILED


def _meant(job: str, word: str, asked: Mapping[str, Any]) -> SnapshotEntry:
    if "/" in word:
        return chosen_folder(Path(word))
    return find_snapshots(job, asked).choose(word)


def _two_names(first: SnapshotEntry, second: SnapshotEntry) -> tuple[str, str]:
    """Their steps, or what else tells them apart."""
    if first.step != second.step:
        return numbers.count(first.step), numbers.count(second.step)
    if first.name != second.name:
        return first.name, second.name
    return first.path, second.path


def _tensor(found: Difference, names: tuple[str, str]) -> TensorDifference:
    values = {name: getattr(found, name) for name in found.__struct_fields__}
    only_in = "" if found.only_in is None else names[found.only_in]
    return TensorDifference(**{**values, "only_in": only_in})


@command.command(
    "prune", cls=PageCommand, short_help="Remove old or damaged ones", context_settings=_HELP
)
@click.argument("job", required=False)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N.")
@click.option("--damaged", is_flag=True, help="Remove those that do not verify, and leftovers.")
@click.option("--dry-run", is_flag=True, help="Say what would go.")
@_folder_option
@store_options
@look_options
def prune(job: str | None, *, keep: int | None, damaged: bool, dry_run: bool, **asked: Any) -> int:
    """Remove snapshots of JOB from its folder; the newest that verifies always stays."""
    if keep is None and not damaged:
        raise UsageError("prune needs to know what may go", hint="--keep N, --damaged, or both")
    output = Output(asked)
    with output.answering():
        found = find_snapshots(job, asked)
        if keep is not None and found.is_running:
            raise UsageError(
                f"job {found.job!r} runs and removes its old snapshots by itself",
                hint="--damaged alone, or --snapshot-keep N at its next launch",
            )
        going = _going(found, keep=keep, damaged=damaged)
        swept: tuple[str, ...] = ()
        if not dry_run:
            gone = set(found.catalogue.remove({entry.name for entry, _ in going}))
            going = [(entry, reason) for entry, reason in going if entry.name in gone]
            swept = found.catalogue.sweep(live=()) if damaged else ()
        removed = [
            Removed(name=entry.name, bytes=entry.bytes, reason=reason) for entry, reason in going
        ]
        removed += [Removed(name=name, bytes=None, reason="left unfinished") for name in swept]
        names = {entry.name for entry, _ in going}
        kept = [entry.name for entry in found.catalogue.entries() if entry.name not in names]
        if output.as_json:
            output.say(pruned_json(found.job, removed, kept=kept, is_dry=dry_run))
        else:
            output.show(
                pruned_lines(
                    removed, kept=kept, is_dry=dry_run, cells=output.cells, glyphs=output.glyphs
                )
            )
    return ExitCode.DONE


def _going(found: Snapshots, *, keep: int | None, damaged: bool) -> list[tuple[SnapshotEntry, str]]:
    """What may go and why, newest first."""
    entries = found.catalogue.entries()
    going: list[tuple[SnapshotEntry, str]] = []
    if keep is not None:
        newest = found.catalogue.newest()
        beyond = beyond_newest(entries, newest, keep=keep)
        going += [(entry, f"older than the newest {keep}") for entry in beyond]
    if damaged:
        chosen = {entry.name for entry, _ in going}
        checked = [found.catalogue.verify(e) for e in entries if e.name not in chosen]
        going += [(e, e.reason) for e in checked if e.state is SnapshotState.DAMAGED]
    return sorted(going, key=lambda each: each[0].name, reverse=True)
