"""Where two recorded runs first differ."""

import struct
from pathlib import Path

import msgspec
import pytest

from easyscale.agent.verify.comparison import compare, first_value, unequal_reports
from easyscale.recording import Boundary, Evaluated, Kept, MicroStep, Point, Reduced, Run, Stage


def run(steps: int = 3, ranks: int = 2) -> Run:
    micro_steps = {
        (step, rank): MicroStep(
            step=step,
            rank=rank,
            batch=f"batch {step} {rank}",
            reports={"loss": "0x1.0p+0"},
            gradients={"w": f"w {step} {rank}", "b": f"b {step} {rank}"},
            outside={},
        )
        for step in range(steps)
        for rank in range(ranks)
    }
    return Run(
        micro_steps=micro_steps,
        outside={key: {} for key in micro_steps},
        reduced={step: Reduced(step=step, gradients={"w": f"w {step}"}) for step in range(steps)},
        boundaries={
            step: Boundary(step=step, state={"w": f"w {step}", "b": "b"})
            for step in range(steps + 1)
        },
        kept={},
        operators=(),
        clock_reads=(),
        loaders=(),
        scripts=(),
    )


def changed(one: Run, step: int, rank: int, **changes: object) -> Run:
    key = (step, rank)
    entry = msgspec.structs.replace(one.micro_steps[key], **changes)
    return msgspec.structs.replace(one, micro_steps={**one.micro_steps, key: entry})


def test_equal_runs_do_not_differ() -> None:
    assert compare(run(), run()) is None


def test_a_shorter_run_is_compared_as_far_as_it_goes() -> None:
    assert compare(run(steps=5), run(steps=2)) is None


def test_the_first_unequal_gradient_is_named_with_step_and_rank() -> None:
    other = changed(run(), 1, 1, gradients={"w": "w 1 1", "b": "other"})
    found = compare(run(), changed(other, 2, 0, gradients={"w": "x", "b": "y"}))
    assert found is not None
    assert found.point == Point(1, Stage.GRADIENT, 1, "b")
    assert found.same_batch


def test_an_unequal_batch_comes_before_what_follows_from_it() -> None:
    other = changed(run(), 1, 1, batch="other", gradients={"w": "x", "b": "y"})
    found = compare(run(), other)
    assert found is not None
    assert found.point == Point(1, Stage.BATCH, 1, "batch")
    assert not found.same_batch
    assert found.then == ("2 of 2 gradients of rank 1",)


def test_a_state_that_differs_belongs_to_the_step_before_its_boundary() -> None:
    other = run()
    other.boundaries[2] = Boundary(step=2, state={"w": "other", "b": "b"})
    found = compare(run(), other)
    assert found is not None
    assert found.point == Point(1, Stage.STATE, -1, "w")


def evaluated(one: Run, number: int, *results: str, state: str = "w") -> Run:
    entry = Evaluated(step=1, number=number, state={"w": state}, results=results)
    return msgspec.structs.replace(one, evaluations={**one.evaluations, (1, number): entry})


def test_the_first_unequal_result_of_an_evaluation_is_named_with_its_batch() -> None:
    fixed = evaluated(evaluated(run(), 0, "a", "b"), 1, "a", "b")
    assert compare(fixed, evaluated(evaluated(run(), 0, "a", "b"), 1, "a", "b")) is None
    found = compare(fixed, evaluated(evaluated(run(), 0, "a", "b"), 1, "a", "x"))
    assert found is not None
    assert found.point == Point(1, Stage.EVALUATION, -1, "evaluate[1][1]")
    shorter = compare(fixed, evaluated(evaluated(run(), 0, "a"), 1, "a"))
    assert shorter is not None
    assert shorter.point.name == "evaluate[0][1]"


def test_results_of_other_weights_are_no_difference_of_their_own() -> None:
    found = compare(evaluated(run(), 0, "a"), evaluated(run(), 0, "x", state="other"))
    assert found is not None
    assert found.point == Point(1, Stage.STATE, -1, "w")


def test_a_state_that_follows_from_an_evaluation_comes_after_it() -> None:
    other = evaluated(run(), 0, "x")
    other.boundaries[2] = Boundary(step=2, state={"w": "other", "b": "b"})
    found = compare(evaluated(run(), 0, "a"), other)
    assert found is not None
    assert found.point.stage is Stage.EVALUATION


def test_a_state_that_was_built_otherwise_comes_before_all_steps() -> None:
    other = run()
    other.boundaries[0] = Boundary(step=0, state={"w": "other", "b": "b"})
    found = compare(run(), other)
    assert found is not None
    assert found.point.step == -1


def test_workers_of_one_run_that_disagree_are_a_difference() -> None:
    torn = Point(1, Stage.STATE, -1, "w")
    found = compare(run(), msgspec.structs.replace(run(), torn=(torn,)))
    assert found is not None
    assert found.point == torn


def test_a_report_alone_is_no_difference_of_bits() -> None:
    other = changed(run(), 1, 1, reports={"loss": "0x1.0p+0", "took": "0x2.0p+0"})
    assert compare(run(), other) is None
    assert unequal_reports(run(), other) == ("took",)


def kept(folder: Path, name: str, dtype: str, shape: tuple[int, ...], data: bytes) -> Kept:
    (folder / name).write_bytes(data)
    return Kept(point=Point(0, Stage.STATE, -1, "w"), dtype=dtype, shape=shape, file=name)


@pytest.mark.parametrize(
    ("dtype", "form", "values", "bits"),
    [
        ("float32", "f", (1.0, 1.0000001), ("0x3f800000", "0x3f800001")),
        ("float64", "d", (1.0, 2.0), ("0x3ff0000000000000", "0x4000000000000000")),
        ("int64", "q", (3, 4), ("0x0000000000000003", "0x0000000000000004")),
    ],
)
def test_the_first_unequal_element_is_shown_with_its_bits(
    tmp_path: Path, dtype: str, form: str, values: tuple[float, float], bits: tuple[str, str]
) -> None:
    same = [1] * 4
    one = struct.pack(f"<6{form}", *same, values[0], 7)
    two = struct.pack(f"<6{form}", *same, values[1], 8)
    found = first_value(
        kept(tmp_path, "one", dtype, (2, 3), one),
        kept(tmp_path, "two", dtype, (2, 3), two),
        fixed=tmp_path,
        other=tmp_path,
    )
    assert found is not None
    assert found.index == (1, 1)
    assert (found.expected_bits, found.got_bits) == bits


def test_bfloat16_is_read_as_the_upper_half_of_a_float(tmp_path: Path) -> None:
    one, two = b"\x80\x3f", b"\x00\x40"
    found = first_value(
        kept(tmp_path, "one", "bfloat16", (1,), one),
        kept(tmp_path, "two", "bfloat16", (1,), two),
        fixed=tmp_path,
        other=tmp_path,
    )
    assert found is not None
    assert (found.expected, found.got) == ("1", "2")


def test_tensors_of_other_shapes_have_no_first_element(tmp_path: Path) -> None:
    assert (
        first_value(
            kept(tmp_path, "one", "int8", (1,), b"1"),
            kept(tmp_path, "two", "int8", (2,), b"12"),
            fixed=tmp_path,
            other=tmp_path,
        )
        is None
    )
