"""A slot that computes other bits is refused at once, where waiting for it would be in vain."""

import pytest
from msgspec.structs import replace

from easyscale.job_status import Glance, SlotFacts
from easyscale_cli.commands.migrate import OtherKind, check_kind
from tests.unit.views import status_states as states


def slot(place: str, kind: str) -> SlotFacts:
    node, _, name = place.partition("/")
    return SlotFacts(node=node, slot=name, kind=kind, state="in_use")


def glance(*slots: SlotFacts) -> Glance:
    status = states.two_by_four("")
    job = replace(status.job, id="j")
    return Glance(status=replace(status, job=job, slots=slots))


A, B = slot("a/cpu:0", "cpu avx2"), slot("b/cpu:0", "cpu avx512")


def test_a_target_of_another_kind_is_named() -> None:
    with pytest.raises(OtherKind, match="b is of kind cpu avx512, job 'j' of kind cpu avx2"):
        check_kind(glance(A, B), [A], "b")


@pytest.mark.parametrize(
    "seen",
    [
        glance(A, slot("b/cpu:0", "cpu avx2 (cpu avx512)")),
        glance(A, slot("b/cpu:0", "")),
        glance(A, B, slot("b/cpu:1", "cpu avx2")),
    ],
    ids=["another name", "a slot that starts", "one of two that fits"],
)
def test_what_can_or_may_take_over_is_asked(seen: Glance) -> None:
    check_kind(seen, [A], "b")
