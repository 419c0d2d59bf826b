"""A small training with everything that could tell one layout from another, in about a second."""

import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import easyscale


class Noisy(Dataset):
    """Samples with random augmentation from all three kinds of streams."""

    def __init__(self, length):
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(length, 12, generator=generator)
        self.y = torch.randint(0, 4, (length,), generator=generator)
        self.noise = 0.1

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        noise = self.noise * torch.randn(12) + 0.05 * float(np.random.rand())
        return self.x[index] + noise, self.y[index]


options = dict(word.split("=") for word in sys.argv[1:])
epochs, dim = int(options.get("epochs", 3)), int(options.get("dim", 16))
job = easyscale.init(logical_workers=8, seed=3)
if "fork" in options and os.fork() == 0:
    raise ValueError("a child of the script")
if "unequal" in options:
    torch.manual_seed(os.getpid())
model = nn.Sequential(
    nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.3),
    nn.Linear(24, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, 4),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
train = Noisy(int(options.get("rows", 190)))
loader = job.loader(
    train, batch_size=4, shuffle=True, num_workers=int(options.get("workers", 0)), drop_last=False
)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=1e-2, total_steps=epochs * len(loader)
)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
state = job.state(best=0.0)
test_loader = job.loader(Noisy(50), batch_size=8)


def count_correct(batch):
    x, y = batch
    return int((model(x).argmax(1) == y).sum()), F.cross_entropy(model(x), y)


for epoch in job.epochs(epochs):
    model.train()
    # Loader workers must see the dataset as it is in this epoch.
    train.noise = 0.1 + 0.05 * epoch
    for step in loader:
        for x, y in step:
            loss = F.cross_entropy(model(x), y)
            if options.get("raise") == f"{step.number}:{step.rank}":
                raise ValueError("a wrong label")
            loss.backward()
            step.report(loss=loss)
            if "pause" in options:
                time.sleep(float(options["pause"]))
        # The bound comes from the outer stream, which must be the same in every layout.
        nn.utils.clip_grad_norm_(model.parameters(), 0.5 + float(torch.rand(())))
        optimizer.step()
        scheduler.step()
        if "steer" in options:
            optimizer.param_groups[0]["weight_decay"] = float(loss.detach())
        if options.get("own") == str(step.number):
            with torch.no_grad():
                model[7].bias.add_(x.mean())
        if "fork" in options and step.number == 2 and os.fork() == 0:
            sys.exit(0)
    results = job.evaluate(count_correct, test_loader)
    state.best = max(state.best, sum(count for count, _ in results))
    if job.is_main:
        loss = sum(float(loss) for _, loss in results).hex()
        print(f"epoch {epoch} loss {job.metrics['loss'].hex()} held out {state.best} {loss}")
    if "stop" in options and epoch == int(options["stop"]):
        break

print("digest", job.digest, state.best)
