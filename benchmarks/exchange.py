"""Times the exchange of one step against gloo's own all-reduce, side by side in the same processes.

`python benchmarks/exchange.py` prints, for each number of processes and size, the median of the
ratios of alternating runs. Target: at most 1.1 from 1M floats on, with one partial sum each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from easyscale.model import (  # the path above comes first
    Commit,
    GenerationNumber,
    LogicalRank,
    Member,
    Mode,
    WorkerId,
)
from easyscale.runtime import siblings, tree
from easyscale.runtime.buckets import TensorLayout
from easyscale.runtime.exchange import Exchange, Note
from easyscale.runtime.group import Membership, Wait, form
from easyscale.runtime.headers import Operation, OperationKind
from easyscale.runtime.listener import Answers, Listener
from easyscale.runtime.partials import Partials

TARGET = 1.1
TOKEN = "benchmark"  # noqa: S105  guards a loopback socket for some seconds
M = 1 << 20
GENERATION = GenerationNumber(1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--elements", type=int, nargs="+", default=[M, 4 * M, 16 * M])
    parser.add_argument("--buckets", type=int, nargs="+", default=[4 * M])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cell", type=int, default=siblings.CELL_ELEMENTS)
    parser.add_argument("--member", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.member is not None:
        member(options)
        return
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores; ratio to gloo all-reduce")
    for size in options.processes:
        for elements in options.elements:
            for bucket in options.buckets:
                run(options, size, elements=elements, bucket=bucket)


def run(options: argparse.Namespace, size: int, *, elements: int, bucket: int) -> None:
    """Start the members of one measurement and print what they found."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--folder", folder, "--rounds", str(options.rounds)]
        command += ["--processes", str(size), "--elements", str(elements)]
        command += ["--buckets", str(bucket), "--cell", str(options.cell)]
        started = [
            subprocess.Popen([*command, "--member", str(rank)], stdout=subprocess.PIPE, text=True)
            for rank in range(size)
        ]
        outputs = [process.communicate()[0] for process in started]
    found = json.loads(outputs[0])
    whole, core = found["whole"], found["core"]
    print(
        f"{size} processes, {elements / M:5.1f}M floats, buckets of {bucket / M:.0f}M: "
        f"reduction {core:.2f} x (target {TARGET} x: {'met' if core <= TARGET else 'missed'}), "
        f"with headers and copies {whole:.2f} x of all-reduce with copies, "
        f"all-reduce {found['stock_ms']:.1f} ms",
        flush=True,
    )


def member(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    siblings.CELL_ELEMENTS = options.cell
    size, elements = options.processes[0], options.elements[0]
    rank, folder = options.member, options.folder
    worker = [WorkerId("bench", "0", f"cpu:{index}", 0) for index in range(size)]
    answers = Answers(know=lambda: "{}", state=lambda _: None, heard=lambda _: None)
    listener = Listener(host="127.0.0.1", token=TOKEN, worker=worker[rank], answers=answers)
    addresses = meet(folder, rank, size, listener.address)
    commit = Commit(
        generation=GENERATION,
        mode=Mode.RESTORE,
        members=tuple(
            Member(worker[index], addresses[index], (LogicalRank(index),)) for index in range(size)
        ),
        main=worker[0],
        reason="benchmark",
    )
    wait = Wait(timeout_s=120.0)
    group = form(Membership(commit, worker[rank], TOKEN), listener=listener, wait=wait)
    # Sixteen parameters, as a small network has: copies go piece by piece.
    parameters = [torch.nn.Parameter(torch.zeros(elements // 16)) for _ in range(16)]
    layout = TensorLayout.of([(str(i), p) for i, p in enumerate(parameters)], [])
    exchange = Exchange(group, layout=layout, n=size, bucket_elements=options.buckets[0])
    gradients = [torch.randn(elements // 16) for _ in parameters]
    found = measure(exchange, gradients, rounds=options.rounds, wait=wait)
    if rank == 0:
        print(json.dumps(found))
    sys.stdout.flush()
    # The others may still be in their last call.
    exchange.gather(Operation(OperationKind.END, 1 << 20), Note(newest=GENERATION), wait=wait)
    os._exit(0)


def measure(
    exchange: Exchange, gradients: list[torch.Tensor], *, rounds: int, wait: Wait
) -> dict[str, float]:
    """Alternate the kinds of run; a ratio is taken between neighbours, then the median."""
    size = exchange.group.size
    spans = tuple((tree.leaf(index),) for index in range(size))
    gloo = exchange.group.transport._gloo  # type: ignore[attr-defined]  # noqa: SLF001
    partials = Partials(size)
    partials.push(exchange.group.rank, gradients)
    flat = torch.zeros(sum(gradient.numel() for gradient in gradients))
    views = torch.split(flat, [gradient.numel() for gradient in gradients])
    cpu = [torch.device("cpu")] * len(gradients)
    # Headers and threads aside: what stands beside an all-reduce of a flat tensor.
    reduced = exchange._reduction  # noqa: SLF001
    assert reduced is not None
    position = 0
    kept: list[torch.Tensor | None] = []

    def whole() -> None:
        nonlocal position, kept
        operation = Operation(OperationKind.STEP, position, spans)
        note = Note(newest=GENERATION)
        record = exchange.step(operation, partials, note, buffers=None, wait=wait)
        kept = record.gradients(cpu)
        position += 1

    def core() -> None:
        for index in range(len(reduced.buckets)):
            reduced.reduce(index, spans, lambda _span, _views: None)

    def stock() -> None:
        gloo.allreduce([flat]).wait()

    def stock_with_copies() -> None:
        nonlocal kept
        torch._foreach_copy_(views, gradients)
        gloo.allreduce([flat]).wait()
        kept = [view.clone() for view in views]

    times: dict[str, list[float]] = {"whole": [], "core": [], "stock": [], "copies": []}
    runs = {"whole": whole, "copies": stock_with_copies, "core": core, "stock": stock}
    warm_up = 3
    for turn in range(rounds + warm_up):
        for name, call in runs.items():
            gloo.barrier().wait()
            began = time.perf_counter()
            call()
            if turn >= warm_up:
                times[name].append(time.perf_counter() - began)
    ratios = {
        "whole": [one / two for one, two in zip(times["whole"], times["copies"], strict=True)],
        "core": [one / two for one, two in zip(times["core"], times["stock"], strict=True)],
    }
    return {
        **{name: statistics.median(values) for name, values in ratios.items()},
        "stock_ms": 1000 * statistics.median(times["stock"]),
    }


def meet(folder: Path, rank: int, size: int, address: str) -> list[str]:
    """Exchange addresses through files: no launcher is needed."""
    (folder / f".{rank}").write_text(address)
    (folder / f".{rank}").rename(folder / str(rank))
    deadline = time.monotonic() + 60
    while not all((folder / str(index)).exists() for index in range(size)):
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"of {size} members, {sorted(path.name for path in folder.iterdir())} came in 60 s"
            )
        time.sleep(0.01)
    return [(folder / str(index)).read_text() for index in range(size)]


if __name__ == "__main__":
    main()
