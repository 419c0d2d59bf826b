"""A small transformer learns to write like Python's own manual."""

from pydoc_data.topics import topics  # in every Python: 700 kB of English

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset

import easyscale

CONTEXT, WIDTH = 32, 64


class Windows(Dataset):
    def __init__(self, tokens):
        self.tokens = tokens

    def __len__(self):
        return len(self.tokens) // CONTEXT - 1

    def __getitem__(self, index):  # cut at a place that is never the same twice
        return self.tokens[index * CONTEXT + int(torch.randint(CONTEXT, ())) :][: CONTEXT + 1]


class CharGPT(nn.Module):
    def __init__(self, symbols):
        super().__init__()
        self.token, self.place = nn.Embedding(symbols, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(WIDTH, symbols)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        return self.head(self.layers(x, mask=mask, is_causal=True))


job = easyscale.init(logical_workers=16, seed=0)
text = "".join(topics[name] for name in sorted(topics))[:100_000]
symbols = sorted(set(text))
model = CharGPT(len(symbols)).to(job.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
job.register(model=model, optimizer=optimizer)
windows = Windows(torch.tensor([symbols.index(symbol) for symbol in text]))
loader = job.loader(windows, batch_size=8, shuffle=True, drop_last=True)
for epoch in job.epochs(3):
    for step in loader:
        for batch in step:
            x, y = batch[:, :-1].to(job.device), batch[:, 1:].to(job.device)
            (loss := F.cross_entropy(model(x).mT, y)).backward()
            step.report(loss=loss)
        optimizer.step()
    if job.is_main:
        print(f"epoch {epoch}  loss {job.metrics['loss']:.3f}")

if job.is_main:
    torch.save(model.state_dict(), "char_gpt.pt")
