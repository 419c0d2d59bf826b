"""The gradient of the last micro-step of a process is lost."""

from easyscale.runtime.step import StepWork

_finish = StepWork.finish


def finish(self: StepWork, rank: int) -> None:
    if not self.todo:
        self.clear_gradients()
    _finish(self, rank)


StepWork.finish = finish  # type: ignore[method-assign]
