"""Claims about an exchange that starts during the last backward: same bits, wrong starts redone."""

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from easyscale.model import Span
from easyscale.runtime import tree
from easyscale.runtime.buckets import TensorLayout, plan_buckets
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Group
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.overlap import Overlap
from easyscale.runtime.partials import Partials
from easyscale.runtime.reduction import Fill
from tests.support import members

N = 6
LAYOUTS = {
    "halves": [[0, 1, 2, 3], [4, 5]],
    "threes": [[0, 3], [1, 4], [2, 5]],
    "one idle": [[0, 1, 2], [], [5, 4, 3]],
}
Micro = Callable[[torch.nn.Module, torch.Tensor, int], None]


class Net(torch.nn.Module):
    """Layers of which one is skipped by odd ranks, one is used twice and one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(5, 9)
        self.skipped = torch.nn.Linear(9, 9)
        self.twice = torch.nn.Linear(9, 9)
        self.never = torch.nn.Linear(2, 2)
        self.frozen = torch.nn.Linear(9, 9).requires_grad_(False)
        self.last = torch.nn.Linear(9, 3)
        # Members are threads here and share torch's default generator.
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)

    def forward(self, x: torch.Tensor, rank: int) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        if rank % 2 == 0:
            x = torch.tanh(self.skipped(x))
        x = self.frozen(torch.tanh(self.twice(torch.tanh(self.twice(x)))))
        out: torch.Tensor = self.last(x)
        return out


def plain(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
    torch.autograd.backward(F.mse_loss(net(x, rank), x[:, :3]))


def two_backwards(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
    plain(net, x, rank)
    plain(net, x + 1, rank)


def changed_by_hand(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
    plain(net, x, rank)
    for parameter in net.parameters():
        if parameter.grad is not None:
            parameter.grad.mul_(2.0)


def replaced_by_hand(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
    plain(net, x, rank)
    parameter = next(net.parameters())
    parameter.grad = torch.ones_like(parameter)


def bits(tensor: torch.Tensor | None) -> bytes | None:
    return None if tensor is None else tensor.numpy().tobytes()


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 5, generator=torch.Generator().manual_seed(100 * step + rank))


def take_gradients(parameters: Sequence[torch.nn.Parameter]) -> list[torch.Tensor | None]:
    gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return gradients


def alone(steps: Sequence[Micro], net: torch.nn.Module | None = None) -> list[list[bytes | None]]:
    net = net or Net()
    parameters = list(net.parameters())
    seen = []
    for number, micro in enumerate(steps):
        partials = Partials(N)
        for rank in range(N):
            micro(net, batch(number, rank), rank)
            partials.push(rank, take_gradients(parameters), factor=1 / N)
        seen.append([bits(gradient) for gradient in partials.take()])
    return seen


class Trainer:
    """One member that runs steps as the runtime does; remembers which began early and dirty."""

    def __init__(
        self, group: Group, shares: Sequence[Sequence[int]], *, watch: bool = True
    ) -> None:
        self.group = group
        self.net = Net()
        self.parameters = list(self.net.parameters())
        self.layout = TensorLayout.of(self.net.named_parameters(), [])
        self.exchange = Exchange(group, layout=self.layout, n=N, bucket_elements=60)
        self.shares = shares
        self.watch = watch
        self.early: list[bool] = []
        self.dirty: list[bool] = []

    def step(self, number: int, micro: Micro) -> list[bytes | None]:
        mine = self.shares[self.group.rank]
        partials = Partials(N)
        spans: tuple[tuple[Span, ...], ...] = tuple(
            tree.maximal_subtrees(share, N) for share in self.shares
        )
        operation = Operation(OperationKind.STEP, number, spans)
        for rank in mine[:-1]:
            micro(self.net, batch(number, rank), rank)
            partials.push(rank, take_gradients(self.parameters), factor=1 / N)
        last = mine[-1] if mine else None
        self.early.append(self.watch and self.exchange._may_overlap)
        watched = (
            self.exchange.overlap(
                operation, partials, rank=last, factor=1 / N, parameters=self.parameters
            )
            if self.watch
            else None
        )
        if last is not None:
            with watched or nullcontext():
                micro(self.net, batch(number, last), last)
            partials.defer(last, take_gradients(self.parameters), factor=1 / N)
        record = self.exchange.step(
            operation,
            partials,
            Note(newest=members.FIRST),
            buffers=None,
            wait=members.WAIT,
        )
        self.dirty.append(watched is not None and watched.is_dirty)
        cpu = [torch.device("cpu")] * len(self.parameters)
        return [bits(gradient) for gradient in record.gradients(cpu)]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("wrong", (two_backwards, changed_by_hand, replaced_by_hand))
def test_an_early_exchange_gives_the_same_bits_and_a_wrong_start_is_redone(
    name: str, wrong: Micro
) -> None:
    steps = (plain, plain, wrong, wrong, plain, plain)
    shares = LAYOUTS[name]

    def body(group: Group) -> tuple[list[list[bytes | None]], list[bool], list[bool]]:
        trainer = Trainer(group, shares)
        seen = [trainer.step(number, micro) for number, micro in enumerate(steps)]
        trainer.exchange.close()
        return seen, trainer.early, trainer.dirty

    expected = alone(steps)
    results = members.run_members(len(shares), body)
    for rank, (seen, early, dirty) in enumerate(results):
        assert seen == expected
        # The first step of a generation, and steps after a wrong one, start when all is there.
        assert early == [False, True, True, False, False, True]
        assert dirty == [False, False, bool(shares[rank]), bool(shares[rank]), False, False]


def test_members_that_do_not_start_early_are_waited_for() -> None:
    shares = LAYOUTS["halves"]
    steps = (plain, plain, plain)

    def body(group: Group) -> list[list[bytes | None]]:
        trainer = Trainer(group, shares)
        seen = [trainer.step(0, plain)]
        trainer.watch = group.rank == 0
        seen += [trainer.step(number, plain) for number in (1, 2)]
        trainer.exchange.close()
        return seen

    expected = alone(steps)
    for seen in members.run_members(2, body):
        assert seen == expected


def test_buckets_travel_while_the_last_micro_step_still_runs() -> None:
    shares = LAYOUTS["halves"]
    arrived = threading.Barrier(2, timeout=10)

    def body(group: Group) -> bool:
        trainer = Trainer(group, shares)
        trainer.step(0, plain)
        reduced = threading.Event()
        reduce = trainer.exchange._reduction.reduce  # type: ignore[union-attr]

        def noted(index: int, layout: Sequence[Sequence[Span]], fill: object) -> None:
            reduce(index, layout, fill)  # type: ignore[arg-type]
            reduced.set()

        trainer.exchange._reduction.reduce = noted  # type: ignore[union-attr,method-assign]
        seen_during_backward = []

        def slow(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
            def hook(gradient: torch.Tensor) -> None:
                if rank == shares[group.rank][-1]:
                    arrived.wait()
                    seen_during_backward.append(reduced.wait(10))

            # Runs when backward reaches the input, with every parameter but the first's behind it.
            x.requires_grad_()
            hidden = torch.tanh(net.first(x))  # type: ignore[operator]
            hidden.register_hook(hook)  # type: ignore[no-untyped-call]
            loss = net.last(net.twice(hidden)).square().mean()  # type: ignore[operator]
            torch.autograd.backward(loss)

        trainer.step(1, slow)
        trainer.exchange.close()
        return seen_during_backward == [True]

    assert members.run_members(2, body) == [True, True]


def through_data(gradient: torch.Tensor) -> None:
    gradient.data.clamp_(-1e-3, 1e-3)


def through_numpy(gradient: torch.Tensor) -> None:
    array = gradient.numpy()
    array *= 0.5


def turned_round(gradient: torch.Tensor) -> None:
    gradient.data.copy_(gradient.data.flip(0))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("change", (through_data, through_numpy, turned_round))
def test_a_gradient_changed_behind_autograds_back_after_it_was_read_is_exchanged_again(
    name: str, change: Callable[[torch.Tensor], None]
) -> None:
    shares = LAYOUTS[name]
    owner = {rank: member for member, share in enumerate(shares) for rank in share}
    read = [threading.Event() for _ in shares]
    all_read = threading.Barrier(sum(bool(share) for share in shares), timeout=10)

    def changed(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
        plain(net, x, rank)
        if rank == shares[owner[rank]][-1]:
            assert read[owner[rank]].wait(10)
            all_read.wait()
        for parameter in net.parameters():
            if parameter.grad is not None:
                change(parameter.grad)

    def without_waiting(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
        plain(net, x, rank)
        for parameter in net.parameters():
            if parameter.grad is not None:
                change(parameter.grad)

    def body(group: Group) -> tuple[list[list[bytes | None]], list[bool]]:
        trainer = Trainer(group, shares)
        reduction = trainer.exchange._reduction
        assert reduction is not None
        reduce = reduction.reduce

        def noted(index: int, layout: Sequence[Sequence[Span]], fill: Fill) -> None:
            reduce(index, layout, fill)
            read[group.rank].set()

        seen = [trainer.step(0, plain)]
        reduction.reduce = noted  # type: ignore[method-assign]
        seen += [trainer.step(1, changed), trainer.step(2, plain), trainer.step(3, plain)]
        trainer.exchange.close()
        return seen, trainer.dirty

    expected = alone((plain, without_waiting, plain, plain))
    for rank, (seen, dirty) in enumerate(members.run_members(len(shares), body)):
        assert seen == expected
        assert dirty == [False, bool(shares[rank]), False, False]


def test_a_gradient_is_compared_only_once_it_has_been_read_to_its_end() -> None:
    """A thread that is reading while the micro-step ends could else have read half of a change."""
    parameter = torch.nn.Parameter(torch.zeros(3))
    (bucket,) = plan_buckets(TensorLayout.of([("p", parameter)], []))
    begun, go_on = threading.Event(), threading.Event()

    class Slow(torch.Tensor):
        def clone(self, **_: object) -> torch.Tensor:
            begun.set()
            assert go_on.wait(10)
            return torch.full((3,), 7.0)

    overlap = Overlap([bucket], [parameter], rank=0, factor=1.0)
    with overlap:
        parameter.sum().backward()  # type: ignore[no-untyped-call]
    overlap._leaf[0] = torch.ones(3).as_subclass(Slow)
    views = bucket.views(torch.zeros(3))
    reader = threading.Thread(target=overlap.fill, args=(0, Partials(1), Span(0, 1), views, 1))
    reader.start()
    assert begun.wait(10)
    main = threading.Thread(target=overlap.finish, args=([parameter.grad],))
    main.start()
    go_on.set()
    for thread in (reader, main):
        thread.join(10)
        assert not thread.is_alive()
    assert overlap.is_dirty
    assert views[0].tolist() == [7.0, 7.0, 7.0]


def test_the_bucket_that_is_ready_last_is_read_after_the_micro_step_and_not_copied() -> None:
    parameter = torch.nn.Parameter(torch.zeros(3))
    (bucket,) = plan_buckets(TensorLayout.of([("p", parameter)], []))

    class Once(torch.Tensor):
        def clone(self, **_: object) -> torch.Tensor:
            raise AssertionError("it was read while it could still be changed")

    overlap = Overlap([bucket], [parameter], rank=0, factor=1.0)
    with overlap:
        parameter.sum().backward()  # type: ignore[no-untyped-call]
    overlap._leaf[0] = torch.ones(3).as_subclass(Once)
    views = bucket.views(torch.zeros(3))

    def read() -> None:
        if overlap.wait_for(0):
            overlap.fill(0, Partials(1), Span(0, 1), views, 1)

    reader = threading.Thread(target=read)
    reader.start()
    overlap.finish([parameter.grad])
    reader.join(10)
    assert not reader.is_alive()
    assert views[0].tolist() == [1.0, 1.0, 1.0]


def by_hand_where_nothing_is_trained(net: torch.nn.Module, x: torch.Tensor, rank: int) -> None:
    plain(net, x, rank)
    frozen = next(net.parameters())
    if rank in {3, 5}:  # the last micro-step of a member: it could not be told before
        frozen.grad = torch.full_like(frozen, 1.0 + rank)


@pytest.mark.parametrize("name", LAYOUTS)
def test_frozen_parameters_do_not_travel_unless_somebody_gives_them_a_gradient(name: str) -> None:
    steps = (plain, plain, by_hand_where_nothing_is_trained, plain)
    shares = LAYOUTS[name]

    def body(group: Group) -> tuple[list[list[bytes | None]], list[int]]:
        trainer = Trainer(group, shares)
        trainer.net.first.requires_grad_(False)
        reduction = trainer.exchange._reduction
        assert reduction is not None
        travelled: list[int] = []
        reduce = reduction.reduce
        frozen = next(
            number
            for number, bucket in enumerate(reduction.buckets)
            if any(piece.index == 0 for piece in bucket.pieces)
        )
        assert {piece.index for piece in reduction.buckets[frozen].pieces} == {0, 1}

        def counted(index: int, layout: Sequence[Sequence[Span]], fill: Fill) -> None:
            travelled.append(index)
            reduce(index, layout, fill)

        reduction.reduce = counted  # type: ignore[method-assign]
        seen, counts = [], []
        for number, micro in enumerate(steps):
            seen.append(trainer.step(number, micro))
            counts.append(travelled.count(frozen))
        trainer.exchange.close()
        return seen, counts

    net = Net()
    net.first.requires_grad_(False)
    expected = alone(steps, net)
    for seen, counts in members.run_members(len(shares), body):
        assert seen == expected
        before, still, given, after = counts
        assert (before, still) == (0, 0)
        assert 0 < given == after
