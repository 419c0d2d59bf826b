"""Weights and samples are built alike everywhere; sums depend on the width of vectors."""

import torch
from torch import nn

import easyscale

job = easyscale.init(logical_workers=4, seed=0)
model = nn.Sequential(nn.Linear(67, 33), nn.Tanh(), nn.Linear(33, 5)).to(job.device)
with torch.no_grad():
    for parameter in model.parameters():
        count = parameter.numel()
        parameter.copy_((torch.arange(count) % 17 - 8).div(64).view_as(parameter))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
job.register(model=model, optimizer=optimizer)
samples = (torch.arange(64 * 67) % 23 - 11).div(16).view(64, 67)
data = torch.utils.data.TensorDataset(samples, torch.arange(64) % 5)
loader = job.loader(data, batch_size=4, shuffle=True)
for _ in job.epochs(2):
    for step in loader:
        for x, y in step:
            nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
