"""What a worker reports of its memory, for whoever plans with its slot."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from easyscale.messages import StepReport
from easyscale.runtime import progress
from easyscale.runtime.progress import Progress
from easyscale.runtime.timing import Timing


def reporting(weights: int) -> tuple[Progress, list[StepReport]]:
    said: list[StepReport] = []
    things = SimpleNamespace(parameters={"w": torch.zeros(weights, requires_grad=True)})
    training: Any = SimpleNamespace(
        device=torch.device("cpu"),
        place=SimpleNamespace(position=4, step=4, epoch=0),
        settings=SimpleNamespace(logical_workers=8, offload_partials=False),
        timing=Timing(),
        total_steps=None,
        epochs=None,
        metrics={},
        batch_size=None,
        things=things,
    )
    session: Any = SimpleNamespace(say=said.append)
    return Progress(training, session), said


def test_a_report_says_what_is_free_what_was_taken_and_what_one_partial_sum_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = [1_000, 250_000]
    monkeypatch.setattr(progress, "free_bytes", lambda _: 77_000)
    monkeypatch.setattr(progress, "taken_bytes", lambda _: taken.pop(0))
    worker, said = reporting(10)
    worker.report_step()
    assert (said[0].free_bytes, said[0].partial_bytes) == (77_000, 40)
    assert said[0].taken_bytes == 249_000  # what any worker has at first is no news


def test_what_is_not_known_is_not_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "free_bytes", lambda _: None)
    monkeypatch.setattr(progress, "taken_bytes", lambda _: None)
    worker, said = reporting(10)
    worker.report_step()
    assert (said[0].free_bytes, said[0].taken_bytes) == (None, None)
