"""What D2 pins, and what makes two slots of one processor differ in kind."""

import pytest

from easyscale.baseline import CHOOSING, CPU_BASELINE, baseline, chosen, is_pinned

PINS = CPU_BASELINE["x86_64"]


@pytest.mark.parametrize("machine", ["x86_64", "AMD64"])
def test_an_x86_server_has_a_baseline_by_either_of_its_names(machine: str) -> None:
    assert baseline(machine) == PINS


def test_an_architecture_without_a_baseline_is_never_pinned() -> None:
    assert baseline("aarch64") == {}
    assert not is_pinned({}, machine="aarch64")


def test_one_missing_pin_leaves_a_library_free() -> None:
    assert is_pinned({**PINS, "HOME": "/"}, machine="x86_64")
    for name in PINS:
        rest = {other: value for other, value in PINS.items() if other != name}
        assert not is_pinned(rest, machine="x86_64")
        assert not is_pinned({**rest, name: "other"}, machine="x86_64")


def test_what_tells_a_library_its_kernels_makes_another_kind() -> None:
    assert chosen({"HOME": "/", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": ""}) == {
        "MKL_CBWR": "COMPATIBLE"
    }
    assert set(PINS) <= set(CHOOSING)
