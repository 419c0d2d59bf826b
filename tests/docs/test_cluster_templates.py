"""The templates for Slurm and Kubernetes: what they say is understood, and meets."""

import re
import sys
from pathlib import Path

import pytest

from easyscale.agent.plain.settings import PlainSettings
from easyscale_cli.commands.launch import command
from easyscale_cli.launch_reading import read_settings
from tests.support.processes import easyscale_command, started

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SBATCH = EXAMPLES / "slurm" / "ddp.sbatch"
POD = EXAMPLES / "kubernetes" / "ddp.yaml"
SCRIPT = (
    "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], flush=True)\n"
)


def pod_words() -> list[str]:
    """What a pod runs, without reading all of YAML."""
    (block,) = re.findall(r"^ +command:\n((?: +- .+\n)+)", POD.read_text(), re.MULTILINE)
    return [line.strip().removeprefix("- ") for line in block.splitlines()]


def test_a_pod_serves_or_finds_the_etcd_of_its_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    program, verb, *words = pod_words()
    assert (program, verb) == ("easyscale", "launch")
    asked = dict(command.make_context("launch", words).params)
    script, arguments = asked.pop("script"), asked.pop("arguments")
    environ = {"NODE_NAME": "ddp-3-x7k2p"}
    settings, notes = read_settings(script, arguments, asked=asked, environ=environ)
    assert isinstance(settings, PlainSettings)
    assert notes == ()
    assert (settings.store.serve_at, settings.job_id) == ("ddp-0.ddp:29400", "ddp")
    assert (settings.min_nodes, settings.max_nodes) == (1, 4)
    assert settings.node_name == "ddp-3-x7k2p"
    text = POD.read_text()
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", text)
    assert grace is not None
    assert settings.shutdown_timeout_s < int(grace[1])
    subdomain = re.search(r"subdomain: (\S+)", text)
    service = re.search(r"kind: Service\nmetadata:\n  name: (\S+)", text)
    assert subdomain is not None
    assert service is not None
    assert subdomain[1] == service[1] == settings.store.serve_at.split(".")[1].split(":")[0]


def stand_in(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def test_the_batch_script_runs_one_agent_a_node_and_they_meet(tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    stand_in(bin_, "scontrol", "echo localhost; echo other")
    # Two tasks of one host, as srun would start them on two.
    stand_in(
        bin_, "srun", 'shift; SLURMD_NODENAME=a "$@" & SLURMD_NODENAME=b "$@" & wait -n; wait -n'
    )
    launcher = " ".join(easyscale_command())
    stand_in(bin_, "easyscale", f'exec {launcher} "$@"')
    env = {
        "PATH": f"{bin_}:{Path(sys.executable).parent}:/usr/bin:/bin",
        "SLURM_JOB_NODELIST": "localhost,other",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": str(int.from_bytes(tmp_path.name.encode(), "big") % 10**6),
    }
    words = ["bash", str(SBATCH), "--nnodes", "2", "--nproc-per-node", "1", "train.py"]
    with started(words, cwd=tmp_path, env=env) as run:
        assert run.wait(60) == 0, run.report()
        assert sorted(re.findall(r"rank \d of \d", run.stdout)) == ["rank 0 of 2", "rank 1 of 2"]
