"""What a script says of itself is read from its text."""

import ast

import pytest

from easyscale_cli.commands.doctor import script_facts


@pytest.mark.parametrize(
    ("text", "calls"),
    (
        ("import easyscale\njob = easyscale.init()", True),
        ("import easyscale as es\njob = es.init(seed=1)", True),
        ("from easyscale import init as begin\njob = begin()", True),
        ("from other import init\ninit()", False),
        ("import easyscale\neasyscale.state", False),
        ("import wandb\nwandb.init()", False),
    ),
)
def test_a_call_of_init_is_found_under_any_name(text: str, *, calls: bool) -> None:
    assert script_facts("t.py", ast.parse(text)).calls_init is calls


def test_what_trains_by_process_is_named() -> None:
    text = "import torch.distributed as dist\ndist.init_process_group()\nDistributedSampler(x)"
    found = script_facts("t.py", ast.parse(text)).by_process
    assert found == ("DistributedSampler", "init_process_group")
