"""What a test needs from outside: missing is a skip on a laptop and a failure where CI=true."""

import os
from typing import NoReturn

import pytest


def missing_service(what: str) -> NoReturn:
    """End the test for want of `what`: quietly for a person, loudly where all must be there."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI=true says that nothing may be", pytrace=False)
    pytest.skip(f"{what} is missing")
