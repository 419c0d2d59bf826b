"""One zygote for all tests here: it imports torch once, and each test forks its workers from it."""

from collections.abc import Iterator

import pytest

from tests.support.crew import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()
