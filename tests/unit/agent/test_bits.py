"""What `doctor --bits` makes of what it measured."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from easyscale.agent.checkup.doctor_report import Check, Level
from easyscale.agent.events import Slot
from easyscale.agent.verify import bits
from easyscale.agent.verify.kinds import (
    BetweenKinds,
    Kind,
    Measured,
    OnOneKind,
    capability_of,
    kinds_at_d2,
    kinds_at_hand,
    with_kind,
)
from easyscale.agent.verify.levels import (
    cost_of,
    judge_alone,
    judge_devices,
    judge_kinds,
    judge_layouts,
    judge_pinned,
)
from easyscale.agent.verify.origins import Origin, digest_at, leading_to, origin
from easyscale.agent.verify.rehearsal import Outcome, RehearsalSettings
from easyscale.agent.verify.scenes import fixed_scene
from easyscale.agent.verify.verification import Played
from easyscale.agent.verify.verified import Verdict, Verified
from easyscale.messages import ScriptTarget
from easyscale.model import Determinism
from easyscale.recording import (
    Boundary,
    Entry,
    MicroStep,
    Operator,
    Point,
    Reduced,
    Run,
    Stage,
    encode_entry,
    read_run,
)
from tests.unit.views import verify_states as states

POINT = Point(0, Stage.GRADIENT, 3, "model.0.weight")
OPERATOR = Operator(
    name="aten.addmm.default", inputs=("i",), outputs=("o",), place="/home/me/train.py:31"
)
DIFFER = BetweenKinds(kinds=("avx512", "avx2"), point=POINT, origin=Origin(OPERATOR))
EQUAL = BetweenKinds(kinds=("avx512", "avx2"), point=None)


def test_equal_runs_are_good_at_d0_and_at_d1() -> None:
    checks = judge_layouts(states.SAME)
    assert [(check.name, check.level) for check in checks] == [
        ("bits at D0", Level.GOOD),
        ("bits at D1", Level.GOOD),
    ]


def test_a_script_that_trains_no_step_is_not_said_to_keep_its_bits() -> None:
    (check,) = judge_layouts(msgspec.structs.replace(states.SAME, steps=0))
    assert check.level is Level.WARNING
    assert "trains no step" in check.facts


@pytest.mark.parametrize(
    ("verified", "name"),
    [
        (states.DIFFERS, "bits at D1"),
        (states.NOT_COMPARABLE, "bits at D0"),
        (states.NOT_FINISHED, "bits"),
    ],
)
def test_a_level_that_is_not_kept_is_a_fault_with_its_cure(verified: object, name: str) -> None:
    fault = judge_layouts(verified)[-1]  # type: ignore[arg-type]
    assert (fault.name, fault.level) == (name, Level.FAULT)
    assert fault.cure.startswith("easyscale verify train.py")


def test_the_cause_stands_in_the_fault() -> None:
    assert (
        "the time of day: train.py:40 asks time.time"
        in judge_layouts(states.NOT_COMPARABLE)[0].facts
    )


def test_two_kinds_that_differ_name_the_first_operator_and_its_line() -> None:
    check = judge_kinds(DIFFER)
    assert check.facts == (
        "avx512 and avx2 differ first at the gradient of model.0.weight of rank 3, step 0, in "
        "aten.addmm.default (train.py:31): D1 keeps to one kind"
    )
    assert check.level is Level.GOOD


def test_two_kinds_that_do_not_differ_are_said_not_to() -> None:
    assert "the same bits, even unpinned" in judge_kinds(EQUAL).facts


def test_weights_that_are_built_otherwise_have_no_step() -> None:
    point = Point(-1, Stage.STATE, -1, "model.0.weight")
    told = judge_kinds(msgspec.structs.replace(DIFFER, point=point, origin=None)).facts
    assert "model.0.weight before the first step, by nothing that an operator" in told


def test_what_no_operator_made_is_said_to_come_from_elsewhere() -> None:
    shown = msgspec.structs.replace(DIFFER, origin=Origin(OPERATOR, is_maker=False))
    told = judge_kinds(shown).facts
    assert "in what aten.addmm.default (train.py:31) is given: no operator of torch" in told


# --- what D2 costs --------------------------------------------------------------------------------


def recorded(folder: Path, *seconds: float, first_step: int = 2) -> Measured:
    """A run as workers write it: a step each, whose only micro-step took so long."""
    folder.mkdir()
    entries: list[Entry] = [
        MicroStep(
            step=step, rank=0, batch="b", reports={}, gradients={}, outside={}, seconds=taken_s
        )
        for step, taken_s in enumerate(seconds, start=first_step)
    ]
    (folder / "a.record").write_bytes(b"".join(map(encode_entry, entries)))
    return Measured(kind="avx2", run=read_run(folder))


def test_what_d2_costs_is_a_ratio_of_measured_medians(tmp_path: Path) -> None:
    before = recorded(tmp_path / "d1", 0.010, 0.011, 0.010, 0.010, 0.5)
    after = recorded(tmp_path / "d2", 0.020, 0.021, 0.021, 0.022, 0.021)
    assert cost_of(before, after) == (
        "on avx2 a micro-step takes 2.10 x its time (21 ms, unpinned 10 ms)"
    )


@pytest.mark.parametrize(
    "after",
    [(0.0101,) * 5, (0.009, 0.0100, 0.012, 0.013, 0.013)],
    ids=["little", "no more than micro-steps of one run differ"],
)
def test_a_difference_within_noise_is_no_cost(tmp_path: Path, after: tuple[float, ...]) -> None:
    before = recorded(tmp_path / "d1", 0.0101, 0.010, 0.0101, 0.011, 0.0099)
    told = cost_of(before, recorded(tmp_path / "d2", *after))
    assert told.startswith("at no cost that could be measured on avx2 (a micro-step ")


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (0.01,) * 5), ((0.01,) * 5, ()), ((0.0,) * 5, (0.0,) * 5), ((0.01,) * 3, (0.01,) * 5)],
    ids=["none unpinned", "none pinned", "a clock that stands still", "too few"],
)
def test_no_cost_is_claimed_from_no_measurement(
    tmp_path: Path, before: tuple[float, ...], after: tuple[float, ...]
) -> None:
    told = cost_of(recorded(tmp_path / "d1", *before), recorded(tmp_path / "d2", *after))
    assert told == "what it costs was not measured: too few micro-steps once warm"


def test_micro_steps_that_also_pay_for_what_is_made_once_are_not_measured(tmp_path: Path) -> None:
    assert recorded(tmp_path / "cold", 1.0, 1.0, first_step=0).times is None
    times = recorded(tmp_path / "run", 1.0, 1.0, *(0.01,) * 4, first_step=0).times
    assert times is not None
    assert times.high_s == pytest.approx(0.01)


def test_the_cost_stands_in_the_line_of_d2() -> None:
    assert judge_pinned(EQUAL, "at some cost").facts == (
        "the same bits on avx512 and on avx2, at some cost"
    )
    alone = judge_alone(Kind(name="H100", slots=(Slot(name="cuda:0"),)), "at some cost")
    assert alone.facts == "not compared: one kind of device is at hand (H100); at some cost"


def test_kinds_that_differ_under_d2_are_a_warning_with_a_cure() -> None:
    check = judge_pinned(DIFFER, "at some cost")
    assert check.level is Level.WARNING
    assert "aten.addmm.default" in check.facts
    assert "--determinism same-kind" in check.cure


@pytest.mark.parametrize(
    ("flags", "capability"),
    [
        ("fma avx2 sse4_1", "avx2"),
        ("fma avx2 avx512f avx512vl avx512bw avx512dq", "avx512"),
        ("fma avx2 avx512f", "avx2"),
        ("sse2", ""),
    ],
)
def test_the_capability_is_read_from_the_flags_of_the_processor(
    tmp_path: Path, flags: str, capability: str
) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: fpu {flags}\n\n")
    assert capability_of(tmp_path / "cpuinfo") == capability


def test_a_machine_without_that_file_has_no_lower_kind(tmp_path: Path) -> None:
    assert capability_of(tmp_path / "none") == ""


# --- where it begins ------------------------------------------------------------------------------


def operator(
    name: str, inputs: tuple[str, ...], outputs: tuple[str, ...], *, rank: int = -1
) -> Operator:
    return Operator(name=name, inputs=inputs, outputs=outputs, place="/x/train.py:7", rank=rank)


#: One run with another: `a1` is what the first has where the other one has `a2`.
CALLS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("aten.uniform_", (), ("dead ?",)),
    ("aten.zero_", ("dead ?",), ("zero",)),
    ("aten.mm", ("rows", "zero"), ("product ?",)),
    ("aten.sum", ("rows",), ("beside ?",)),
    ("aten.add_", ("zero", "product ?"), ("gradient ?",)),
    ("aten.sub_", ("gradient ?", "zero"), ("weight ?",)),
    ("aten.log", ("beside ?",), ("logged ?",)),
]


def logs(*calls: tuple[str, tuple[str, ...], tuple[str, ...]]) -> list[list[Operator]]:
    return [
        [
            operator(
                name,
                tuple(text.replace("?", which) for text in inputs),
                tuple(text.replace("?", which) for text in outputs),
            )
            for name, inputs, outputs in calls
        ]
        for which in "12"
    ]


def test_a_value_is_followed_back_to_the_operator_that_made_it_so() -> None:
    one, other = logs(*CALLS)
    assert origin(one, other, target="weight 1") == Origin(one[2])
    assert origin(one, other, target="product 1") == Origin(one[2])
    assert origin(one, other, target="logged 1") == Origin(one[3])


def test_without_a_value_to_follow_it_is_what_the_last_unequal_operator_gave() -> None:
    one, other = logs(*CALLS)
    assert origin(one, other, target=None) == Origin(one[3])
    assert origin(one[:6], other[:6], target="nowhere") == Origin(one[2])


def test_what_no_operator_made_is_shown_by_the_first_that_was_given_it() -> None:
    one, other = logs(
        ("aten.lift", ("array ?",), ("array ?",)), ("aten.neg", ("array ?",), ("x ?",))
    )
    assert origin(one, other, target="x 1") == Origin(one[0], is_maker=False)
    assert origin(one, one, target="x 1") is None


def test_calls_are_compared_as_long_as_they_are_the_same_ones() -> None:
    one, other = logs(*CALLS)
    other[2] = operator("aten.bmm", (), ("product 2",))
    assert origin(one, other, target="weight 1") == Origin(one[0])


@pytest.mark.parametrize(
    ("point", "digest"),
    [
        (Point(0, Stage.STATE, -1, "model.w"), "s"),
        (Point(0, Stage.REDUCED, -1, "model.w"), "r"),
        (Point(0, Stage.GRADIENT, 3, "model.w"), "g"),
        (Point(0, Stage.BATCH, 3, "batch"), None),
        (Point(0, Stage.EVALUATION, -1, "evaluate[0][0]"), None),
        (Point(7, Stage.STATE, -1, "model.w"), None),
    ],
)
def test_what_is_followed_is_what_the_run_has_at_the_point(
    point: Point, digest: str | None
) -> None:
    step = MicroStep(step=0, rank=3, batch="b", reports={}, gradients={"model.w": "g"}, outside={})
    run = msgspec.structs.replace(
        run_of("s"),
        micro_steps={(0, 3): step},
        reduced={0: Reduced(step=0, gradients={"model.w": "r"})},
    )
    assert digest_at(point, run) == digest


LOG = (
    operator("aten.top", (), ()),
    operator("aten.inside", (), (), rank=3),
    operator("aten.outer", (), ()),
)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        (Point(-1, Stage.STATE, -1, "w"), 1),
        (Point(2, Stage.BATCH, 3, "batch"), 1),
        (Point(2, Stage.GRADIENT, 3, "w"), 2),
        (Point(2, Stage.REDUCED, -1, "w"), 3),
        (Point(2, Stage.EVALUATION, -1, "evaluate[0][0]"), 3),
        (Point(2, Stage.STATE, -1, "w"), 3),
    ],
)
def test_only_operators_before_the_point_can_have_led_to_it(point: Point, count: int) -> None:
    assert leading_to(point, LOG) == LOG[:count]


# --- all kinds ------------------------------------------------------------------------------------

GPUS = tuple(
    Slot(name=f"cuda:{number}", kind=kind)
    for number, kind in enumerate(("L4", "A100", "A100", "H100"))
)


def test_every_kind_at_hand_is_one_to_compare_and_the_first_slots_comes_first() -> None:
    kinds = kinds_at_hand(GPUS, "avx512")
    assert [(kind.name, kind.count) for kind in kinds] == [("L4", 1), ("A100", 2), ("H100", 1)]


def test_of_a_processor_the_next_lower_kind_is_played() -> None:
    slots = (Slot(name="cpu:0"), Slot(name="cpu:1"))
    assert [kind.name for kind in kinds_at_hand(slots, "avx512")] == ["avx512", "avx2"]
    own, played = kinds_at_hand(slots, "avx2")
    assert (own.told, played.told["ATEN_CPU_CAPABILITY"]) == ({}, "default")
    assert [kind.name for kind in kinds_at_hand(slots, "")] == ["this processor"]


def test_a_played_processor_is_none_at_d2_where_the_pins_stand_over_what_it_is_told(
    tmp_path: Path,
) -> None:
    own, again = kinds_at_d2(kinds_at_hand((Slot(name="cpu:0"),), "avx2"))
    assert (own.name, own.is_repeat, again.name, again.is_repeat) == (
        "avx2", False, "avx2, again", True,
    )  # fmt: skip
    host = with_kind(settings(tmp_path), again, Determinism.HETEROGENEOUS)
    assert host.environment == settings(tmp_path).environment
    gpus = kinds_at_hand(GPUS, "avx512")
    assert kinds_at_d2(gpus) == gpus


CPUS = {
    ("D1", "avx2"): "a", ("D1", "sse"): "b", ("D2", "avx2"): "x", ("D2", "avx2, again"): "x"
}  # fmt: skip


@pytest.mark.parametrize(("again", "level"), [("x", Level.GOOD), ("y", Level.WARNING)])
def test_on_one_processor_d2_claims_a_repeated_run_and_no_other_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str, level: Level
) -> None:
    bench = Bench(CPUS | {("D2", "avx2, again"): again, ("D1", ""): "a"})
    bench.patch(monkeypatch)
    monkeypatch.setattr(bits, "capability_of", lambda: "avx2")
    asked = msgspec.structs.replace(settings(tmp_path), slots=(Slot(name="cpu:0"),))
    checks = {c.name: c for c in bits.examine(asked, lambda run, step: None, steps=6)}
    check = checks["bits at D2"]
    assert check.level is level
    assert check.facts.startswith("pinned to the baseline, a repeated run has ")
    assert ("other bits" in check.facts) is (level is Level.WARNING)
    assert ("another processor is not at hand" in check.facts) is (level is Level.GOOD)
    assert "sse" not in check.facts


def run_of(digest: str) -> Run:
    """A run of one step, whose state at the end has this digest."""
    run = Run(
        micro_steps={}, outside={}, reduced={}, boundaries={}, kept={}, operators=(),
        clock_reads=(), loaders=(), scripts=(),
    )  # fmt: skip
    return msgspec.structs.replace(run, boundaries={1: Boundary(step=1, state={"model.w": digest})})


@dataclass
class Bench:
    """Plays the runs of `examine`: digests by level and kind, in the order in which they ran."""

    digests: Mapping[tuple[str, str], str]
    fails_preloaded: bool = False
    played: list[str] = field(default_factory=list)
    preloads: list[tuple[str, ...]] = field(default_factory=list)

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bench = self

        @contextlib.contextmanager
        def opened(settings: RehearsalSettings, *, names: object = ()) -> Iterator[object]:
            @dataclass
            class Hosts:
                settings: RehearsalSettings

            yield Hosts(settings)

        class Verification:
            def __init__(self, hosts: object, what: object, watch: object) -> None:
                preload = hosts.settings.preload  # type: ignore[attr-defined]
                bench.preloads.append(preload)
                self._is_sound = not (bench.fails_preloaded and preload)
                first = hosts.settings.slots[0].kind  # type: ignore[attr-defined]
                run = run_of(bench.digests["D1", first])
                outcome = Outcome(digests=("d",), step=1, seconds=0.0, folder=Path(), notes=())
                self.fixed = Played(scene=fixed_scene(2), outcome=outcome, run=run)

            def answer(self) -> Verified:
                return states.SAME if self._is_sound else states.NOT_FINISHED

        def play(on: OnOneKind, name: str, steps: int, **changes: object) -> Run:
            bench.played.append(name)
            level = name.partition(" ")[0]
            run = run_of(bench.digests[level, on.kind])
            log = (operator("aten.mm.default", ("i",), (bench.digests[level, on.kind],)),)
            return msgspec.structs.replace(run, operators=log)

        monkeypatch.setattr(bits, "opened", opened)
        monkeypatch.setattr(bits, "Verification", Verification)
        monkeypatch.setattr(OnOneKind, "_play", play)


def settings(folder: Path) -> RehearsalSettings:
    return RehearsalSettings(
        script=ScriptTarget(path="train.py"), python="python", environment={},
        working_directory=folder, folder=folder, logical_workers=2, seed=None,
        determinism=Determinism.SAME_KIND, threads_per_worker=1, partials="device",
        preload=(), slots=GPUS,
    )  # fmt: skip


THREE = {
    ("D1", "L4"): "a", ("D1", "A100"): "b", ("D1", "H100"): "c",
    ("D2", "L4"): "x", ("D2", "A100"): "x", ("D2", "H100"): "y",
}  # fmt: skip


def examined(bench: Bench, folder: Path, **words: tuple[str, ...]) -> list[Check]:
    return list(bits.examine(settings(folder), lambda run, step: None, steps=6, **words))


def test_with_three_kinds_each_is_compared_with_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(THREE)
    bench.patch(monkeypatch)
    checks = examined(bench, tmp_path)
    kinds = [check.facts for check in checks if check.name == "kinds"]
    assert [facts.partition(" differ")[0] for facts in kinds] == ["L4 and A100", "L4 and H100"]
    assert all("model.w, step 0, in aten.mm.default (train.py:7)" in facts for facts in kinds)
    equal, differs = (check for check in checks if check.name == "bits at D2")
    assert (equal.level, differs.level) == (Level.GOOD, Level.WARNING)
    assert equal.facts.startswith("the same bits on L4 and on A100, ")
    assert differs.facts.startswith("L4 and H100 differ first at model.w, step 0, in aten.mm")
    assert checks[-1].facts == (
        "at D0 and D1 1 GPU (L4); apart from 2 GPUs (A100); apart from 1 GPU (H100). "
        "Equal at D2: 1 GPU (L4) + 2 GPUs (A100); apart from 1 GPU (H100); "
        "a job trains on one of these kinds at a time"
    )


def test_as_many_runs_are_planned_as_are_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(THREE)
    bench.patch(monkeypatch)
    examined(bench, tmp_path)
    planned = [name for name in bench.played if "looking for" not in name]
    # The fixed run, a repeated one and three with changes come before them.
    assert bits.planned_runs(settings(tmp_path), steps=6) == 5 + len(planned)


def test_a_guess_that_lets_no_run_come_to_its_end_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(THREE, fails_preloaded=True)
    bench.patch(monkeypatch)
    checks = examined(bench, tmp_path, guessed=("sklearn.datasets",))
    assert bench.preloads == [("sklearn.datasets",), ()]
    assert checks[0].name == "bits at D0"


@pytest.mark.parametrize(
    ("is_baseline", "at_d2"),
    [
        (True, "by what it pins every x86-64 slot with AVX2 and this torch, not compared here"),
        (False, "as at D1: nothing is pinned on this architecture"),
    ],
)
def test_cpu_slots_of_one_kind_are_counted_at_each_level(*, is_baseline: bool, at_d2: str) -> None:
    kinds = kinds_at_hand((Slot(name="cpu:0"), Slot(name="cpu:1")), "avx2")
    check = judge_devices(kinds, (), is_baseline=is_baseline)
    assert check.facts == f"at D0 and D1 2 CPU slots (avx2); at D2 {at_d2}"


def test_every_verdict_is_judged() -> None:
    for verdict in Verdict:
        assert judge_layouts(msgspec.structs.replace(states.NOT_FINISHED, verdict=verdict))
