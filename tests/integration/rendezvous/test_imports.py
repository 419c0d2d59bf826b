"""What an agent imports to decide is cheap; only who connects to an etcd pays for grpc."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["store", "keys", "memory", "endpoints", "embedded"])
def test_the_client_library_is_loaded_by_etcd_alone(module: str) -> None:
    code = (
        f"import easyscale.rendezvous.{module}, sys;"
        "sys.exit(any(name in sys.modules for name in ('grpc', 'etcd3', 'torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_grpc_is_kept_from_meddling_with_forks() -> None:
    code = (
        "import easyscale.rendezvous.etcd, os, sys;"
        "sys.exit(os.environ['GRPC_ENABLE_FORK_SUPPORT'] != '0')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
