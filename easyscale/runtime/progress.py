"""What one worker says of its progress: its pulse all the time, a report now and then."""

import time

from easyscale.messages import StepReport
from easyscale.model import Position, metrics_as_json
from easyscale.pulse import Phase
from easyscale.runtime.room import free_bytes, partial_bytes, taken_bytes
from easyscale.runtime.session import Session
from easyscale.runtime.timing import middle
from easyscale.runtime.training import Training

#: Progress is reported four times a second at most.
REPORT_INTERVAL_S = 0.25


class Progress:
    """Tells the agent where this worker is."""

    def __init__(self, training: Training, session: Session) -> None:
        self._training = training
        self._session = session
        self._reported_s = 0.0
        #: What any worker has taken before its script made anything.
        self._taken_at_first = taken_bytes(training.device) or 0

    def beat(self, phase: Phase, *, rank: int | None = None) -> None:
        """Write the pulse: shared memory, nobody is waited for."""
        place = self._training.place
        self._session.pulse.beat(phase, position=place.position, step=place.step, rank=rank)

    def report_step(self) -> None:
        """Report the step whose result is held, unless the last report is too fresh."""
        now_s = time.monotonic()
        if now_s - self._reported_s < REPORT_INTERVAL_S:
            return
        self._reported_s = now_s
        training = self._training
        timing, batch = training.timing, training.batch_size
        self._session.say(
            StepReport(
                position=Position(training.place.position),
                step=training.place.step + 1,
                steps=training.total_steps,
                epoch=training.place.epoch,
                epochs=training.epochs,
                metrics=metrics_as_json(training.metrics),
                step_s=middle(timing.steps),
                micro_step_s=timing.micro_steps.settled(),
                exchange_wait_s=middle(timing.exchanges),
                data_wait_s=middle(timing.data),
                samples_per_step=(
                    None if batch is None else batch * training.settings.logical_workers
                ),
                micro_step_spread=timing.micro_steps.spread(),
                micro_step_data_wait_s=middle(timing.delays),
                recent_rank_s=timing.recent_rank_s(),
                free_bytes=free_bytes(training.device),
                partial_bytes=partial_bytes(training),
                taken_bytes=self._taken(),
            )
        )

    def _taken(self) -> int | None:
        """What the job takes of this worker's memory: a newcomer will need as much."""
        taken = taken_bytes(self._training.device)
        return None if taken is None else max(0, taken - self._taken_at_first)
