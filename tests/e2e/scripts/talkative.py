"""A tiny training that says which logical rank prints what, at a pace."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import easyscale

options = dict(word.split("=") for word in sys.argv[1:])
job = easyscale.init(seed=3)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job.register(model=model, optimizer=optimizer)
samples = [(torch.randn(4), 1) for _ in range(32)]
loader = job.loader(samples, batch_size=2, shuffle=True)
for _ in job.epochs(int(options.get("epochs", 2000))):
    for step in loader:
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.report(loss=loss)
            print(f"step {step.number} rank {step.rank}")
            print(f"warning of rank {step.rank}", file=sys.stderr)
            time.sleep(float(options.get("pause", 0.02)))
        print(f"outer {step.number}")
        optimizer.step()
print("the very last line")
