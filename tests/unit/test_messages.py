"""What agent and worker say survives the line it travels in, whatever training came to."""

import math

import pytest

from easyscale.messages import StepReport, decode_from_worker, encode_line
from easyscale.model import Position, metrics_as_json, metrics_as_numbers


def report(loss: float) -> StepReport:
    return StepReport(
        position=Position(1),
        step=1,
        steps=None,
        epoch=0,
        epochs=None,
        metrics=metrics_as_json({"loss": loss}),
        step_s=None,
        micro_step_s=None,
        exchange_wait_s=None,
        data_wait_s=None,
        samples_per_step=None,
    )


@pytest.mark.parametrize("loss", (0.5, math.inf, -math.inf, math.nan))
def test_a_loss_that_diverges_is_understood_as_what_it_became(loss: float) -> None:
    heard = decode_from_worker(encode_line(report(loss)))
    assert isinstance(heard, StepReport)
    assert str(metrics_as_numbers(heard.metrics)["loss"]) == str(loss)
