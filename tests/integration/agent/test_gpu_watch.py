"""The child that asks NVML, where there is no driver to ask."""

import logging

import pytest

from easyscale.agent.events import DeviceTroubled
from easyscale.agent.hardware.devices import has_driver
from easyscale.agent.hardware.gpu_watch import GpuWatch
from tests.support.etcd import wait_until


@pytest.mark.skipif(has_driver(), reason="an NVIDIA driver is here")
def test_without_a_driver_it_says_so_once_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    posted: list[DeviceTroubled] = []
    watch = GpuWatch(posted.append)
    with caplog.at_level(logging.WARNING):
        watch.start()
        wait_until(lambda: "troubles of GPUs are not heard of" in caplog.text, "the reason")
    watch.close()
    assert posted == []
