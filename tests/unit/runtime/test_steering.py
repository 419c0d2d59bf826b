"""What processes compare in each step: values of optimizers, and a sample of what is trained."""

import pytest
import torch
from torch import nn

from easyscale.errors import ScriptError
from easyscale.runtime.registry import Registry
from easyscale.runtime.steering import final_text, refuse_difference, steering_text

PLACES = ("a/cpu:0", "b/cpu:0")


def registry() -> Registry:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(70, 40), nn.BatchNorm1d(40), nn.Conv2d(2, 3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = [torch.zeros(3, dtype=torch.bfloat16), torch.zeros((), dtype=torch.complex64)]
    return Registry.of({"model": model, "optimizer": optimizer, "average": average})


def test_equal_processes_say_the_same_however_their_tensors_lie() -> None:
    one, other = registry(), registry()
    for name, tensor in other.trained_tensors.items():
        if tensor.dim() == 4:
            tensor.data = tensor.data.to(memory_format=torch.channels_last)
        elif name == "model.0.weight":
            tensor.data = tensor.data.t().contiguous().t()
    for step in range(2 * len(one.trained_tensors)):
        assert steering_text(one, step=step) == steering_text(other, step=step)
    assert final_text(one) == final_text(other)


@pytest.mark.parametrize("name", list(registry().trained_tensors))
def test_a_tensor_that_only_one_process_wrote_is_seen_and_named(name: str) -> None:
    one, other = registry(), registry()
    other.trained_tensors[name].data += 1
    count = len(one.trained_tensors)
    pairs = [(steering_text(one, step=k), steering_text(other, step=k)) for k in range(count)]
    for pair in (
        next(pair for pair in pairs if len(set(pair)) > 1),
        (final_text(one), final_text(other)),
    ):
        with pytest.raises(ScriptError, match="only one process has seen") as caught:
            refuse_difference(pair, PLACES)
        assert caught.value.message.startswith(
            f"{name} has come to differ between a/cpu:0 and b/cpu:0: "
        )


def test_every_tensor_has_its_turn_and_then_all_again() -> None:
    one = registry()
    found = [one.in_turn(step) for step in range(2 * len(one.trained_tensors))]
    names = list(one.trained_tensors)
    expected = [(name, turn) for turn in range(2) for name in names]
    assert [(each[0], each[2]) for each in found if each is not None] == expected
    assert Registry.of({}).in_turn(3) is None


def test_samples_come_to_every_number_of_a_tensor() -> None:
    one = Registry.of({"weight": torch.zeros(5000), "table": torch.zeros(4, 600)})
    for index in (0, 1023, 1024, 4999):
        other = Registry.of({"weight": torch.zeros(5000), "table": torch.zeros(4, 600)})
        other.trained_tensors["weight"][index] = 1
        other.trained_tensors["table"][index % 4, index % 600] = 1
        seen = {
            step % 2
            for step in range(30)
            if steering_text(one, step=step) != steering_text(other, step=step)
        }
        assert seen == {0, 1}


def test_a_value_of_an_optimizer_is_named_with_both_values() -> None:
    one, other = registry(), registry()
    other.optimizers["optimizer"].param_groups[0]["lr"] = 0.2
    with pytest.raises(ScriptError, match=r"\[0\].lr is 0.1 on a/cpu:0 and 0.2 on b/cpu:0"):
        refuse_difference((steering_text(one, step=0), steering_text(other, step=0)), PLACES)
