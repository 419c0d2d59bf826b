"""Slots of two kinds of processor in one job: refused under D1; under D2 none is another kind.

A second kind is played by what the libraries are told to use at most: they do compute with other
instructions then, as the digests of each kind alone show. An AVX2 slot offered to an AVX-512 job
needs a processor with AVX-512; on others an SSE slot is offered to an AVX2 job.

The pins of D2 stand over what the libraries are told: here they make one kind of both. That two
processors compute the same bits below them is for two processors to show.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from easyscale.baseline import baseline
from tests.support.etcd import Server
from tests.support.nodes import Job, Node, Reference

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]

NATIVE = torch.backends.cpu.get_cpu_capability().lower()
AVX2 = ("ATEN_CPU_CAPABILITY=avx2", "ONEDNN_MAX_CPU_ISA=AVX2", "MKL_CBWR=AVX2")
SSE = ("ATEN_CPU_CAPABILITY=default", "ONEDNN_MAX_CPU_ISA=SSE41", "MKL_CBWR=COMPATIBLE")
OTHERS = (
    pytest.param(
        AVX2,
        id="avx2",
        marks=pytest.mark.skipif(
            NATIVE != "avx512",
            reason="an AVX2 slot offered to an AVX-512 job needs a processor with AVX-512, and "
            f"this one has {NATIVE} at most; the row [sse] ran in its place: an SSE slot offered "
            f"to the {NATIVE} job",
        ),
    ),
    pytest.param(SSE, id="sse"),
)
#: The agent with the refusal of other kinds taken out.
MIXING = """
import sys
from easyscale.agent import gathering
gathering.fits_kind = lambda slot, kind: True
from easyscale_cli.main import run
sys.exit(run(sys.argv[2:]))
"""
#: A node of another architecture: nothing is pinned there.
UNPINNED = """
import easyscale.baseline
easyscale.baseline.CPU_BASELINE = {}
"""
#: A product whose sums are longer than any vector, and its bits.
COMPUTE = """
import hashlib, torch
torch.set_num_threads(1)
rows = ((torch.arange(64 * 67) % 17 - 8) / 3).view(64, 67)
bits = (rows @ rows.t()).numpy().tobytes()
print(torch.backends.cpu.get_cpu_capability().lower(), hashlib.sha256(bits).hexdigest())
"""


def of_kind(*told: str, mixing: bool = False) -> tuple[str, ...]:
    """What goes before a launch, so that its slots are of another kind."""
    return ("env", *told, *((sys.executable, "-c", MIXING) if mixing else ()))


def finished(job: Job, *nodes: Node) -> str:
    """Let the job end; the digest that all its agents saw."""
    job.hurry()
    digests = {str(node.finish()["digest"]) for node in nodes}
    assert len(digests) == 1, job.report()
    return digests.pop()


def stays_standby(job: Job, node: Node) -> str:
    """What people are told of its only slot, which holds nothing."""

    def said() -> list[str]:
        reasons = (str(note["reason"]) for note in node.events("note"))
        return [reason for reason in reasons if "stays standby: of kind cpu " in reason]

    job.until(said, f"{node.name} stays standby")
    return said()[0]


@pytest.mark.parametrize("other", OTHERS)
def test_under_d1_a_slot_of_another_kind_stays_standby_and_says_why(
    tmp_path: Path, reference: Reference, etcd: Server, other: tuple[str, ...]
) -> None:
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a")
        a.sees("started")
        b = job.start("b", within=of_kind(*other))
        said = stays_standby(job, b)
        assert other[0] in said
        assert f"the job is of kind cpu {NATIVE} " in said
        assert "--determinism heterogeneous mixes processors" in said
        assert finished(job, a, b) == reference.digest
        assert len(job.pids()) == 1


@pytest.mark.parametrize("other", OTHERS)
def test_with_the_refusal_taken_out_the_weights_differ(
    tmp_path: Path, reference: Reference, etcd: Server, other: tuple[str, ...]
) -> None:
    """The negative control: were both kinds of equal bits, the refusal would prove nothing."""
    with Job(tmp_path, reference, etcd=etcd) as job:
        a = job.start("a", within=of_kind(mixing=True))
        a.sees("started")
        job.start("b", within=of_kind(*other, mixing=True)).joins()
        job.hurry()
        for node in job.nodes:
            cause = node.finish(code=1)["first_cause"]["message"]
            assert "has come to differ between a/cpu:0 and b/cpu:0" in cause
            assert "or the two compute other bits" in cause


@pytest.mark.parametrize("other", OTHERS)
def test_each_kind_alone_computes_with_its_own_instructions_and_ends_with_other_bits(
    tmp_path: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    other: tuple[str, ...],
) -> None:
    """The control of the one below: under D1 nothing but the kind makes the digests differ."""
    own_capability, own_product = computed()
    with monkeypatch.context() as told:
        for name, _, value in (text.partition("=") for text in other):
            told.setitem(os.environ, name, value)
        capability, product = computed()
        alone = Reference.take(tmp_path / "alone", epochs=reference.epochs)
    assert own_capability == NATIVE
    assert capability == other[0].partition("=")[2] != NATIVE
    assert product != own_product
    assert alone.steps == reference.steps
    assert alone.digest != reference.digest


def computed() -> tuple[str, str]:
    """What a process of this environment says that it computes with, and what it computes."""
    said = subprocess.run(
        [sys.executable, "-c", COMPUTE], check=True, capture_output=True, text=True, timeout=90
    )
    capability, product = said.stdout.split()
    return capability, product


@pytest.mark.skipif(not baseline(), reason="this architecture has no pinned baseline")
@pytest.mark.parametrize("other", OTHERS)
def test_under_d2_pins_stand_over_what_a_slot_is_told_and_mixed_or_alone_all_end_alike(
    tmp_path: Path, etcd: Server, monkeypatch: pytest.MonkeyPatch, other: tuple[str, ...]
) -> None:
    """Without them the second node would be of the other kind and bits of the tests above."""
    with monkeypatch.context() as pinned:
        for name, value in baseline().items():
            pinned.setitem(os.environ, name, value)
        pinned.setitem(os.environ, "EASYSCALE_DETERMINISM", "heterogeneous")
        alone = Reference.take(tmp_path / "alone", epochs=2)
    options = ("--determinism", "heterogeneous")
    with Job(tmp_path / "mixed", alone, etcd=etcd, options=options) as job:
        a = job.start("a")
        a.sees("started")
        b = job.start("b", within=of_kind(*other))
        unpinned = tmp_path / "unpinned"
        unpinned.mkdir()
        (unpinned / "sitecustomize.py").write_text(UNPINNED)
        c = job.start("c", within=of_kind(f"PYTHONPATH={unpinned}"))
        b.joins()
        said = stays_standby(job, c)
        assert f"the job is of kind cpu {baseline()['ATEN_CPU_CAPABILITY']} baseline " in said
        assert "mixes processors of one architecture, and no more" in said
        job.trains_on(2)
        assert len(job.pids()) == 2
        assert finished(job, *job.nodes) == alone.digest
    with Job(tmp_path / "other", alone, options=options, pace_s=0) as job:
        assert finished(job, job.start("b", within=of_kind(*other))) == alone.digest
