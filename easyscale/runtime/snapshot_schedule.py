"""When a worker that is main writes a snapshot, and under which name."""

import time
from pathlib import Path

from easyscale.model import GenerationNumber
from easyscale.runtime.session import Session
from easyscale.runtime.snapshots import Origin, SnapshotWriter
from easyscale.runtime.state import State
from easyscale.runtime.training import Training


class SnapshotSchedule:
    """The snapshots of one worker: every so many steps or seconds, one at a time."""

    def __init__(self, training: Training, session: Session) -> None:
        self._training = training
        self._session = session
        self._writer = SnapshotWriter(session.say)
        self._last_step = 0
        self._last_s = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the boundary that training stands at is one to keep."""
        settings, step = self._session.settings, self._training.place.step
        if self._writer.is_busy or step == self._last_step:
            return False
        by_steps, by_s = settings.snapshot_every_steps, settings.snapshot_every_s
        return (by_steps is not None and step % by_steps == 0) or (
            by_s is not None and time.monotonic() - self._last_s >= by_s
        )

    def skip_known(self) -> None:
        """Where training stands came from a snapshot or from a peer: it is not written again."""
        self._last_step = max(self._last_step, self._training.place.step)

    def begin(
        self, state: State, generation: GenerationNumber, *, pause_s: float, last: bool
    ) -> None:
        """Write `state` in the background, after the snapshot before."""
        settings = self._session.settings
        self._last_step = self._training.place.step
        self._last_s = time.monotonic()
        origin = Origin(
            folder=Path(settings.snapshot_dir),
            job_id=settings.job_id,
            worker=self._session.worker,
            generation=generation,
        )
        self._writer.begin(state, origin, pause_s=pause_s, last=last)

    def finish(self) -> bool:
        """Wait until what was begun is durable or given up; tell whether the last is durable."""
        self._writer.finish()
        return not self._writer.has_failed
