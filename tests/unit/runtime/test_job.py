"""The training API in one process: its numbers, its gradients, and each refusal in one sentence."""

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed import distributed_c10d, init_process_group
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler, TensorDataset

from easyscale.errors import IncompleteStep, ScriptError
from easyscale.model import Span
from easyscale.runtime import job as jobs
from easyscale.runtime import tree
from easyscale.runtime.fingerprint import fingerprint
from easyscale.runtime.job import Job, init
from easyscale.runtime.step import Step
from easyscale.runtime.team import Alone

Init = Callable[..., Job]


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Init]:
    """A process that has no job yet; torch's switches come back as they were."""
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    monkeypatch.setattr(jobs, "_job", None)
    for owner, name in (
        (torch.distributed, "init_process_group"),
        (distributed_c10d, "rendezvous"),
        (distributed_c10d, "_new_process_group_helper"),
        (nn.parallel.DistributedDataParallel, "__init__"),
        (DistributedSampler, "__init__"),
    ):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    yield init
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def rows(count: int = 24) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 6, generator=generator)
    return TensorDataset(x, torch.randint(0, 3, (count,), generator=generator))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def test_the_gradient_is_the_mean_in_the_trees_order(start: Init) -> None:
    job = start(logical_workers=3)
    model = nn.Linear(6, 3)
    job.register(model=model)
    loader = job.loader(rows(), batch_size=2, shuffle=True)
    twin = nn.Linear(6, 3)
    twin.load_state_dict(model.state_dict())
    for _ in job.epochs(1):
        step = next(iter(loader))
        leaves: dict[Span, list[torch.Tensor]] = {}
        for x, y in step:
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            twin.zero_grad()
            F.cross_entropy(twin(x), y).backward()  # type: ignore[no-untyped-call]
            grads = [p.grad.clone() / 3 for p in twin.parameters() if p.grad is not None]
            leaves[tree.leaf(step.rank)] = [p.mul(1.0) for p in grads]
        # (rank 0 + rank 1) + rank 2, each divided by N before the sum, as DDP does
        for at, parameter in enumerate(model.parameters()):
            zero, one, two = (leaves[tree.leaf(rank)][at] for rank in range(3))
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, zero + one + two, rtol=1e-6, atol=1e-7)
        break


def test_several_backwards_add_up_and_none_gradients_keep_their_meaning(start: Init) -> None:
    job = start(logical_workers=2)
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    job.register(weights=[a, b, c])
    for _ in job.epochs(1):
        for step in job.loader(rows(4), batch_size=2):
            for _ in step:
                a.sum().backward()  # type: ignore[no-untyped-call]
                a.sum().backward()  # type: ignore[no-untyped-call]
                if step.rank == 1:
                    b.sum().backward()  # type: ignore[no-untyped-call]
            assert a.grad is not None
            assert a.grad.tolist() == [2.0, 2.0]
            assert b.grad is not None
            assert b.grad.tolist() == [0.5, 0.5]
            assert c.grad is None


def test_weights_make_a_mean_over_tokens(start: Init) -> None:
    job = start(logical_workers=2)
    weight = nn.Parameter(torch.zeros(1))
    job.register(weights=[weight])
    for _ in job.epochs(1):
        for step in job.loader(rows(2), batch_size=1):
            for _ in step:
                (weight * (1.0 + step.rank)).sum().backward()  # type: ignore[no-untyped-call]
                step.weight(1 + 2 * step.rank)
                step.report(loss=float(step.rank))
            assert weight.grad is not None
            assert weight.grad.item() == (1 * 1.0 + 3 * 2.0) / 4
            assert step.mean("loss") == 3 / 4


def test_weights_divide_complex_gradients_by_their_parts_as_an_exchange_does(start: Init) -> None:
    job = start(logical_workers=2)
    weight = nn.Parameter(torch.zeros(64, dtype=torch.complex64))
    job.register(weights=[weight])
    drawn = torch.randn(2, 64, dtype=torch.complex64, generator=torch.Generator().manual_seed(1))
    for _ in job.epochs(1):
        for step in job.loader(rows(2), batch_size=1):
            for _ in step:
                weight.grad = drawn[step.rank].clone()
                step.weight(11 + 8 * step.rank)
            first, second = torch.view_as_real(drawn)
            assert weight.grad is not None
            assert torch.equal(torch.view_as_real(weight.grad), (first * 11 + second * 19) / 30)


def test_only_logical_rank_0_changes_the_buffers(start: Init) -> None:
    job = start(logical_workers=3)
    model = net()
    norm = model[1]  # type: ignore[index]
    job.register(model=model)
    seen = []
    for _ in job.epochs(1):
        for step in job.loader(rows(), batch_size=4):
            before = kept = bits(norm.running_mean)
            for x, _y in step:
                assert bits(norm.running_mean) == before
                model(x)
                if step.rank == 0:
                    kept = bits(norm.running_mean)
            assert bits(norm.running_mean) == kept
            seen.append(int(norm.num_batches_tracked))
    assert seen == [1, 2]


def test_numbers_of_a_step(start: Init) -> None:
    job = start(logical_workers=2)
    job.register(model=net())
    loader = job.loader(rows(12), batch_size=3)
    assert len(loader) == 2
    seen = []
    for epoch in job.epochs(2):
        for step in loader:
            ranks = []
            for x, _ in step:
                ranks.append(step.rank)
                step.report(count=len(x), rank=step.rank)
            seen.append((epoch, step.index, step.number, ranks, step.mean("rank")))
            assert job.metrics == {"count": 3.0, "rank": 0.5}
    assert seen == [
        (0, 0, 0, [0, 1], 0.5),
        (0, 1, 1, [0, 1], 0.5),
        (1, 0, 2, [0, 1], 0.5),
        (1, 1, 3, [0, 1], 0.5),
    ]


def test_the_outer_stream_does_not_depend_on_what_micro_steps_draw(start: Init) -> None:
    job = start(logical_workers=2, seed=4)
    job.register(model=net())
    drawn = []
    torch.manual_seed(9)
    expected = [float(torch.rand(())) for _ in range(2)]
    torch.manual_seed(9)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            for _ in step:
                torch.rand(step.rank + 1)
            drawn.append(float(torch.rand(())))
    assert drawn == expected


class Draws(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(()) + 10 * index


def test_a_sample_draws_the_same_whichever_rank_has_it(
    start: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[dict[int, float]] = []
    for n in (1, 3):
        monkeypatch.setattr(jobs, "_job", None)
        job = start(logical_workers=n, seed=4)
        job.register(model=net())
        values: dict[int, float] = {}
        for _ in job.epochs(1):
            for step in job.loader(Draws(), batch_size=2, shuffle=True):
                for batch in step:
                    values.update({int(value) // 10: float(value) for value in batch})
        found.append(values)
    assert found[0] == found[1]
    assert len(set(found[0].values())) == 12


def test_an_evaluation_gives_every_batch_in_order_and_changes_nothing(start: Init) -> None:
    job = start(logical_workers=4)
    model = net()
    model[3].eval()  # type: ignore[index]
    job.register(model=model)
    loader = job.loader(rows(10), batch_size=3)
    plain: DataLoader[Any] = DataLoader(rows(10), batch_size=3)

    def function(batch: list[torch.Tensor]) -> dict[str, object]:
        assert not any(part.training for part in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3)
        return {"sum": batch[0].sum(), "rows": (len(batch[0]), "x")}

    expected = [bits(batch[0].sum()) for batch in plain]
    stream = torch.get_rng_state()
    results = job.evaluate(function, loader)
    assert [one["rows"] for one in results] == [(3, "x"), (3, "x"), (3, "x"), (1, "x")]
    assert [bits(one["sum"]) for one in results] == expected
    again = job.evaluate(function, plain)
    assert [bits(one["sum"]) for one in again] == expected
    assert torch.equal(stream, torch.get_rng_state())
    assert [part.training for part in model.modules()] == [True, True, True, True, False]


def test_each_batch_of_an_evaluation_is_a_sign_of_life(
    start: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    signs: list[int] = []
    done: list[int] = []
    monkeypatch.setattr(Alone, "show_awake", lambda _: signs.append(len(done)))
    job = start(logical_workers=2)
    job.register(model=net())

    def count(batch: list[torch.Tensor]) -> int:
        done.append(1)
        return len(batch[0])

    job.evaluate(count, job.loader(rows(10), batch_size=3))
    assert signs == [1, 2, 3, 4]


def test_what_an_evaluation_writes_into_buffers_is_put_back_after_each_batch(
    start: Init, capfd: pytest.CaptureFixture[str]
) -> None:
    job = start(logical_workers=2)
    model = net()
    norm = model.get_submodule("1")
    assert isinstance(norm, nn.BatchNorm1d)
    job.register(model=model)
    before = job.digest

    def count(batch: list[torch.Tensor]) -> tuple[int, int]:
        model.train()  # as a Monte Carlo dropout does
        model(batch[0])
        norm.running_mean = torch.full((8,), 7.0)
        tracked = norm.num_batches_tracked
        assert tracked is not None
        return int(tracked), 0

    results = job.evaluate(count, job.loader(rows(8), batch_size=2))
    assert results == [(1, 0)] * 4
    assert job.digest == before
    assert capfd.readouterr().err.count("is put back after each batch") == 1


def test_results_come_back_as_they_were_returned(start: Init) -> None:
    job = start(logical_workers=2)
    job.register(model=net())
    conjugate = torch.tensor([1 + 2j, 3 - 4j]).conj()
    value = [
        (1 + 2j, -0.0j, None, True, 2**70),
        OrderedDict(b=1, a=2),
        Counter("abca"),
        torch.Size([2, 3]),
        {"x": b"y"},
    ]
    (result,) = job.evaluate(lambda _: [*value, conjugate], job.loader(rows(2), batch_size=2))
    assert repr(result[:-1]) == repr(value)
    assert bits(result[-1]) == bits(conjugate.resolve_conj())


def test_a_step_that_is_left_early_is_named_at_the_boundary(start: Init) -> None:
    job = start(logical_workers=2)
    job.register(model=net())
    here = f"{__file__}:"
    with pytest.raises(IncompleteStep, match="step 0 is incomplete") as caught:  # noqa: PT012
        for _ in job.epochs(1):
            for step in job.loader(rows(8), batch_size=2):
                for _ in step:
                    break
    assert here in str(caught.value)


def test_an_evaluation_inside_the_inner_loop_is_an_incomplete_step(start: Init) -> None:
    job = start(logical_workers=2)
    job.register(model=net())
    loader = job.loader(rows(8), batch_size=2)
    with pytest.raises(IncompleteStep):  # noqa: PT012 - the loops are the statement
        for _ in job.epochs(1):
            for step in loader:
                for _ in step:
                    job.evaluate(len, loader)


def register_sync_norm(job: Job) -> None:
    job.register(model=nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)))


def register_sparse(job: Job) -> None:
    job.register(model=nn.Embedding(4, 2, sparse=True))


def register_parallel(job: Job) -> None:
    job.register(model=nn.DataParallel(nn.Linear(2, 2)))


def register_stranger(job: Job) -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=1.0)
    job.register(model=nn.Linear(2, 2), optimizer=optimizer)


def register_number(job: Job) -> None:
    job.register(model=nn.Linear(2, 2), best=0.5)


def register_twice(job: Job) -> None:
    job.register(model=net())
    job.register(model=net())


def register_lazy(job: Job) -> None:
    job.register(model=nn.LazyLinear(2))


def train_unregistered(job: Job) -> None:
    next(iter(job.epochs(1)))


def iterate_outside(job: Job) -> None:
    job.register(model=net())
    next(iter(job.loader(rows(8), batch_size=2)))


def iterate_twice(job: Job) -> None:
    job.register(model=net())
    for _ in job.epochs(1):
        for _pass in range(2):
            for step in job.loader(rows(8), batch_size=2):
                list(step)


def loader_without_steps(job: Job) -> None:
    job.register(model=net())
    for _ in job.epochs(1):
        next(iter(job.loader(rows(3), batch_size=2, drop_last=True)))


def evaluate_by_process(job: Job) -> None:
    job.register(model=net())
    sampler: DistributedSampler[Any] = DistributedSampler(rows(8), num_replicas=2, rank=0)
    job.evaluate(len, DataLoader(rows(8), batch_size=2, sampler=sampler))


def make_process_group(_job: Job) -> None:
    torch.distributed.init_process_group("gloo")


def make_process_group_by_an_early_name(_job: Job) -> None:
    init_process_group("gloo")


def make_process_group_with_a_store(_job: Job) -> None:
    init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def load_with_a_sampler(job: Job) -> None:
    job.loader(rows(8), batch_size=2, sampler=RandomSampler(rows(8)))


def wrap_in_parallel(_job: Job) -> None:
    nn.parallel.DistributedDataParallel(net())


def sample_by_process(_job: Job) -> None:
    DistributedSampler(rows(8))


def evaluate_shuffled(job: Job) -> None:
    job.register(model=net())
    job.evaluate(len, job.loader(rows(8), batch_size=2, shuffle=True))


def evaluate_objects(job: Job) -> None:
    job.register(model=net())
    job.evaluate(lambda _: object(), job.loader(rows(8), batch_size=2))


class Pair(NamedTuple):
    a: int
    b: int


def evaluate_a_namedtuple(job: Job) -> None:
    job.register(model=net())
    job.evaluate(lambda _: [Pair(1, 2)], job.loader(rows(8), batch_size=2))


def evaluate_a_subclass(job: Job) -> None:
    job.register(model=net())
    job.evaluate(lambda _: defaultdict(int), job.loader(rows(8), batch_size=2))


def evaluate_sparse(job: Job) -> None:
    job.register(model=net())
    job.evaluate(lambda _: {"m": torch.eye(3).to_sparse()}, job.loader(rows(8), batch_size=2))


def evaluate_a_training_step(job: Job) -> None:
    model = net()
    job.register(model=model)
    weight = model.get_parameter("0.weight")
    job.evaluate(lambda _: weight.add_(1).sum(), job.loader(rows(8), batch_size=2))


def register_buffer(tensor: torch.Tensor) -> Callable[[Job], None]:
    def register(job: Job) -> None:
        model = net()
        model.register_buffer("mask", tensor)
        job.register(model=model)

    return register


def register_an_expanded_tensor(job: Job) -> None:
    job.register(model=net(), average=[torch.ones(1).expand(4)])


def weigh_in_one_rank_only(job: Job) -> None:
    model = net()
    job.register(model=model)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            for x, _y in step:
                model(x).sum().backward()
                if step.rank == 1:
                    step.weight(3)


def take_batches_out_of_the_loop(job: Job) -> None:
    model = net()
    job.register(model=model)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            for x, _y in list(step):
                model(x).sum().backward()


def state_of_tensors(job: Job) -> None:
    job.state(best=torch.ones(2))


def sparse_gradient(job: Job) -> None:
    model = nn.Embedding(4, 2)
    job.register(model=model)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            for _ in step:
                model.weight.grad = torch.ones(4, 2).to_sparse()


def train_with(*, inside: bool, job: Job, change: Callable[[Any, Any], None]) -> None:
    """A training whose script makes `change` in each micro-step, or after each epoch's first."""
    model: Any = net()
    optimizer = torch.optim.SGD(model[:2].parameters(), lr=0.1)
    job.register(model=model, optimizer=optimizer)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            for x, _y in step:
                model(x).sum().backward()
                if inside:
                    change(model, optimizer)
            optimizer.step()
            if not inside:
                change(model, optimizer)


def step_the_optimizer_inside(job: Job) -> None:
    train_with(inside=True, job=job, change=lambda _, optimizer: optimizer.step())


def let_a_buffer_grow(job: Job) -> None:
    def grow(model: Any, _: object) -> None:  # noqa: ANN401
        model[1].running_mean = torch.zeros(9)

    train_with(inside=True, job=job, change=grow)


def add_a_group_later(job: Job) -> None:
    def thaw(model: Any, optimizer: torch.optim.Optimizer) -> None:  # noqa: ANN401
        optimizer.add_param_group({"params": list(model[3].parameters())})

    train_with(inside=False, job=job, change=thaw)


def write_after_register(change: Callable[[Any, Any], object]) -> Callable[[Job], None]:
    def train(job: Job) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        job.register(model=model, optimizer=optimizer)
        change(model, optimizer)
        for _ in job.epochs(1):
            next(iter(job.loader(rows(8), batch_size=2)))

    return train


def train_with_a_loader_of_torch(job: Job) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.register(model=model, optimizer=optimizer)
    for _epoch in job.epochs(2):
        for x, y in DataLoader(rows(), batch_size=8):
            F.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def count_epochs_from_below(job: Job) -> None:
    job.register(model=net())
    job.epochs(-1)


def load_with(**arguments: Any) -> Callable[[Job], object]:  # noqa: ANN401
    return lambda job: job.loader(rows(8), **arguments)


@pytest.mark.parametrize(
    ("misuse", "sentence"),
    [
        (register_sync_norm, "model.1 is a SyncBatchNorm"),
        (register_sparse, "model is an embedding with sparse gradients"),
        (register_parallel, r"wrapped in torch.nn.DataParallel, which works by process"),
        (register_stranger, r"optimizer updates a parameter of shape \(2, 2\)"),
        (register_number, r"register\(best=...\) got a float"),
        (register_twice, "job.register was called a second time"),
        (register_lazy, "has no shape yet"),
        (train_unregistered, "before job.register"),
        (iterate_outside, "outside of an epoch"),
        (iterate_twice, "begins a second pass in epoch 0"),
        (loader_without_steps, "the loader has no step"),
        (make_process_group, "init_process_group makes ranks of processes"),
        (make_process_group_by_an_early_name, "init_process_group makes ranks of processes"),
        (make_process_group_with_a_store, "init_process_group makes ranks of processes"),
        (load_with_a_sampler, "job.loader takes no sampler: samples are dealt to logical ranks"),
        (wrap_in_parallel, "DistributedDataParallel adds gradients by process"),
        (sample_by_process, "a DistributedSampler deals samples by process"),
        (evaluate_by_process, "deals samples by process"),
        (evaluate_shuffled, "a loader that shuffles"),
        (evaluate_objects, "the result of batch 0 is a object"),
        (evaluate_a_namedtuple, r"batch 0\[0\] is a Pair"),
        (evaluate_a_subclass, "batch 0 is a defaultdict"),
        (evaluate_sparse, r"batch 0\['m'\] is a tensor of layout sparse_coo"),
        (evaluate_a_training_step, "model.0.weight was written in an evaluation"),
        (register_buffer(torch.ones(1, 4).expand(3, 4)), "model.mask is expanded"),
        (register_buffer(torch.eye(3).to_sparse()), "model.mask has the layout sparse_coo"),
        (
            register_buffer(torch.ones(3, dtype=torch.complex64).conj()),
            "model.mask is a conjugate or negated view",
        ),
        (register_an_expanded_tensor, "average.0 is expanded"),
        (weigh_in_one_rank_only, "micro-step of logical rank 1 and not in that of logical rank 0"),
        (take_batches_out_of_the_loop, r"batches of step 0, .*, were taken out of it"),
        (state_of_tensors, "best is a Tensor"),
        (sparse_gradient, "model.weight has a sparse gradient"),
        (step_the_optimizer_inside, r"model.0.weight was written in the inner loop of step 0"),
        (let_a_buffer_grow, r"model.1.running_mean was float32\[8\] .* is float32\[9\] now"),
        (add_a_group_later, "optimizer had 1 parameter groups in job.register and has 2 now"),
        (
            write_after_register(lambda model, _: nn.init.zeros_(model[0].weight)),
            "model.0.weight was written between job.register and the first step",
        ),
        (
            write_after_register(lambda model, _: model(torch.ones(2, 6))),
            "model.1.num_batches_tracked was written between",
        ),
        (
            write_after_register(lambda _, optimizer: optimizer.param_groups[0].update(lr=1)),
            "optimizer.lr was written between",
        ),
        (load_with(batch_size=0), r"batch_size=0\): it takes a whole number of at least 1"),
        (load_with(batch_size=2.0), r"batch_size=2.0\): it takes a whole number"),
        (load_with(num_workers=-1), r"num_workers=-1\): it takes a whole number of at least 0"),
        (
            train_with_a_loader_of_torch,
            "model.0.weight was written in epoch 0, which went through no loader of this job",
        ),
        (count_epochs_from_below, r"epochs\(-1\) is no number"),
    ],
)
def test_misuse_is_refused_in_one_sentence(
    start: Init, misuse: Callable[[Job], object], sentence: str
) -> None:
    job = start(logical_workers=2)
    with pytest.raises(ScriptError, match=sentence) as caught:
        misuse(job)
    assert "\n" not in caught.value.message


def skips_it_whole(model: nn.Module, step: Step) -> None:
    assert len(list(step)) == 2
    assert all(parameter.grad is None for parameter in model.parameters())


def skips_its_micro_steps(_model: nn.Module, step: Step) -> None:
    for _ in step:
        continue


def sets_gradients_by_hand(model: nn.Module, step: Step) -> None:
    for _ in step:
        step.report(score=step.rank)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, step.mean("score"))


def adds_a_penalty_outside(model: nn.Module, step: Step) -> None:
    for x, _ in step:
        model(x).sum().backward()
    sum(parameter.square().sum() for parameter in model.parameters()).backward()  # type: ignore[union-attr]


def asks_by_next(model: nn.Module, step: Step) -> None:
    batches = iter(step)
    while (batch := next(batches, None)) is not None:
        model(batch[0]).sum().backward()


@pytest.mark.parametrize(
    "body",
    [
        skips_it_whole,
        skips_its_micro_steps,
        sets_gradients_by_hand,
        adds_a_penalty_outside,
        asks_by_next,
    ],
)
def test_a_step_may_do_without_gradients_and_outer_bodies_with_them(
    start: Init, capsys: pytest.CaptureFixture[str], body: Callable[[nn.Module, Step], None]
) -> None:
    job = start(logical_workers=2)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    job.register(model=model, optimizer=optimizer)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            body(model, step)
            optimizer.step()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("easyscale: finished step 2")


def test_a_gradient_from_collected_batches_is_told_of_and_outer_backwards_stay_free(
    start: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    job = start(logical_workers=2)
    model = net()
    job.register(model=model)
    for _ in job.epochs(1):
        for step in job.loader(rows(8), batch_size=2):
            collected = []
            for x, _y in step:
                collected.append(x)
            model(torch.cat(collected)).sum().backward()
    model(torch.ones(2, 6)).sum().backward()
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("easyscale: no micro-step of step") for line in lines] == [
        True,
        True,
        False,
    ]


def test_a_word_that_nobody_knows_is_a_type_error(start: Init) -> None:
    job = start(logical_workers=2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nonsense'"):
        job.loader(rows(8), nonsense=True)


def test_a_worker_of_another_launcher_is_told_what_to_add(
    start: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ScriptError, match="another launcher") as caught:
        start()
    assert "--logical-workers N" in caught.value.hint


def test_a_second_init_is_refused(start: Init) -> None:
    start(logical_workers=1)
    with pytest.raises(ScriptError, match="a second time"):
        start(logical_workers=1)


def test_one_logical_worker_is_said_in_one_line(
    start: Init, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start().logical_workers == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("easyscale: 1 logical worker")


def test_the_environment_wins_over_the_script_and_says_so(
    start: Init, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EASYSCALE_LOGICAL_WORKERS", "6")
    job = start(logical_workers=2, seed=3)
    assert (job.logical_workers, job.seed) == (6, 3)
    (line,) = capsys.readouterr().err.splitlines()
    assert "logical_workers = 6 from EASYSCALE_LOGICAL_WORKERS" in line


def test_a_state_that_is_served_in_the_midst_of_a_step_is_that_of_its_boundary(
    start: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever takes it runs the top of the step again."""
    monkeypatch.setattr(Alone, "is_launched", True)
    job = start(logical_workers=2, seed=0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    job.register(model=model, optimizer=optimizer)
    kept = job.state(seen=0, drawn=[])
    training = job._training
    compared = 0
    for _ in job.epochs(1):
        loader = job.loader(TensorDataset(torch.randn(24, 4)), batch_size=4)
        boundary = training.capture()
        for step in loader:
            kept.seen += 1
            kept.drawn.append(float(torch.rand(())))
            for (x,) in step:
                model(x).sum().backward()
                assert step._work is not None
                midst = step._work.at_boundary(training.capture())
                assert midst.user == boundary.user
                assert midst.digest == boundary.digest
                assert fingerprint(midst.outer_stream) == fingerprint(boundary.outer_stream)
                compared += 1
            optimizer.step()
            boundary = training.capture()
    assert compared == 6
    assert len(kept.drawn) == 3


def test_a_process_alone_keeps_nothing_that_only_others_ask_for(start: Init) -> None:
    job = start(logical_workers=2)
    job.register(model=net())
    for _ in job.epochs(1):
        next(iter(job.loader(rows(8), batch_size=2)))
        opened = job._training.step
        assert opened is not None
        assert opened.before_top is None
        break
