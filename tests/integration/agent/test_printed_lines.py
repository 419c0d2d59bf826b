"""Between two processes under load no line is shown with a rank that did not print it."""

import mmap
import os
import select
import threading
import time
from collections import Counter

from easyscale.printed import SHARED_BYTES, RankNotes, RankReader

SECONDS = 2.0


def worker(page: int, pipes: tuple[int, int]) -> None:
    """Four micro-steps and an outer body a millisecond, each saying who it is."""
    notes = RankNotes(mmap.mmap(page, SHARED_BYTES), pipes)
    end_s = time.monotonic() + SECONDS
    while time.monotonic() < end_s:
        for rank in range(4):
            notes.begin(rank)
            os.write(pipes[0], b"%d\n" % rank)
        notes.begin(None)
        os.write(pipes[0], b"outer\n")
        time.sleep(0.001)


def test_no_line_has_another_rank_than_its_own() -> None:
    page = os.memfd_create("page")
    os.ftruncate(page, SHARED_BYTES)
    (out, to_out), (err, to_err) = os.pipe(), os.pipe()
    os.set_blocking(out, False)
    child = os.fork()
    if child == 0:
        worker(page, (to_out, to_err))
        os._exit(0)
    os.close(to_out)
    reader = RankReader(page)
    is_over = threading.Event()

    def burden() -> None:
        """Keeps the interpreter busy, as an agent with much to do."""
        while not is_over.is_set():
            sum(range(1000))

    busy = threading.Thread(target=burden)
    busy.start()
    told: Counter[str] = Counter()
    while True:
        select.select([out], [], [], 10)
        try:
            data = reader.read(0, out, 1 << 16)
        except BlockingIOError:
            continue
        if not data:
            break
        for piece, rank in reader.split(0, data):
            for line in piece.split():
                whose = None if line == b"outer" else int(line)
                kind = "right" if rank == whose else "unknown" if rank is None else "wrong"
                told[kind] += 1
    is_over.set()
    busy.join()
    for descriptor in (page, out, err, to_err):
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
    assert told["wrong"] == 0
    assert told["right"] > 1000
