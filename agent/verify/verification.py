"""Whether a script keeps its bits: the fixed run, then every other one held against it, then why.

Where a run differs the fixed one is repeated first: a script that differs from itself cannot be
compared, and what it differs by is found by holding one influence after the other still.
"""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from easyscale.agent import words
from easyscale.agent.verify import comparison, diagnosis
from easyscale.agent.verify.comparison import Divergence
from easyscale.agent.verify.diagnosis import Suspect
from easyscale.agent.verify.rehearsal import Hosts, Outcome, Rehearsal, RunFailed
from easyscale.agent.verify.scenes import (
    Scene,
    again_scene,
    brief_scenes,
    changing_scenes,
    fixed_scene,
)
from easyscale.agent.verify.verified import (
    Cause,
    Diagnosis,
    Failed,
    FirstDifference,
    RunRow,
    Verdict,
    Verified,
)
from easyscale.recording import USER_STATE, Kept, Point, Recording, Run, Stage, read_run

#: Told of each row: when its run starts, as its steps pass, and when it is over.
Watch = Callable[[RunRow], None]


class VerificationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared."""

    steps: int
    #: Workers of the widest layout.
    width: int
    keep_going: bool
    #: Only so many kinds of runs that each of the parts of D1 is in one of them.
    brief: bool = False


def planned_rows(n: int, settings: VerificationSettings) -> list[RunRow]:
    """The runs there will be if the job has as many steps as were asked for."""
    scenes = _scenes(n, settings, steps=settings.steps)
    return [_row(scene) for scene in (fixed_scene(n), *scenes)]


def _scenes(n: int, settings: VerificationSettings, *, steps: int) -> tuple[Scene, ...]:
    scenes = changing_scenes(n, steps=steps, width=settings.width)
    return brief_scenes(scenes) if settings.brief else scenes


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """A run that came to its end, with what was written down."""

    scene: Scene
    outcome: Outcome
    run: Run

    @property
    def row(self) -> RunRow:
        return _row(self.scene, digest=self.digest, seconds=self.outcome.seconds)

    @property
    def digest(self) -> str:
        return self.outcome.digests[0]

    def other_digest(self, digest: str) -> str | None:
        """One that some worker of this run ended with and that is not `digest`."""
        return next((other for other in self.outcome.digests if other != digest), None)


class Verification:
    """One comparison; `answer` goes through all of it."""

    def __init__(self, hosts: Hosts, settings: VerificationSettings, watch: Watch) -> None:
        self._hosts = hosts
        self._settings = settings
        self._watch = watch
        self._n = hosts.settings.logical_workers
        self._rows: list[RunRow] = []
        self._batches = 0
        self._notes: dict[str, None] = {}
        self._number = 0
        self._reference = ""
        #: What the others are held against, once it came to its end.
        self.fixed: Played | None = None
        #: Runs whose bits are those of the fixed one.
        self._equal: list[Run] = []

    def answer(self) -> Verified:
        """Run and compare everything; never raises what the script did."""
        scene = fixed_scene(self._n)
        try:
            fixed = self._play(scene, steps=self._settings.steps)
        except RunFailed as failed:
            return self._not_finished(scene, failed, left=0)
        self._show(fixed.row)
        self.fixed = fixed
        self._reference = str(fixed.outcome.folder)
        steps = min(self._settings.steps, fixed.outcome.step)
        if steps < self._settings.steps:
            self._notes[f"the job has {steps:,} steps; all of them were compared"] = None
        scenes = _scenes(self._n, self._settings, steps=steps)
        return self._compare_all(fixed, scenes, steps)

    # --- the runs --------------------------------------------------------------------------------

    def _compare_all(self, fixed: Played, scenes: Sequence[Scene], steps: int) -> Verified:
        first: tuple[Played, Divergence] | None = None
        stopped: tuple[Scene, RunFailed] | None = None
        left = 0
        for number, scene in enumerate(scenes):
            try:
                played = self._play(scene, steps=steps)
            except RunFailed as failed:
                stopped = stopped or (scene, failed)
                self._show(_row(scene, same=False))
            else:
                found = self._held_against(fixed, played)
                shown = played.other_digest(fixed.digest) or fixed.digest
                row = msgspec.structs.replace(played.row, digest=shown, same=found is None)
                self._show(row)
                if found is not None and first is None:
                    first = (played, found)
            if (first or stopped) and not self._settings.keep_going:
                left = len(scenes) - number - 1
                break
        if first is not None:
            return self._differs(fixed, *first, left=left)
        if stopped is not None:
            return self._stopped(fixed, *stopped, left=left)
        return self._verified(Verdict.SAME_BITS, digest=fixed.digest, steps=steps)

    def _held_against(self, fixed: Played, played: Played) -> Divergence | None:
        found = comparison.compare(fixed.run, played.run)
        if found is None and played.other_digest(fixed.digest) is not None:
            point = Point(played.outcome.step - 1, Stage.STATE, -1, "the digest of the state")
            found = Divergence(point=point, same_batch=True, then=())
        if found is None:
            self._equal.append(played.run)
            for name in comparison.unequal_reports(fixed.run, played.run):
                said = (
                    f"the reported {name} differs between runs; no batch, gradient or weight does"
                )
                self._notes[said] = None
        return found

    def _play(self, scene: Scene, *, steps: int, **changes: object) -> Played:
        """One run; `changes` go to what its workers are told to write down."""
        self._number += 1
        folder = self._hosts.settings.folder / f"run-{self._number}"
        recording = Recording(folder=str(folder), last_step=steps, reference=self._reference)
        recording = msgspec.structs.replace(recording, **changes)
        self._watch(_row(scene, step=0))
        rehearsal = Rehearsal(self._hosts, scene, recording, number=self._number)
        outcome = rehearsal.play(lambda step: self._watch(_row(scene, step=step)))
        run = read_run(folder)
        self._batches += len(run.micro_steps)
        return Played(scene=scene, outcome=outcome, run=run)

    def _show(self, row: RunRow) -> None:
        self._rows.append(row)
        self._watch(row)

    # --- a difference ----------------------------------------------------------------------------

    def _differs(self, fixed: Played, other: Played, found: Divergence, *, left: int) -> Verified:
        point = found.point
        outside = diagnosis.suspects(point, fixed.run, other.run, equal=self._equal)
        files = fixed.run.scripts
        repeated = self._repeat(fixed, point, outside)
        same_as_itself = comparison.compare(fixed.run, repeated.run) is None
        if not same_as_itself:
            told = self._differs_from_itself(fixed, point)
            verdict = Verdict.NOT_COMPARABLE
        elif other.scene.on_other_host:
            told = diagnosis.of_hash_order(fixed.run, other.run, files)
            verdict = Verdict.BITS_DIFFER
        elif outside:
            told = diagnosis.of_suspect(outside[0], files)
            verdict = Verdict.BITS_DIFFER
        elif point.name.startswith(USER_STATE):
            told = diagnosis.of_job_state(point, files)
            verdict = Verdict.BITS_DIFFER
        else:
            told = self._by_operator(fixed, other, point)
            verdict = Verdict.BITS_DIFFER
        excluded = diagnosis.ruled_out(
            told.cause, same_batch=found.same_batch, comparable=same_as_itself
        )
        told = msgspec.structs.replace(told, ruled_out=excluded)
        shown = outside[0] if outside and told.cause in _OUTSIDE else None
        return self._verified(
            verdict,
            steps=fixed.outcome.step,
            difference=_first_difference(found, other, repeated, shown),
            told=told,
            left=left,
        )

    def _repeat(self, fixed: Played, point: Point, outside: Sequence[Suspect]) -> Played:
        """The fixed run once more, up to the difference, keeping whole what differs there."""
        wanted = [point]
        wanted += [
            Point(one.step, Stage.OUTSIDE, one.rank, one.path)
            for one in outside
            if one.kind == "tensor"
        ]
        steps = min(point.step + 2, fixed.outcome.step)
        return self._play(fixed.scene, steps=max(steps, 1), wanted=tuple(wanted))

    def _differs_from_itself(self, fixed: Played, point: Point) -> Diagnosis:
        """Hold the clock still, then what generators start from, then look at each operator."""
        steps = max(min(point.step + 2, fixed.outcome.step), 1)
        clock = self._twice(fixed.scene, steps, fixed_clock=True)
        if clock is not None:
            return diagnosis.of_clock(clock.clock_reads)
        entropy = self._twice(fixed.scene, steps, fixed_entropy=True)
        if entropy is not None:
            return diagnosis.of_entropy(entropy.clock_reads)
        logs = self._log_operators(fixed.scene, steps, point)
        operator = diagnosis.first_unequal_operator(*(log.operators for log in logs))
        elsewhere = comparison.compare(*logs)
        if operator is None and elsewhere is not None:
            # Chance was the same twice in that micro-step: look where these two differ.
            point = elsewhere.point
            logs = self._log_operators(fixed.scene, steps, point)
            operator = diagnosis.first_unequal_operator(*(log.operators for log in logs))
        if operator is not None:
            return diagnosis.of_operator(operator)
        outside = diagnosis.suspects(point, *logs, equal=())
        generators = [one for one in outside if one.kind == "generator"]
        if generators:
            return diagnosis.of_suspect(generators[0], fixed.run.scripts)
        return diagnosis.unknown(point, comparable=False)

    def _log_operators(self, scene: Scene, steps: int, point: Point) -> tuple[Run, Run]:
        place = (max(point.step, 0), max(point.rank, 0))
        first, second = (self._play(scene, steps=steps, operators_of=place) for _ in range(2))
        return first.run, second.run

    def _twice(self, scene: Scene, steps: int, **changes: object) -> Run | None:
        """The second of two runs with something held still, where the two are equal."""
        first, second = (self._play(scene, steps=steps, **changes) for _ in range(2))
        is_same = comparison.compare(first.run, second.run) is None
        return second.run if is_same else None

    def _by_operator(self, fixed: Played, other: Played, point: Point) -> Diagnosis:
        if point.rank < 0 or point.stage is Stage.BATCH:
            return diagnosis.unknown(point, comparable=True)
        steps = max(min(point.step + 2, fixed.outcome.step), 1)
        place = (point.step, point.rank)
        one = self._play(fixed.scene, steps=steps, operators_of=place)
        with contextlib.suppress(RunFailed):
            two = self._play(other.scene, steps=fixed.outcome.step, operators_of=place)
            found = diagnosis.first_unequal_operator(one.run.operators, two.run.operators)
            if found is not None:
                return diagnosis.of_operator(found)
        return diagnosis.unknown(point, comparable=True)

    # --- no end ----------------------------------------------------------------------------------

    def _stopped(self, fixed: Played, scene: Scene, failed: RunFailed, *, left: int) -> Verified:
        """A run ended early; where two processes build other states, that is a difference."""
        if not scene.on_other_host:
            with contextlib.suppress(RunFailed):
                again = self._play(again_scene(self._n), steps=1)
                if diagnosis.unequal_begin(fixed.run, again.run) is not None:
                    found = comparison.compare(fixed.run, again.run)
                    assert found is not None, "their begin is unequal"
                    return self._differs(fixed, again, found, left=left)
        return self._not_finished(scene, failed, left=left)

    def _not_finished(self, scene: Scene, failed: RunFailed, *, left: int) -> Verified:
        failure = failed.failure
        place = "" if failure is None else f"{Path(failure.file).name}:{failure.line}"
        if not self._rows:
            self._show(_row(scene, same=False))
        return self._verified(
            Verdict.NOT_FINISHED,
            steps=0,
            failed=Failed(
                run=scene.name,
                reason=words.in_a_line(failed.message),
                place=place,
                log=failed.log,
            ),
            left=left,
        )

    def _verified(
        self,
        verdict: Verdict,
        *,
        steps: int,
        digest: str | None = None,
        difference: FirstDifference | None = None,
        told: Diagnosis | None = None,
        failed: Failed | None = None,
        left: int = 0,
    ) -> Verified:
        settings = self._hosts.settings
        return Verified(
            verdict=verdict,
            script=settings.script.name,
            steps=steps,
            asked_steps=self._settings.steps,
            logical_workers=self._n,
            level=settings.determinism.level,
            runs=tuple(self._rows),
            not_started=left,
            batches=self._batches,
            digest=digest,
            first_difference=difference,
            diagnosis=told,
            failed=failed,
            notes=tuple(self._notes),
        )


#: Causes that stand outside of what is registered, so that the thing itself is shown.
_OUTSIDE = frozenset({Cause.UNREGISTERED_STATE, Cause.GLOBAL_COUNTER, Cause.OWN_GENERATOR})
_WHERE = {
    Stage.BATCH: "batch",
    Stage.OUTSIDE: "outside",
    Stage.REPORT: "report",
    Stage.GRADIENT: "gradient",
    Stage.REDUCED: "mean gradient",
    Stage.EVALUATION: "evaluation",
    Stage.STATE: "state",
}


def _row(
    scene: Scene,
    *,
    digest: str | None = None,
    seconds: float | None = None,
    same: bool | None = None,
    step: int | None = None,
) -> RunRow:
    return RunRow(
        name=scene.name,
        layout=scene.layout,
        changes=scene.change,
        digest=digest,
        seconds=seconds,
        same=same,
        step=step,
    )


def _first_difference(
    found: Divergence, other: Played, repeated: Played, outside: Suspect | None
) -> FirstDifference:
    point = found.point
    shown = FirstDifference(
        run=other.scene.name,
        step=point.step,
        rank=point.rank if point.rank >= 0 else None,
        where=_WHERE[point.stage],
        tensor=point.name,
        same_batch=found.same_batch,
        registered=True,
        then=found.then,
    )
    looked_at = point
    if outside is not None:
        looked_at = Point(outside.step, Stage.OUTSIDE, outside.rank, outside.path)
        shown = msgspec.structs.replace(
            shown,
            where="outside",
            tensor=outside.path,
            registered=False,
            as_at_begin=outside.is_as_at_begin,
        )
        if outside.kind in ("int", "float", "len"):
            texts = (diagnosis.shown(text) for text in (outside.expected, outside.got))
            return msgspec.structs.replace(
                shown, **dict(zip(("expected", "got"), texts, strict=True))
            )
    expected, got = _kept(repeated.run, looked_at), _kept(other.run, looked_at)
    if expected is None or got is None:
        return shown
    values = comparison.first_value(
        expected, got, fixed=repeated.outcome.folder, other=other.outcome.folder
    )
    if values is None:
        return shown
    return msgspec.structs.replace(shown, **msgspec.structs.asdict(values))


def _kept(run: Run, point: Point) -> Kept | None:
    """The point itself, or the part of a batch that was kept of it."""
    if point in run.kept:
        return run.kept[point]
    return next(
        (
            run.kept[one]
            for one in sorted(run.kept)
            if (one.step, one.stage, one.rank) == (point.step, point.stage, point.rank)
            and one.name.startswith(f"{point.name}[")
        ),
        None,
    )
