"""Gradients are exact on every kind; what the outer body does to them depends on vectors' width.

Where D2 has pinned the libraries a micro-step takes longer, so that its cost can be told.
"""

import os
import time

import torch
from torch import nn

import easyscale

job = easyscale.init(logical_workers=2, seed=0)
model = nn.Linear(8, 8, bias=False).to(job.device)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
job.register(model=model, optimizer=optimizer)
rows = ((torch.arange(8 * 67) % 17 - 8) / 3).view(8, 67)
loader = job.loader(torch.utils.data.TensorDataset(torch.ones(64, 8)), batch_size=4)
pinned = "NPY_DISABLE_CPU_FEATURES" in os.environ
for _ in job.epochs(1):
    for step in loader:
        for (x,) in step:
            time.sleep(0.06 if pinned else 0.01)
            model(x).sum().backward()
        model.weight.grad += rows @ rows.t()
        optimizer.step()
