"""What plain workers print is kept, and said where it cannot be."""

import os
import threading
from pathlib import Path

from easyscale.agent.plain.kept import Who
from easyscale.agent.plain.settings import LogSettings, Std, StdChoice
from easyscale.agent.plain.worker_logs import RunLogs
from easyscale.reports import Source, Stream


def test_a_full_disk_costs_the_logs_and_not_the_output_and_is_said_once(tmp_path: Path) -> None:
    shown: list[bytes] = []
    told: list[str] = []
    over = threading.Event()
    logs = RunLogs(
        LogSettings(
            folder=str(tmp_path),
            tee=StdChoice(everywhere=Std.OUT | Std.ERR),
            stdout_filters=("seen",),
        ),
        job_id="job",
        node="a",
        role="default",
        show=lambda _source, _stream, data: shown.append(data),
        tell=told.append,
    )
    attempt = logs.folder / "attempt_0"
    (attempt / "1").mkdir(parents=True)
    for name in ("1/stdout.log", "filtered_stdout.log"):
        (attempt / name).symlink_to("/dev/full")
    who = Who(round=1, local_rank=1, rank=5, slot="1", workers=2)
    output = logs.prepare(logs.begin_round(1), who, ended=over.set)
    out = os.dup(output.theirs[Stream.STDOUT])
    logs.begin(output, Source(node="a", slot="1", pid=1))
    for _ in range(3):
        os.write(out, b"seen\n")
    os.close(out)
    assert over.wait(10)
    logs.close(deadline_s=5.0)
    assert b"".join(shown) == b"seen\n" * 3
    assert sorted(told) == [
        "the filtered copy of the logs ends here: no space left on device; training goes on",
        "the stdout log of rank 5 ends here: no space left on device; training goes on",
    ]
