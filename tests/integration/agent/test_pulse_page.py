"""Worker and agent at one pulse page at the same time, each in a process of its own."""

import os
import subprocess
import sys
import time

from easyscale.pulse import Beat, Phase, Pulse

#: So many of its beats are read while the writer goes on.
SEEN = 1_000
WRITER = """
import sys
from easyscale.pulse import Phase, Pulse
pulse, number = Pulse.attach(int(sys.argv[1])), 0
while True:
    number += 1
    pulse.beat(Phase.OUTER_BODY, position=number, step=number, rank=number)
"""


def test_a_reader_beside_its_writer_sees_whole_beats_in_their_order() -> None:
    descriptor = Pulse.allocate()
    reader = Pulse.attach(descriptor)
    command = [sys.executable, "-c", WRITER, str(descriptor)]
    with subprocess.Popen(command, pass_fds=(descriptor,)) as writer:
        os.close(descriptor)
        try:
            start_s = time.monotonic()
            while reader.read().phase is not Phase.OUTER_BODY:
                assert time.monotonic() < start_s + 30.0, "the writer does not begin"
                time.sleep(0.01)
            beats: list[Beat] = []
            while len({beat.since_s for beat in beats}) <= SEEN:
                assert time.monotonic() < start_s + 60.0, "the writer does not go on"
                beats += [reader.read() for _ in range(20_000)]
        finally:
            writer.kill()
    reader.close()
    assert [beat for beat in beats if not beat.position == beat.step == beat.rank] == []
    times = [beat.since_s for beat in beats]
    assert times == sorted(times)
