"""Train long enough to be changed under way, and write down all that no change may reach.

    steady.py OUT [--epochs 4] [--loader-workers 0] [--width 32] [--tops]

Each process writes every batch, step and epoch that it computes to a file of its own name; bytes
that differ from what another process wrote under that name are kept as `conflict-*`. `trail` says
which process ran which logical worker of which step. With `--tops` the scheduler steps at the top
of an epoch and an average of the weights is kept at the top of a step.
"""

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.nn.functional as F
from faults import Faults, Pace
from torch import nn
from torch.optim.swa_utils import AveragedModel

import easyscale

CLASSES = 5


class Rows(torch.utils.data.Dataset):
    """Rows of features and a class, with noise drawn in __getitem__."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, 12, generator=generator)
        self.y = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(12), self.y[index], index


class Net(nn.Module):
    """Calls `between` between its layers, forward and backward."""

    def __init__(self, between, width):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(12, width), nn.BatchNorm1d(width), nn.ReLU())
        self.rest = nn.Sequential(nn.Dropout(0.2), nn.Linear(width, CLASSES))
        self.between = between

    def forward(self, x):
        hidden = self.first(x)
        self.between("forward" if self.training else "evaluation")
        if hidden.requires_grad:
            hidden.register_hook(lambda _: self.between("backward"))
        return self.rest(hidden)


class Notes:
    """Files under names that say what they are of: every process must come to the same bytes."""

    def __init__(self, out):
        self.out = out
        out.mkdir(parents=True, exist_ok=True)
        self._trail = os.open(out / "trail", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, name, text):
        path = self.out / name
        partial = self.out / f".{name}.{os.getpid()}"
        partial.write_text(text)
        try:
            os.link(partial, path)  # unlike a rename, refuses to replace
        except FileExistsError:
            if path.read_text() != text:
                partial.rename(self.out / f"conflict-{name}-{os.getpid()}")
                return
        partial.unlink()

    def went(self, *words):
        os.write(self._trail, f"{os.getpid()} {' '.join(map(str, words))}\n".encode())


def digest_of(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--tops", action="store_true")
    arguments = parser.parse_args()
    notes, pace = Notes(arguments.out), Pace(arguments.out)
    faults = Faults(arguments.out)
    now = {}

    job = easyscale.init(seed=3)
    torch.manual_seed(3)
    model = Net(lambda moment: faults.at(moment, **now), arguments.width)
    dataset = Rows(150)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    optimizer.register_step_pre_hook(lambda *_: faults.at("update", **now))
    loader = job.loader(dataset, batch_size=3, shuffle=True, num_workers=arguments.loader_workers)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 * len(loader))
    averages = {"average": AveragedModel(model)} if arguments.tops else {}
    job.register(model=model, optimizer=optimizer, scheduler=scheduler, **averages)
    state = job.state(clipped=0.0)

    def count_correct(batch):
        return (model(batch[0]).argmax(1) == batch[1]).sum().item()

    for epoch in job.epochs(arguments.epochs):
        if epoch and arguments.tops:
            scheduler.step()
        for step in loader:
            for average in averages.values():
                average.update_parameters(model)
            for x, y, index in step:
                now = {"step": step.number, "rank": step.rank, "main": int(job.is_main)}
                notes.went(step.number, step.rank)
                seen = digest_of([x, y, index])
                notes.write(f"batch-{step.number}-{step.rank}", f"{seen} {index.tolist()}")
                pace.keep()
                faults.watch(**now)
                loss = F.cross_entropy(model(x), y)
                faults.at("micro_step", **now)
                loss.backward()
                step.report(loss=loss)
            now = {"step": step.number, "main": int(job.is_main)}
            faults.at("result", **now)
            bound = 0.5 + torch.rand(()).item()  # drawn from the outer stream
            norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), bound))
            state.clipped += float(norm > bound)
            optimizer.step()
            faults.at("updated", **now)
            if not arguments.tops:
                scheduler.step()
            numbers = (
                f"{step.mean('loss').hex()} {norm.hex()} {digest_of(model.state_dict().values())}"
            )
            notes.write(f"step-{step.number}", numbers)
        counts = job.evaluate(count_correct, torch.utils.data.DataLoader(dataset, batch_size=7))
        notes.write(f"epoch-{epoch}", f"{counts} {state.clipped}")
        if job.is_main:
            faults.at("checkpoint", **now)
            torch.save(model.state_dict(), arguments.out / f".checkpoint.{os.getpid()}")
            (arguments.out / f".checkpoint.{os.getpid()}").rename(arguments.out / "checkpoint.pt")
            saved = torch.load(arguments.out / "checkpoint.pt", weights_only=True)
            notes.write(f"checkpoint-{epoch}", digest_of(saved.values()))
        faults.at("epoch", **now)
    faults.at("end", **now)


if __name__ == "__main__":
    main()
