"""Cables are pulled between hosts: whoever is left goes on, and nobody else writes a byte."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from easyscale.rendezvous.endpoints import Endpoint
from tests.support.etcd import Server, bundled_binary, free_port, wait_until
from tests.support.netns import Bad, Host, Network, network
from tests.support.nodes import Job, Reference, gone
from tests.support.processes import run_easyscale

pytestmark = pytest.mark.proof

LEASE_S = 5


class Cut(Protocol):
    def __call__(self, hosts: list[Host], *, on: bool) -> None: ...


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
    one, two, three = (net.add_host() for _ in range(3))
    options = ("--hang-timeout", "2")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        a, b = job.start("a", within=one.within), job.start("b", within=two.within)
        c = job.start("c", within=three.within)
        job.trains_on(3)
        cut_off = set(job.pids()) & b.descendants()
        staying = set(job.pids()) - cut_off
        two.unplug()
        a.sees("recovered")
        job.waits(LEASE_S)
        job.trains_on(2)
        two.plug_in()
        job.trains_on(3)
        job.hurry()
        for node in (a, b, c):
            job.holds(node.finish())
        assert len(job.pids()) == 4
        assert staying <= set(job.pids(since_step=39)), "the others trained throughout"
        job.repeated_only(*cut_off)


def test_who_was_left_out_does_not_take_over_from_who_is_cut_off_then(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server
) -> None:
    one, two = net.add_host(), net.add_host()
    options = ("--hang-timeout", "2")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        a, b = job.start("a", within=one.within), job.start("b", within=two.within)
        job.trains_on(2)
        of_a = set(job.pids()) & a.descendants()
        of_b = set(job.pids()) & b.descendants()
        one.unplug()
        b.sees("recovered")
        two.unplug()
        one.plug_in()
        a.run.wait_for(r"could still run: waits for b/cpu:0 or proof that it ended")
        job.waits(LEASE_S)
        job.goes_on()
        assert set(job.pids(since_step=job.step() - 1)) == of_b, "a could not know what b does"
        two.plug_in()
        a.joins()
        job.trains_on(2)
        job.hurry()
        for node in (a, b):
            job.holds(node.finish())
        assert len(job.pids()) == 3
        job.repeated_only(*of_a)


def both_ways(hosts: list[Host], *, on: bool) -> None:
    for host in hosts[:2]:
        host.isolate(on=on)


def one_way(hosts: list[Host], *, on: bool) -> None:
    """The first hears the second, which hears nothing of the first."""
    hosts[0].drop_what_is_sent_to(hosts[1], on=on)


@pytest.mark.parametrize("cut", [both_ways, one_way])
def test_of_two_hosts_that_cannot_hear_each_other_one_goes_on_with_the_third(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server, cut: Cut
) -> None:
    hosts = [net.add_host() for _ in range(3)]
    options = ("--hang-timeout", "2")
    with Job(tmp_path, reference, etcd=etcd, options=options) as job:
        for name, host in zip("abc", hosts, strict=True):
            job.start(name, within=host.within)
        job.trains_on(3)
        of_third = job.nodes[2].descendants() & set(job.pids())
        cut(hosts, on=True)
        job.trains_on(2)
        job.goes_on()
        cut(hosts, on=False)
        job.hurry()
        for node in job.nodes:
            job.holds(node.finish())
        assert of_third <= set(job.pids(since_step=39)), "whom both hear trained throughout"


def test_a_cable_that_is_slow_and_loses_frames_costs_time_and_nothing_else(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server
) -> None:
    one, two = net.add_host(), net.add_host(Bad(delay_s=0.1, loss=0.05))
    with Job(tmp_path, reference, etcd=etcd) as job:
        a, b = job.start("a", within=one.within), job.start("b", within=two.within)
        job.trains_on(2)
        job.pace(0.05)
        job.goes_on(20)
        job.trains_on(2)
        job.hurry()
        for node in (a, b):
            job.holds(node.finish())
            assert node.events("lost") == []
        assert len(job.pids()) == 2
        job.repeated_only()


@pytest.mark.parametrize("after", ["6", "never"])
def test_a_group_that_nobody_hears_is_taken_over_and_fenced_when_it_is_heard_again(
    tmp_path: Path, reference: Reference, net: Network, etcd: Server, after: str
) -> None:
    one, two = net.add_host(), net.add_host()
    options = ("--snapshot-every", "4", "--takeover-after", after)
    with Job(tmp_path, reference, etcd=etcd, options=options, pace_s=0.5) as job:
        a = job.start("a", slots=2, within=one.within)
        a.sees("snapshot")
        unheard = job.pids()
        one.unplug()
        b = job.start("b", within=two.within)
        if after == "never":
            b.sees("met")
            held = partial(run_easyscale, "fence", job.name, "a", *job.where)
            wait_until(lambda: held().code == 0, "a's lease is over", deadline_s=60)
        b.joins()
        one.plug_in()
        gone(unheard)
        a.joins()
        job.hurry()
        end, end_of_a = b.finish(), a.finish()
        job.holds(end)
        job.holds(end_of_a, steps_lost=end_of_a["steps_lost"])
        assert end_of_a["steps_lost"] > 0, "what it had done unheard was done again"
