"""Counts at the top of each epoch and of each step, in plain values and in what is registered."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import easyscale

options = dict(word.split("=") for word in sys.argv[1:])
job = easyscale.init(logical_workers=8, seed=3)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)
average = torch.optim.swa_utils.AveragedModel(model)
generator = torch.Generator().manual_seed(5)
data = TensorDataset(
    torch.randn(96, 6, generator=generator), torch.randint(0, 3, (96,), generator=generator)
)
loader = job.loader(data, batch_size=2, shuffle=True)
job.register(model=model, optimizer=optimizer, scheduler=scheduler, average=average)
state = job.state(epochs=0, total=0.0, drawn=[])
for epoch in job.epochs(int(options.get("epochs", 3))):
    if epoch:
        scheduler.step()
    state.epochs += 1
    state.total = 0.0
    state.drawn.append(float(torch.rand(())))
    for step in loader:
        average.update_parameters(model)
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            step.report(loss=loss)
            time.sleep(float(options.get("pause", 0)))
        optimizer.step()
        state.total += step.mean("loss") * (1 + float(torch.rand(())))

print("kept", state.epochs, state.total.hex(), [each.hex() for each in state.drawn])
print("digest", job.digest)
