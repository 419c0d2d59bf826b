"""Runs out of memory in earnest at the third rank of a step on any slot that is named.

hungry.py SLOT...   SLOT as `cpu:1`
"""

import os
import sys

import torch
from torch import nn

import easyscale

job = easyscale.init(seed=1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.register(model=model, optimizer=optimizer)
is_small = os.environ.get("EASYSCALE_SLOT") in sys.argv[1:]
data = torch.utils.data.TensorDataset(torch.arange(256.0).view(64, 4) / 256)
for _ in job.epochs(2):
    for step in job.loader(data, batch_size=1):
        for count, (x,) in enumerate(step):
            if is_small and count == 2:
                torch.empty(1 << 60)
            model(x).sum().backward()
        optimizer.step()
if job.is_main:
    print(f"digest {job.digest}")
