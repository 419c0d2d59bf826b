"""Cables are pulled between hosts: whoever is left goes on, and nobody else writes a byte."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from easyscale.rendezvous.endpoints import Endpoint
from tests.support.etcd import Server, bundled_binary, free_port
from tests.support.netns import Network, network
from tests.support.nodes import Job, Reference, gone

pytestmark = pytest.mark.proof


@pytest.fixture
def net() -> Iterator[Network]:
    with network() as made:
        yield made


@pytest.fixture
def etcd(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(
        bundled_binary(),
        tmp_path_factory.mktemp("etcd"),
        endpoint=Endpoint(net.address, free_port()),
    )
    server.start()
    yield server
    server.end()


def test_a_host_that_lost_its_cable_is_left_out_and_joins_again_with_it(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server
) -> None:
    one, two = net.add_host(), net.add_host()
    options = ("--hang-timeout", "2")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        a, b = job.start("a", within=one.within), job.start("b", within=two.within)
        job.trains_on(2)
        cut_off = set(job.pids()) & b.descendants()
        two.unplug()
        a.sees("recovered")
        job.goes_on()
        job.trains_on(1)
        two.plug_in()
        job.trains_on(2)
        job.hurry()
        job.holds(a.finish())
        job.holds(b.finish())
        assert len(job.pids()) == 3
        job.repeated_only(*cut_off)


def test_of_two_hosts_that_cannot_hear_each_other_one_goes_on_with_the_third(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server
) -> None:
    hosts = [net.add_host() for _ in range(3)]
    options = ("--hang-timeout", "2")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        for name, host in zip("abc", hosts, strict=True):
            job.start(name, within=host.within)
        job.trains_on(3)
        for host in hosts[:2]:
            host.isolate(on=True)
        job.trains_on(2)
        job.goes_on()
        for host in hosts[:2]:
            host.isolate(on=False)
        job.hurry()
        for node in job.nodes:
            job.holds(node.finish())


def test_a_group_that_nobody_hears_is_taken_over_and_fenced_when_it_is_heard_again(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server
) -> None:
    one, two = net.add_host(), net.add_host()
    options = ("--snapshot-every", "4", "--takeover-after", "6")
    with Job(tmp_path, reference, etcd=etcd, options=options, pace_s=0.5) as job:
        a = job.start("a", slots=2, within=one.within)
        a.sees("snapshot")
        unheard = job.pids()
        one.unplug()
        b = job.start("b", within=two.within)
        b.joins()
        one.plug_in()
        gone(unheard)
        a.joins()
        job.hurry()
        end, end_of_a = b.finish(), a.finish()
        job.holds(end)
        job.holds(end_of_a, steps_lost=end_of_a["steps_lost"])
        assert end_of_a["steps_lost"] > 0, "what it had done unheard was done again"
