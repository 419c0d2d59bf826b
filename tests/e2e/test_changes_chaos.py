"""A short seed of random harm in every run; `make chaos` plays long ones."""

from pathlib import Path

import pytest

from tests.support.chaos import Chaos, Harm
from tests.support.etcd import Server
from tests.support.nodes import Job, Reference

HARMS = [
    Harm("start a node", 0.2),
    Harm("kill a worker", 4.0),
    Harm("freeze etcd", 1.0),
    Harm("freeze a worker", 2.0),
]


@pytest.mark.proof
def test_a_job_is_harmed_again_and_again(
    tmp_path: Path, reference: Reference, etcd: Server
) -> None:
    options = ("--hang-timeout", "3", "--max-restarts", "50", "--snapshot-every", "5")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        chaos = Chaos(job, etcd, seed=1)
        chaos.begin()
        chaos.carry_out(HARMS)
        chaos.end()
