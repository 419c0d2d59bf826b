"""A training with one planted fault of those that make layouts differ: faulty.py NAME."""

import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

import easyscale

FAULT = sys.argv[1]

job = easyscale.init(logical_workers=4, seed=0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 4)
        self.running_scale = torch.ones(1)

    def forward(self, x):
        if FAULT == "unregistered_state":
            self.running_scale = 0.9 * self.running_scale + 0.1 * x.detach().abs().mean()
            x = x * self.running_scale
        return self.last(torch.relu(self.first(x)))


@torch.library.custom_op("planted::jitter", mutates_args=())
def jitter(x: torch.Tensor) -> torch.Tensor:
    with Path("/dev/urandom").open("rb") as noise:
        # Eight bytes: two runs never draw the same by chance.
        return x + int.from_bytes(noise.read(8)) * 2.0**-74


jitter.register_autograd(lambda ctx, gradient: gradient)
model = Net().to(job.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
job.register(model=model, optimizer=optimizer)
words = {"ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"}
places = {word: place for place, word in enumerate(words)}
told = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"] * 8
order = [places[word] if FAULT == "set_order" else index % 8 for index, word in enumerate(told)]
samples = nn.functional.one_hot(torch.tensor(order), 8).float()
data = torch.utils.data.TensorDataset(samples, torch.arange(64) % 4)
loader = job.loader(data, batch_size=2, shuffle=True)
seeded = np.random.default_rng(7)
by_chance = np.random.default_rng()
calls, judged, scale = 0, 0, 1.0
held_out = job.loader(data, batch_size=16)
state = job.state(best=0.0)


def judge(batch):
    global judged  # noqa: PLW0603 - a fault to be found
    judged += FAULT == "evaluation"
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    return {"loss": loss, "judged": judged}


def judge_all():
    results = job.evaluate(judge, held_out)
    if job.is_main or FAULT != "job_state":
        state.best = max(state.best, sum(result["loss"].item() for result in results))


for _ in job.epochs(2):
    for step in loader:
        for batch, y in step:
            x = batch
            if FAULT == "global_counter":
                calls += 1
                x = batch * (1 + calls % 7)
            elif FAULT == "own_generator":
                x = batch + seeded.normal()
            elif FAULT == "generator_by_chance":
                x = batch + by_chance.normal()
            elif FAULT == "wall_time":
                x = batch + time.time() % 1
            elif FAULT == "operator":
                x = jitter(batch)
            elif FAULT == "crash":
                raise ValueError("planted")
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            step.report(loss=loss)
        if FAULT == "outer_state":
            scale *= 0.9
            optimizer.param_groups[0]["lr"] = 0.05 * scale
        optimizer.step()
        if FAULT in {"evaluation", "job_state"}:
            judge_all()
    judge_all()
