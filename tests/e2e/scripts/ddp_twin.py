"""One model and its data, trained by easyscale or by stock DistributedDataParallel.

ddp_twin.py easyscale OUT            one process runs all logical workers (or a launch does)
ddp_twin.py ddp OUT RANK N INIT      one of N processes of a gloo group; the sum in the
                                     canonical tree's order where N is no power of two
"""

import hashlib
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, SEED = 2, 4, 11


def build() -> tuple[nn.Module, TensorDataset]:
    torch.manual_seed(5)
    model = nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 4)
    )
    return model, TensorDataset(torch.randn(50, 1, 8, 8), torch.randint(0, 4, (50,)))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)


def write_digest(model: nn.Module, path: str) -> None:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    Path(path).write_text(digest.hexdigest())


def train_elastic(out: str) -> None:
    import easyscale

    job = easyscale.init(seed=SEED)
    model, dataset = build()
    optimizer = optimizer_of(model)
    job.register(model=model, optimizer=optimizer)
    for _ in job.epochs(EPOCHS):
        for step in job.loader(dataset, batch_size=BATCH, shuffle=True):
            for x, y in step:
                F.cross_entropy(model(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    if job.is_main:
        write_digest(model, out)


def tree_sum(tensors: list[torch.Tensor]) -> torch.Tensor:
    if len(tensors) == 1:
        return tensors[0]
    half = 1 << (len(tensors) - 1).bit_length() - 1
    return tree_sum(tensors[:half]) + tree_sum(tensors[half:])


def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over all ranks, added in the canonical tree's order (stock gloo adds around a ring)."""
    mine = bucket.buffer().mul(1.0 / dist.get_world_size())
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_of_them, mine)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(tree_sum(all_of_them))
    return future


def train_stock(out: str, rank: int, size: int, init_method: str) -> None:
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=size)
    model, dataset = build()
    optimizer = optimizer_of(model)
    parallel = nn.parallel.DistributedDataParallel(model)
    if size != 2:
        parallel.register_comm_hook(None, hook)
    sampler = DistributedSampler(dataset, size, rank, shuffle=True, seed=SEED)
    loader = DataLoader(dataset, BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(parallel(x), y).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    if rank == 0:
        write_digest(model, out)
    dist.barrier()
    # The teardown of gloo can wait for a peer that has gone: all is said and done by now.
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] == "easyscale":
        train_elastic(sys.argv[2])
    else:
        train_stock(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
