"""Watches the outer body of a step in which no micro-step left a gradient for one computed there.

Which batches a process has is a matter of the layout, so a gradient of batches that were taken out
of the inner loop (`list(step)`) would be one too.
"""

import dis
from collections.abc import Callable, Iterable
from types import CodeType, FrameType

import torch

from easyscale.errors import ScriptError
from easyscale.guide import Paragraph


class Asked:
    """Where the batches of a step were asked for."""

    def __init__(self) -> None:
        self._place: tuple[CodeType, int] | None = None
        self._is_one_place = True

    def note(self, frame: FrameType) -> None:
        place = (frame.f_code, frame.f_lasti)
        self._is_one_place = self._place in {None, place}
        self._place = place

    @property
    def is_by_a_loop(self) -> bool:
        """Whether the script's own code ran between one batch and the next, as far as is seen."""
        if self._place is None or not self._is_one_place:
            return True
        code, instruction = self._place
        return dis.opname[code.co_code[instruction]] == "FOR_ITER"


class OuterBody:
    """Hooks on the parameters until the next boundary."""

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        loop: str,
        by_a_loop: bool,
        say: Callable[[str], None],
    ) -> None:
        self._loop = loop
        self._by_a_loop = by_a_loop
        self._say = say
        self._handles = [
            parameter.register_post_accumulate_grad_hook(self._computed)  # type: ignore[no-untyped-call]
            for parameter in parameters
            if parameter.requires_grad and parameter.is_leaf
        ]

    def _computed(self, _parameter: torch.Tensor) -> None:
        self.close()
        if not self._by_a_loop:
            raise ScriptError(
                f"the batches of {self._loop} were taken out of it, and a gradient was computed "
                "afterwards: which batches a process has depends on the layout",
                hint="backward() inside `for batch in step`, once for each logical worker",
                see=Paragraph.LOOPS,
            )
        self._say(
            f"no micro-step of {self._loop} left a gradient, and one was computed after it: what "
            "comes from this process's batches there depends on the layout"
        )

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
