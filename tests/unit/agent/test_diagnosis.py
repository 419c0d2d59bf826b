"""The likely cause of a difference, from what stood outside of the registered."""

import textwrap
from pathlib import Path

import msgspec
import pytest

from easyscale.agent.verify import diagnosis, source
from easyscale.agent.verify.verified import Cause
from easyscale.recording import MicroStep, Operator, Point, Run, Stage

POINT = Point(1, Stage.GRADIENT, 1, "w")


def run(**outside: tuple[str, str]) -> Run:
    """Each thing outside as it was before the first micro-step and at the point."""
    step = MicroStep(step=0, rank=0, batch="", reports={}, gradients={}, outside={})
    at_point = msgspec.structs.replace(step, step=1, rank=1)
    return Run(
        micro_steps={(0, 0): step, (1, 1): at_point},
        outside={
            (0, 0): {name.replace("__", "."): pair[0] for name, pair in outside.items()},
            (1, 1): {name.replace("__", "."): pair[1] for name, pair in outside.items()},
        },
        reduced={},
        boundaries={},
        kept={},
        operators=(),
        clock_reads=(),
        loaders=(),
        scripts=(),
    )


def named(fixed: Run, other: Run, *equal: Run) -> list[str]:
    return [one.path for one in diagnosis.suspects(POINT, fixed, other, equal=equal)]


def test_what_is_equal_at_the_point_is_no_suspect() -> None:
    same = {"train__calls": ("int 0", "int 5")}
    assert named(run(**same), run(**same)) == []


def test_what_differs_there_is_one_and_generators_come_first() -> None:
    fixed = run(t__n=("int 0", "int 5"), t__rng=("generator a", "generator b"))
    other = run(t__n=("int 0", "int 2"), t__rng=("generator a", "generator c"))
    assert named(fixed, other) == ["t.rng", "t.n"]


def test_what_differed_in_a_run_of_equal_bits_did_no_harm() -> None:
    fixed = run(t__logged=("int 0", "int 5"), t__calls=("int 0", "int 5"))
    other = run(t__logged=("int 0", "int 2"), t__calls=("int 0", "int 2"))
    equal = run(t__logged=("int 0", "int 3"), t__calls=("int 0", "int 5"))
    assert named(fixed, other, equal) == ["t.calls"]


def script(folder: Path, text: str) -> str:
    path = folder / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


NET = """
    import torch
    calls = 0
    rng = make()
    class Net(torch.nn.Module):
        def __init__(self):
            self.scale = torch.ones(1)
        def forward(self, x):
            self.scale = 0.9 * self.scale + 0.1
            return x
    for step in loader:
        calls += 1
"""


@pytest.mark.parametrize(
    ("path", "cause", "evidence", "advice"),
    [
        ("tensor model.scale", Cause.UNREGISTERED_STATE, "train.py:9 writes self.scale",
         'train.py:7: self.register_buffer("scale", torch.ones(1))'),
        ("int train.calls", Cause.GLOBAL_COUNTER, "train.py:12 counts calls", "step.number"),
        ("generator train.rng", Cause.OWN_GENERATOR, "train.py:4 starts rng", "draw from torch"),
    ],
)  # fmt: skip
def test_a_suspect_names_its_cause_its_line_and_what_to_do(
    tmp_path: Path, path: str, cause: Cause, evidence: str, advice: str
) -> None:
    kind, _, path = path.partition(" ")
    suspect = diagnosis.Suspect(
        path=path, expected=f"{kind} 5", got=f"{kind} 2", at_begin=f"{kind} 0", step=1, rank=1
    )
    found = diagnosis.of_suspect(suspect, [script(tmp_path, NET)])
    assert found.cause is cause
    assert found.evidence == (evidence,)
    assert advice in found.advice


def test_a_value_of_the_beginning_is_said_to_be_one(tmp_path: Path) -> None:
    suspect = diagnosis.Suspect(
        path="model.scale", expected="tensor b", got="tensor a", at_begin="tensor a", step=1, rank=1
    )
    assert "its value before step 1" in diagnosis.of_suspect(suspect, []).told


def operator(name: str, inputs: str = "i", outputs: str = "o") -> Operator:
    return Operator(name=name, inputs=(inputs,), outputs=(outputs,), place="/x/train.py:7")


def test_the_first_operator_with_equal_inputs_and_other_outputs_is_found() -> None:
    one = [operator("aten.mm"), operator("aten.add", "i", "1"), operator("aten.sum", "j", "1")]
    two = [operator("aten.mm"), operator("aten.add", "i", "2"), operator("aten.sum", "k", "2")]
    found = diagnosis.first_unequal_operator(one, two)
    assert found is one[1]
    assert diagnosis.of_operator(one[1]).evidence[0].startswith("train.py:7: aten.add")


def test_no_operator_is_blamed_where_its_inputs_differ() -> None:
    one, two = [operator("aten.mm", "i", "1")], [operator("aten.mm", "j", "2")]
    assert diagnosis.first_unequal_operator(one, two) is None


def test_lines_that_go_through_a_set_are_found(tmp_path: Path) -> None:
    file = script(
        tmp_path,
        """
        words = {"a", "b"}
        for word in words:
            pass
        places = {w: n for n, w in enumerate(set(words))}
        fine = sorted({1, 2})
        again = list(words)
        """,
    )
    assert source.set_loops([file]) == ["train.py:3", "train.py:5", "train.py:7"]


def test_a_value_of_the_jobs_state_that_differs_is_shown_where_it_is_written(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("best = 0\nfor _ in job.epochs(2):\n    state.best = max(state.best, best)\n")
    told = diagnosis.of_job_state(Point(3, Stage.STATE, -1, "job.state.best"), [str(script)])
    assert told.told == "not every process puts the same into job.state.best"
    assert told.evidence == ("train.py:3 writes state.best",)
    assert "job.is_main" in told.advice
