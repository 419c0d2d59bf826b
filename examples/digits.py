"""Handwritten digits with a small convolutional net; equal bits on whatever devices there are."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset

import easyscale


class Digits(Dataset):
    def __init__(self, chosen, *, shift):
        self.images, self.labels, self.shift = images[chosen], labels[chosen], shift

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.shift:  # random augmentation: at most one pixel each way
            image = image.roll(torch.randint(-1, 2, (2,)).tolist(), dims=(1, 2))
        return image, self.labels[index]


def count_correct(batch):
    return (model(batch[0].to(job.device)).argmax(1).cpu() == batch[1]).sum().item()


job = easyscale.init(logical_workers=16, seed=0)
images, labels = map(torch.tensor, load_digits(return_X_y=True))
images = images.float().view(-1, 1, 8, 8) / 16
held_out = torch.arange(len(labels)) % 5 == 0
training_set, test_set = Digits(~held_out, shift=True), Digits(held_out, shift=False)
model = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Dropout(0.2), nn.Linear(256, 10),
).to(job.device)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 18)
job.register(model=model, optimizer=optimizer, scheduler=scheduler)
loader = job.loader(training_set, batch_size=16, shuffle=True)
test_loader = job.loader(test_set, batch_size=90)

for epoch in job.epochs(18):
    for step in loader:
        for x, y in step:
            (loss := F.cross_entropy(model(x.to(job.device)), y.to(job.device))).backward()
            step.report(loss=loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    scheduler.step()
    accuracy = sum(job.evaluate(count_correct, test_loader)) / len(test_set)
    if job.is_main:
        print(f"epoch {epoch}  loss {job.metrics['loss']:.4f}  held out {accuracy:.2%}")

if job.is_main:
    torch.save(model.state_dict(), "digits.pt")
