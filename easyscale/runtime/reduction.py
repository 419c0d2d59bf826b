"""One bucket's way through the group: from partial sums of subtrees to the sum over the tree.

Siblings that are one process each halve and double; any other layout goes by shards: all to all,
sum in tree order, all-gather. Both give the same bits and leave the partial sums untouched.
"""

from collections.abc import Callable, Sequence

import torch

from easyscale.model import Span
from easyscale.runtime import tree
from easyscale.runtime.buckets import Bucket
from easyscale.runtime.siblings import Siblings
from easyscale.runtime.transport import Transport

#: Writes this process's sums of one subtree into views of a flat bucket.
Fill = Callable[[Span, Sequence[torch.Tensor]], None]


class Reduction:
    """The flat buckets that results are reduced into, and the scratch memory to do it."""

    def __init__(self, transport: Transport, buckets: Sequence[Bucket], n: int) -> None:
        self._transport = transport
        self._n = n
        self.buckets = tuple(buckets)
        self.flats = tuple(self._flat(bucket) for bucket in buckets)
        self.views = tuple(
            bucket.views(flat) for bucket, flat in zip(self.buckets, self.flats, strict=True)
        )
        #: Of the next transfer between siblings; all members count alike.
        self._tag = 0
        self._scratch: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def reduce(self, index: int, layout: Sequence[Sequence[Span]], fill: Fill) -> None:
        """Reduce one bucket into `flats[index]`; every member calls it with the same layout."""
        order = tree.pairing(layout, self._n)
        if not self.flats[index].numel():
            return
        if order is not None:
            fill(layout[self._transport.rank][0], self.views[index])
            self._halve_and_double(self.flats[index], order)
        else:
            self._by_shards(index, layout, fill)

    def _halve_and_double(self, flat: torch.Tensor, order: Sequence[int]) -> None:
        # The sum of two has no order, and gloo's own all-reduce wakes threads less often.
        if self._transport.size == 2 and self._transport.sum_of_two(flat):  # noqa: PLR2004
            return
        received = self._memory("received", flat.dtype, flat.numel())
        siblings = Siblings(self._transport, order, flat, received, first_tag=self._tag)
        siblings.reduce()
        self._tag += siblings.tags

    def _by_shards(self, index: int, layout: Sequence[Sequence[Span]], fill: Fill) -> None:
        flat, size = self.flats[index], self._transport.size
        shard = flat.numel() // size
        counts = [len(spans) for spans in layout]
        parts = self._laid_out(index, layout[self._transport.rank], fill)
        received = self._memory("received", flat.dtype, sum(counts) * shard)
        self._transport.all_to_all(
            received,
            parts,
            into_sizes=[count * shard for count in counts],
            part_sizes=[counts[self._transport.rank] * shard] * size,
        )
        spans = [span for spans in layout for span in spans]
        held = dict(zip(spans, received.view(len(spans), shard), strict=True))
        for merge in tree.merges(spans, self._n):
            held[merge.into] = held.pop(merge.left).add_(held.pop(merge.right))
        self._transport.all_gather(flat, held[Span(0, self._n)])

    def _laid_out(self, index: int, spans: Sequence[Span], fill: Fill) -> torch.Tensor:
        """Lay this process's sums out by receiver: for each its shard of every subtree."""
        bucket, flat, size = self.buckets[index], self.flats[index], self._transport.size
        parts = self._memory("parts", flat.dtype, len(spans) * flat.numel())
        if len(spans) == 1:
            fill(spans[0], bucket.views(parts))
            return parts
        by_receiver = parts.view(size, len(spans), flat.numel() // size)
        row = self._memory("row", flat.dtype, flat.numel() if spans else 0)
        views = bucket.views(row) if spans else []
        for place, span in enumerate(spans):
            fill(span, views)
            by_receiver[:, place].copy_(row.view(size, -1))
        return parts

    def _flat(self, bucket: Bucket) -> torch.Tensor:
        size = self._transport.size
        padded = -(-bucket.numel // size) * size
        return torch.zeros(padded, dtype=bucket.dtype, device=self._transport.device)

    def _memory(self, use: str, dtype: torch.dtype, numel: int) -> torch.Tensor:
        """Return memory kept from bucket to bucket; fresh pages cost as much as the copy."""
        kept = self._scratch.get((use, dtype))
        if kept is None or kept.numel() < numel:
            kept = torch.zeros(numel, dtype=dtype, device=self._transport.device)
            self._scratch[use, dtype] = kept
        return kept[:numel]
