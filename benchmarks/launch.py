"""Times a launch to the first line of the script against torchrun, two workers, runs alternating.

`python benchmarks/launch.py` prints the median of the ratios of neighbouring runs. The script
imports torch first, as a training script does. Target: at most 0.6.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = 0.6
SCRIPT = "import torch; import time; print('first line', time.time(), flush=True)\n"
#: What a launched worker must do besides: an elastic job is over when its training is.
ELASTIC = (
    "import torch; import time; print('first line', time.time(), flush=True)\n"
    "import easyscale; job = easyscale.init(); job.register(w=torch.zeros(1))\n"
    "for _ in job.epochs(0): pass\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    folder_of_programs = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain, elastic = folder / "plain.py", folder / "elastic.py"
        plain.write_text(SCRIPT)
        elastic.write_text(ELASTIC)
        torchrun: list[Path | str] = [folder_of_programs / "torchrun", "--nproc-per-node", "2"]
        torchrun.append(plain)
        ours: list[Path | str] = [folder_of_programs / "easyscale", "launch"]
        ours += ["--devices", "cpu:2", "--logical-workers", "2", elastic]
        for command in (torchrun, ours):  # disk caches warm for both
            first_line_s(command, folder)
        pairs = [
            (first_line_s(ours, folder), first_line_s(torchrun, folder))
            for _ in range(options.rounds)
        ]
    ratio = statistics.median(a / b for a, b in pairs)
    a, b = (statistics.median(side) for side in zip(*pairs, strict=True))
    verdict = "met" if ratio <= TARGET else "missed"
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {options.rounds} pairs")
    print(
        f"launch to first line, 2 workers: {ratio:.2f} x of torchrun "
        f"(target {TARGET} x: {verdict}), {a:.2f} s against {b:.2f} s"
    )


def first_line_s(command: list[Path | str], folder: Path) -> float:
    """Seconds from the start of a launch until both workers have said their first line."""
    began_s = time.time()
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=dict(os.environ) | {"OMP_NUM_THREADS": "1"},
    )
    said = [line.split("first line ")[1] for line in done.stdout.splitlines() if "first" in line]
    if len(said) != 2:  # noqa: PLR2004 - both workers
        raise RuntimeError(f"{command[0]} said {done.stdout!r} {done.stderr!r}")
    return max(map(float, said)) - began_s


if __name__ == "__main__":
    main()
