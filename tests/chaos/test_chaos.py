"""Whatever happens to a job, in whatever order: it ends with the bits of the undisturbed run."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos import Chaos, draw
from tests.support.etcd import Server, bundled_binary
from tests.support.nodes import Job, Reference, no_doors

#: `EASYSCALE_CHAOS_SEEDS=17,18` plays these instead.
SEEDS = [int(word) for word in os.environ.get("EASYSCALE_CHAOS_SEEDS", "1,2,3,4").split(",")]
HARMS = 16


@pytest.fixture(scope="session")
def long_reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference.take(tmp_path_factory.mktemp("steady"), epochs=16)


@pytest.fixture
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(bundled_binary(), tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.end()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_of_harm_does_not_reach_the_bits(
    tmp_path: Path, long_reference: Reference, etcd: Server, seed: int
) -> None:
    harms = draw(seed, HARMS)
    print(f"seed {seed}:", *(f"  +{harm.after_s} s {harm.what}" for harm in harms), sep="\n")
    options = ("--hang-timeout", "3", "--max-restarts", "50", "--snapshot-every", "5")
    with Job(tmp_path, long_reference, etcd=etcd, options=options) as job:
        chaos = Chaos(job, etcd, seed=seed)
        try:
            chaos.begin()
            chaos.carry_out(harms)
            chaos.end()
            no_doors()
        finally:
            print(*chaos.story, sep="\n")
