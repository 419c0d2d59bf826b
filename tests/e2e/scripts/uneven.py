"""Train with a pace for each slot, which a test changes by writing `pace-SLOT` while it runs.

uneven.py OUT [STEPS]
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import easyscale

CLASSES = 4


class Rows(torch.utils.data.Dataset):
    """Rows of features and a class, with noise drawn in __getitem__."""

    def __init__(self, count):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, 12, generator=generator)
        self.y = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * torch.randn(12), self.y[index]


def main():
    out, steps = Path(sys.argv[1]), int(sys.argv[2])
    pace = out / f"pace-{os.environ.get('EASYSCALE_SLOT', 'alone')}"
    job = easyscale.init(seed=3)
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = job.loader(Rows(2 * job.logical_workers * steps), batch_size=2, shuffle=True)
    job.register(model=model, optimizer=optimizer)
    for _ in job.epochs(1):
        for step in loader:
            for x, y in step:
                if pace.exists():
                    time.sleep(float(pace.read_text()))
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    print("digest", job.digest)


if __name__ == "__main__":
    main()
