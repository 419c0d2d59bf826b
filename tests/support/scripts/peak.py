"""Prints how many bytes of tensors a step has at its peak, exactly: every storage is counted once.

peak.py N [hoards]   `hoards` keeps each rank's gradients to the end of the step, as no job should.
"""

import sys
import weakref

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

import easyscale


class Live(TorchDispatchMode):
    """The bytes of all storages that any operator has returned and that still live."""

    def __init__(self):
        super().__init__()
        self.bytes = self.peak = 0
        self.known = {}

    def __torch_dispatch__(self, operator, _types, arguments=(), options=None):
        result = operator(*arguments, **(options or {}))
        for each in tree_iter(result):
            if isinstance(each, torch.Tensor):
                self.note(each.untyped_storage())
        return result

    def note(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known[key] = weakref.finalize(storage, self.forget, key, size)
            self.bytes += size
            self.peak = max(self.peak, self.bytes)

    def forget(self, key, size):
        del self.known[key]
        self.bytes -= size


ranks, hoards = int(sys.argv[1]), "hoards" in sys.argv
job = easyscale.init(logical_workers=ranks, seed=1)
model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(4)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
job.register(model=model, optimizer=optimizer)
steps = 3
data = torch.utils.data.TensorDataset(torch.ones(ranks * steps, 64))
live = Live()
with live:
    for _ in job.epochs(1):
        for step in job.loader(data, batch_size=1):
            live.peak, hoard = live.bytes, []
            for (x,) in step:
                model(x).sum().backward()
                if hoards:
                    hoard.append([p.grad.clone() for p in model.parameters()])
            optimizer.step()
            # The first step has no optimizer state yet; the last is like all that follow.
            peak = live.peak
            del hoard
gradients = sum(p.numel() * p.element_size() for p in model.parameters())
print(f"peak {peak} gradients {gradients}")
