"""An ordinary DDP script as torchrun starts it: trains until a file asks for the last step."""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

stop = Path(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(f"rank {rank} of {world} trains, restart {os.environ['TORCHELASTIC_RESTART_COUNT']}")

step = 0
last = torch.zeros(())
while not last:
    torch.manual_seed(1000 * step + rank)
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    last = torch.tensor(float(stop.exists()))
    dist.all_reduce(last, op=dist.ReduceOp.MIN)
    step += 1
    time.sleep(0.02)

weights = torch.cat([p.detach().flatten() for p in model.parameters()])
gathered = [torch.empty_like(weights) for _ in range(world)]
dist.all_gather(gathered, weights)
same = all(torch.equal(one, weights) for one in gathered)
print(f"rank {rank} of {world} ends, all equal: {same}")
dist.destroy_process_group()
