"""What `job.loader` returns: the steps of an epoch, or the plain batches of an evaluation."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph
from easyscale.runtime.data import SampleOrder
from easyscale.runtime.feed import Feed, Request
from easyscale.runtime.registry import refuse_process_group
from easyscale.runtime.step import Step
from easyscale.runtime.training import SourcePlace, Training

if TYPE_CHECKING:
    from easyscale.runtime.team import Team


class Loader:
    """Iterating over it gives the steps of the running epoch; its `next()` is the safe point."""

    def __init__(
        self,
        dataset: Dataset[Any],
        *,
        training: Training,
        team: "Team",
        order: SampleOrder,
        feed: Feed,
    ) -> None:
        self.dataset = dataset
        self.batch_size = order.batch_size
        self._training = training
        self._team = team
        self._order = order
        self._feed = feed

    def __len__(self) -> int:
        """Global steps per epoch."""
        return self._order.steps

    def __iter__(self) -> Iterator[Step]:
        return self._steps(SourcePlace.of_caller())

    def _steps(self, began_at: SourcePlace) -> Iterator[Step]:
        training, order = self._training, self._order
        if not training.epoch_open:
            raise ScriptError(
                f"the loader at {began_at} is iterated over outside of an epoch",
                hint="for epoch in job.epochs(10): for step in loader: ...",
                see=Paragraph.LOOPS,
            )
        if training.pass_open:
            raise ScriptError(
                f"the loader at {began_at} begins a second pass in epoch {training.place.epoch}; "
                "the place in the data is one epoch and one step index",
                hint="one `for step in loader` in each epoch; job.evaluate for anything else",
            )
        self._begin_pass()
        epoch = training.place.epoch
        for index in range(training.place.index, order.steps):
            training.close_step()
            if training.recorder is not None and training.recorder.boundary(training.place.step):
                self._team.end()
                raise SystemExit(0)  # a compared run has no need of what the script does later
            refuse_process_group()
            self._team.boundary()
            opened = training.open_step(began_at, is_shared=self._team.is_launched)
            yield Step(
                training=training,
                team=self._team,
                index=index,
                opened=opened,
                fetch=partial(self._fetch, epoch, index),
            )
        training.close_pass()

    def evaluation_batches(self) -> tuple[Feed, list[tuple[int, ...]]]:
        """Give the batches as they are: each sample once, in order."""
        order = self._order
        if order.shuffle:
            raise ScriptError(
                "job.evaluate was given a loader that shuffles; its results come in sample order",
                hint="job.loader(dataset, batch_size=..., shuffle=False)",
                see=Paragraph.EVALUATION,
            )
        starts = range(0, order.length, order.batch_size)
        batches = [
            tuple(range(start, min(start + order.batch_size, order.length))) for start in starts
        ]
        if order.drop_last and len(batches[-1]) < order.batch_size:
            batches.pop()
        return self._feed, batches

    def _begin_pass(self) -> None:
        training, order = self._training, self._order
        if order.steps == 0:
            n = training.settings.logical_workers
            raise ScriptError(
                f"the loader has no step: {order.length} samples over {n} logical workers with "
                f"drop_last leave no batch of {order.batch_size}",
                hint="a smaller batch_size, or drop_last=False",
            )
        training.pass_open = True
        training.steps_per_epoch = order.steps
        training.batch_size = order.batch_size
        training.keep_data_equal(
            {
                "samples": order.length,
                "batch_size": order.batch_size,
                "shuffle": order.shuffle,
                "drop_last": order.drop_last,
            }
        )

    def _fetch(self, epoch: int, index: int, rank: int) -> Any:  # noqa: ANN401
        request = self._request(epoch, index, rank)
        planned = self._team.ranks
        if rank not in planned:  # taken over in this step only
            return self._feed.fetch_here(request)
        return self._feed.fetch(request, lambda: self._rest(epoch, index, rank, planned))

    def _rest(
        self, epoch: int, index: int, rank: int, planned: tuple[int, ...]
    ) -> Iterable[Request]:
        """Requests of this process from one on to the end of the epoch."""
        for later in range(index, self._order.steps):
            for other in planned:
                if later > index or other >= rank:
                    yield self._request(epoch, later, other)

    def _request(self, epoch: int, index: int, rank: int) -> Request:
        samples = tuple(self._order.batch(epoch, index, rank))
        return Request(rank, "sample", (epoch,), samples)
