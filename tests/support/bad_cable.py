"""A cable that delays and loses frames, for kernels that cannot: a relay between two TAP devices.

    python -m tests.support.bad_cable NEAR FAR --delay 0.05 --loss 0.05 --seed 1

makes both devices, says `ready` and relays until its input ends; the devices end with it, wherever
they were moved meanwhile.
"""

import argparse
import contextlib
import fcntl
import heapq
import itertools
import os
import random
import select
import struct
import time

_TUNSETIFF = 0x400454CA
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_LONGEST_FRAME = 1 << 16


def tap(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", name.encode(), _IFF_TAP | _IFF_NO_PI))
    return device


def relay(one: int, two: int, *, delay_s: float, loss: float, chance: random.Random) -> None:
    """Carry frames both ways, in order, until the input ends."""
    other = {one: two, two: one}
    numbers = itertools.count()
    under_way: list[tuple[float, int, int, bytes]] = []
    while True:
        left_s = under_way[0][0] - time.monotonic() if under_way else None
        found, _, _ = select.select([one, two, 0], [], [], left_s and max(0.0, left_s))
        if 0 in found and not os.read(0, 1):
            return
        for device in {one, two} & set(found):
            with contextlib.suppress(OSError):  # nothing to read after all, or not yet up
                frame = os.read(device, _LONGEST_FRAME)
                if chance.random() >= loss:
                    arrives_s = time.monotonic() + delay_s
                    heapq.heappush(under_way, (arrives_s, next(numbers), other[device], frame))
        while under_way and under_way[0][0] <= time.monotonic():
            _, _, device, frame = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # the other end is down
                os.write(device, frame)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("near")
    parser.add_argument("far")
    parser.add_argument("--delay", type=float, required=True)
    parser.add_argument("--loss", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    one, two = tap(options.near), tap(options.far)
    print("ready", flush=True)
    chance = random.Random(options.seed)
    relay(one, two, delay_s=options.delay, loss=options.loss, chance=chance)


if __name__ == "__main__":
    main()
