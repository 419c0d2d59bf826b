"""Training on N logical workers is what stock DistributedDataParallel computes on N devices."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes import started

TWIN = Path(__file__).parent / "scripts" / "ddp_twin.py"


def train_easyscale(folder: Path, n: int) -> str:
    out = folder / "easyscale"
    command = [sys.executable, str(TWIN), "easyscale", str(out)]
    with started(command, cwd=folder, env={"EASYSCALE_LOGICAL_WORKERS": str(n)}) as run:
        assert run.wait() == 0, run.report()
    return out.read_text()


def train_stock(folder: Path, n: int) -> str:
    out, init = folder / "stock", f"file://{folder / 'meeting'}"
    command = [sys.executable, str(TWIN), "ddp", str(out)]
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(started([*command, str(rank), str(n), init], cwd=folder))
            for rank in range(n)
        ]
        for run in ranks:
            assert run.wait() == 0, run.report()
    return out.read_text()


def test_two_logical_workers_give_the_bits_of_stock_ddp_on_gloo(tmp_path: Path) -> None:
    assert train_easyscale(tmp_path, 2) == train_stock(tmp_path, 2)


@pytest.mark.proof
@pytest.mark.parametrize("n", [3, 4])
def test_more_give_the_bits_of_stock_ddp_that_adds_in_the_trees_order(
    tmp_path: Path, n: int
) -> None:
    assert train_easyscale(tmp_path, n) == train_stock(tmp_path, n)


def test_another_number_of_logical_workers_gives_other_bits(tmp_path: Path) -> None:
    """The control: the comparison would see a divisor or an order that is another's."""
    assert train_easyscale(tmp_path, 4) != train_stock(tmp_path, 2)
