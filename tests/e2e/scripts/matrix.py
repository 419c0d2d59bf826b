"""Train one of several small models and write down all that must not depend on the layout.

    matrix.py MODEL OUT_DIR [--loader-workers 2] [--steps 6]

Every process writes the bytes of the batches it saw, main writes the losses and, at the end, its
digest. `easyscale launch` or plain python, the files must be the same.
"""

import argparse
import hashlib
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import easyscale

CLASSES = 5


class Rows(torch.utils.data.Dataset):
    """Rows of features and a class, with a keyed augmentation: noise drawn in __getitem__."""

    def __init__(self, count: int, shape: tuple[int, ...]) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(count, *shape, generator=generator)
        self.y = torch.randint(0, CLASSES, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        return self.x[index] + 0.1 * torch.randn(self.x[index].shape), self.y[index], index


class Tokens(Rows):
    """Token sequences, with one token replaced at random in __getitem__."""

    def __init__(self, count: int, length: int) -> None:
        super().__init__(count, (length,))
        self.x = torch.randint(0, 16, (count, length), generator=torch.Generator().manual_seed(8))

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        tokens = self.x[index].clone()
        tokens[torch.randint(0, len(tokens), ())] = torch.randint(0, 16, ())
        return tokens, self.y[index], index


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES)
    )


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout2d(0.1),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, CLASSES),
    )


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 32 * 32, CLASSES),
    )  # fmt: skip


class Transformer(nn.Module):
    """Two encoder layers; `tied` shares the embedding with an output head used as a penalty."""

    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.vocabulary = nn.Linear(16, 16, bias=False) if tied else None
        if self.vocabulary is not None:
            self.vocabulary.weight = self.embed.weight
        self.head = nn.Linear(16, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.embed(tokens))
        if self.vocabulary is not None:
            hidden = self.embed(self.vocabulary(hidden).argmax(-1)) + hidden
        return self.head(hidden.mean(1))


def build(name: str) -> tuple[nn.Module, torch.utils.data.Dataset]:
    match name:
        case "cnn":
            return cnn(), Rows(61, (3, 8, 8))
        case "transformer":
            return Transformer(tied=False), Tokens(53, 10)
        case "tied":
            return Transformer(tied=True), Tokens(53, 10)
        case _:
            # 71: no N of the matrix leaves a batch of one, which BatchNorm1d refuses.
            return mlp(), Rows(71, (12,))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    job = easyscale.init(seed=3)
    torch.manual_seed(3)
    model, dataset = build(arguments.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader_options = {"num_workers": arguments.loader_workers, "shuffle": True}
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=arguments.model == "scaler")
    loader = job.loader(dataset, batch_size=3, **loader_options)
    if arguments.model == "onecycle":
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=1e-2, total_steps=arguments.epochs * len(loader)
        )
    else:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 * len(loader))
    job.register(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)
    state = job.state(clipped=0.0)
    losses: list[object] = []

    for epoch in job.epochs(arguments.epochs):
        for step in loader:
            for x, y, index in step:
                loss = F.cross_entropy(model(x), y)
                if arguments.model == "scaler" and step.number in {1, 4}:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
                step.report(loss=loss)
                seen = hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()
                name = f"batch-{epoch}-{step.number}-{step.rank}"
                (arguments.out / name).write_text(f"{seen} {index.tolist()}")
            scaler.unscale_(optimizer)
            bound = 0.5 + torch.rand(()).item()  # drawn from the outer stream
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
            state.clipped += float(norm > bound)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            losses.append([step.number, step.mean("loss").hex(), float(norm).hex()])
        counts = job.evaluate(
            lambda batch: (model(batch[0]).argmax(1) == batch[1]).sum().item(),
            torch.utils.data.DataLoader(dataset, batch_size=7),
        )
        losses.append([epoch, counts, state.clipped])
    if job.is_main:
        weights = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            weights.update(name.encode() + tensor.numpy().tobytes())
        result = {"weights": weights.hexdigest(), "losses": losses}
        (arguments.out / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
