"""Claims about the exchange: one set of bits whatever the processes, shares, types and timing."""

from collections.abc import Sequence

import pytest
import torch

from easyscale.errors import ScriptError
from easyscale.model import Span
from easyscale.runtime import siblings, tree
from easyscale.runtime.buckets import TensorLayout
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Group
from easyscale.runtime.headers import FRAME_BYTES, Operation, OperationKind
from easyscale.runtime.partials import Partials
from easyscale.runtime.record import Record
from tests.support import members

SHAPES = ((3, 5), (), (0, 2), (17,), (2, 3, 4, 2))
LAYOUTS = {
    "one": [[0, 1, 2, 3, 4, 5]],
    "halves of 8": [[0, 1, 2, 3], [4, 5, 6, 7]],
    "halves swapped": [[4, 5, 6, 7], [0, 1, 2, 3]],
    "quarters shuffled": [[4, 5], [0, 1], [6, 7], [2, 3]],
    "unequal": [[0, 1, 2, 3, 4], [5, 6, 7]],
    "scattered": [[0, 3, 5], [1, 2, 6], [4, 7]],
    "one idle": [[0, 1, 2, 3, 4, 5, 6, 7], []],
    "two idle": [[], [2, 0, 1, 3, 4], [], [5, 6]],
    "threes": [[0], [1], [2]],
}


def bits(tensor: torch.Tensor | None) -> bytes | None:
    return (
        None
        if tensor is None
        else tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    )


def parameters(dtype: torch.dtype) -> list[torch.nn.Parameter]:
    made = [torch.zeros(shape, dtype=dtype) for shape in SHAPES]
    made[-1] = made[-1].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(tensor) for tensor in made]


def buffers(seed: int) -> list[torch.Tensor]:
    return [torch.full((3,), 0.5 + seed), torch.tensor(seed), torch.tensor([True, False, True])]


def layout_of(dtype: torch.dtype) -> TensorLayout:
    named = [(f"p{index}", parameter) for index, parameter in enumerate(parameters(dtype))]
    return TensorLayout.of(named, [(f"b{i}", b) for i, b in enumerate(buffers(0))])


def leaf(rank: int, step: int, dtype: torch.dtype) -> list[torch.Tensor | None]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    values: list[torch.Tensor | None] = []
    for index, parameter in enumerate(parameters(dtype)):
        shape = parameter.shape
        value = torch.randn(shape, generator=generator, dtype=torch.complex64) * 10 ** (rank % 5)
        value = torch.where(value.real < -0.5, -0.0 * value.abs(), value)
        value = value if dtype.is_complex else value.real
        value = torch.empty_like(parameter.detach()).copy_(value)
        # Absent in some ranks, in all ranks, in none.
        absent = (index == 1 and rank % 2) or index == 3 - step % 2
        values.append(None if absent else value)
    return values


def alone(n: int, step: int, dtype: torch.dtype) -> list[bytes | None]:
    partials = Partials(n)
    for rank in range(n):
        partials.push(rank, leaf(rank, step, dtype), factor=1 / n)
    return [bits(gradient) for gradient in partials.take()]


def cpu(count: int) -> list[torch.device]:
    return [torch.device("cpu")] * count


def spans_of(shares: Sequence[Sequence[int]], n: int) -> tuple[tuple[Span, ...], ...]:
    return tuple(tree.maximal_subtrees(share, n) for share in shares)


def note(payload: bytes = b"") -> Note:
    return Note(newest=members.FIRST, payload=payload)


def size_of(shares: Sequence[Sequence[int]]) -> int:
    return sum(len(share) for share in shares)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.complex64), ids=str)
@pytest.mark.parametrize("name", LAYOUTS)
def test_any_layout_gives_the_bits_of_one_process(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "CELL_ELEMENTS", 3)  # several cells even of these buckets
    shares = LAYOUTS[name]
    n = size_of(shares)

    def body(group: Group) -> list[list[bytes | None]]:
        exchange = Exchange(group, layout=layout_of(dtype), n=n, bucket_elements=20)
        seen = []
        for step in range(2):
            partials = Partials(n)
            for rank in shares[group.rank]:
                partials.push(rank, leaf(rank, step, dtype), factor=1 / n)
            before = {span: [bits(sum_) for sum_ in partials.sums(span)] for span in partials.held}
            record = exchange.step(
                Operation(OperationKind.STEP, step, spans_of(shares, n)),
                partials,
                note(f"metrics of {group.rank}".encode()),
                buffers=buffers(step) if 0 in shares[group.rank] else None,
                wait=members.WAIT,
            )
            if group.size > 1:
                assert before == {
                    span: [bits(sum_) for sum_ in partials.sums(span)] for span in partials.held
                }
            assert record.payloads == tuple(
                f"metrics of {rank}".encode() for rank in range(group.size)
            )
            assert [bits(b) for b in record.buffers(cpu(3))] == [bits(b) for b in buffers(step)]
            gradients = record.gradients(cpu(len(SHAPES)))
            for parameter, gradient in zip(parameters(dtype), gradients, strict=True):
                parameter.grad = gradient  # torch refuses another type or shape
                assert gradient is None or gradient.stride() == parameter.stride()
            seen.append([bits(gradient) for gradient in gradients])
        exchange.close()
        return seen

    expected = [alone(n, step, dtype) for step in range(2)]
    for seen in members.run_members(len(shares), body):
        assert seen == expected


def test_parameters_without_elements_are_no_reason_to_send() -> None:
    def body(group: Group) -> list[int]:
        layout = TensorLayout.of([("empty", torch.zeros(0, 3))], [])
        exchange = Exchange(group, layout=layout, n=2)
        partials = Partials(2)
        partials.push(group.rank, [torch.zeros(0, 3)])
        operation = Operation(OperationKind.STEP, 0, ((Span(0, 1),), (Span(1, 2),)))
        record = exchange.step(operation, partials, note(), buffers=None, wait=members.WAIT)
        exchange.close()
        (gradient,) = record.gradients(cpu(1))
        assert gradient is not None
        return list(gradient.shape)

    assert members.run_members(2, body) == [[0, 3]] * 2


def test_clipping_in_place_never_reaches_the_record() -> None:
    shares = LAYOUTS["halves of 8"]

    def body(group: Group) -> tuple[list[bytes | None], list[bytes | None]]:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8)
        record = step_of(exchange, group, shares, 0)
        first = record.gradients(cpu(len(SHAPES)))
        before = [bits(gradient) for gradient in first]
        for gradient in first:
            if gradient is not None:
                gradient.mul_(1e-3)
        exchange.close()
        return before, [bits(gradient) for gradient in record.gradients(cpu(len(SHAPES)))]

    for before, after in members.run_members(2, body):
        assert before == after


def step_of(exchange: Exchange, group: Group, shares: Sequence[Sequence[int]], step: int) -> Record:
    n = size_of(shares)
    partials = Partials(n)
    for rank in shares[group.rank]:
        partials.push(rank, leaf(rank, step, torch.float32), factor=1 / n)
    return exchange.step(
        Operation(OperationKind.STEP, step, spans_of(shares, n)),
        partials,
        note(),
        buffers=buffers(step) if 0 in shares[group.rank] else None,
        wait=members.WAIT,
    )


def test_a_weighted_step_is_divided_once() -> None:
    shares = LAYOUTS["scattered"]

    def body(group: Group) -> bool:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8)
        record = step_of(exchange, group, shares, 0)
        whole = record.gradients(cpu(len(SHAPES)))
        record.divide_(3.0)
        record.divide_(3.0)
        divided = record.gradients(cpu(len(SHAPES)))
        exchange.close()
        return all(
            bits(one) == bits(None if two is None else two / 3.0)
            for one, two in zip(divided, whole, strict=True)
        )

    assert members.run_members(3, body) == [True, True, True]


@pytest.mark.parametrize("sizes", ((0, 0, 0), (5, 4 * FRAME_BYTES, 0), (2040, 2020, 2000)))
def test_payloads_of_any_size_reach_everybody(sizes: tuple[int, ...]) -> None:
    payloads = tuple(bytes([65 + index]) * size for index, size in enumerate(sizes))

    def body(group: Group) -> tuple[bytes, ...]:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8)
        operation = Operation(OperationKind.EVALUATION, 7)
        record = exchange.gather(operation, note(payloads[group.rank]), wait=members.WAIT)
        exchange.close()
        return record.payloads

    assert members.run_members(3, body) == [payloads] * 3


def test_a_record_is_served_in_a_group_of_another_size() -> None:
    shares = LAYOUTS["quarters shuffled"]
    kept: list[Record] = []

    def first(group: Group) -> list[bytes | None]:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8, bucket_elements=20)
        record = step_of(exchange, group, shares, 3)
        kept.append(record)
        exchange.close()
        return [bits(gradient) for gradient in record.gradients(cpu(len(SHAPES)))]

    expected = members.run_members(4, first)[0]

    def second(group: Group) -> list[bytes | None]:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8, bucket_elements=20)
        if group.rank == 1:
            record = kept[0]
            exchange.serve_record(record, [0, 2], wait=members.WAIT)
        else:
            record = exchange.receive_record(1, wait=members.WAIT)
        exchange.close()
        assert record.position == 3
        assert len(record.payloads) == 4
        assert [bits(b) for b in record.buffers(cpu(3))] == [bits(b) for b in buffers(3)]
        return [bits(gradient) for gradient in record.gradients(cpu(len(SHAPES)))]

    assert members.run_members(3, second) == [expected] * 3


def test_processes_in_different_operations_are_named() -> None:
    def body(group: Group) -> str:
        exchange = Exchange(group, layout=layout_of(torch.float32), n=8)
        kind = OperationKind.EVALUATION if group.rank == 1 else OperationKind.END
        with pytest.raises(ScriptError) as caught:
            exchange.gather(Operation(kind, 4), note(), wait=members.WAIT)
        return caught.value.message

    said = "node-0/cpu:0 has come to end 4, node-1/cpu:0 to evaluation 4"
    assert members.run_members(2, body) == [said] * 2


def test_the_first_parameter_that_differs_is_named() -> None:
    def body(group: Group) -> str:
        tensor = torch.zeros(3, 2 + group.rank // 2)
        layout = TensorLayout.of([("same", torch.zeros(2)), ("weight", tensor)], [])
        exchange = Exchange(group, layout=layout, n=8)
        with pytest.raises(ScriptError) as caught:
            exchange.gather(Operation(OperationKind.EVALUATION, 0), note(), wait=members.WAIT)
        return caught.value.message

    for message in members.run_members(3, body):
        assert "parameter 1: 'weight' float32[3, 2] with strides [2, 1] here, " in message
        assert "'weight' float32[3, 3] with strides [3, 1] there" in message
        assert "node-2/cpu:0 there" in message


def test_a_gradient_of_another_type_than_its_parameter_is_refused() -> None:
    def body(group: Group) -> str:
        layout = TensorLayout.of([("weight", torch.zeros(3, dtype=torch.bfloat16))], [])
        exchange = Exchange(group, layout=layout, n=2)
        partials = Partials(2)
        partials.push(group.rank, [torch.zeros(3)])
        operation = Operation(OperationKind.STEP, 0, ((Span(0, 1),), (Span(1, 2),)))
        with pytest.raises(ScriptError) as caught:
            exchange.step(operation, partials, note(), buffers=None, wait=members.WAIT)
        return caught.value.message

    for message in members.run_members(2, body):
        assert "the gradient of 'weight' is torch.float32, the parameter bfloat16" in message
