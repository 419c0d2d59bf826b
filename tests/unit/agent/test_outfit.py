"""What the zygote and the workers of an agent are given, and what they are not."""

import pytest

from easyscale.agent.events import Slot
from easyscale.agent.outfit import fork_request, identity_of, local_host, supervisor_settings
from easyscale.agent.settings import LaunchSettings, StoreSettings
from easyscale.model import WorkerId
from tests.support.views import job_spec, launch_settings

W0 = WorkerId("a", "a-boot-1", "cuda:1", 1)
SLOT = Slot(name="cuda:1", uuid="GPU-7")


def settings(**changes: object) -> LaunchSettings:
    return launch_settings(
        environment={"PATH": "/bin", "EASYSCALE_ETCD_PASSWORD": "secret"}, **changes
    )


def test_the_password_of_etcd_stays_with_the_agent() -> None:
    request = fork_request(settings(), job_spec(), W0, slot=SLOT)
    assert request.environment["PATH"] == "/bin"
    zygote = supervisor_settings(settings(), slots=2).zygote
    assert zygote.environment["PATH"] == "/bin"
    for environment in (request.environment, zygote.environment):
        assert "secret" not in environment.values()


def test_a_worker_sees_the_device_of_its_slot_by_its_own_name() -> None:
    request = fork_request(settings(), job_spec(), W0, slot=SLOT)
    assert request.environment["CUDA_VISIBLE_DEVICES"] == "GPU-7"


def test_what_is_fixed_for_the_jobs_life_is_as_its_record_says() -> None:
    asked = settings(logical_workers=4, seed=5, snapshot_every_steps=50)
    given = fork_request(asked, job_spec(logical_workers=16), W0, slot=SLOT).settings
    assert (given.logical_workers, given.seed, given.token) == (16, 0, "t")
    assert (given.snapshot_dir, given.snapshot_every_steps) == ("/w/runs/job", 50)


def test_an_exchange_breaks_after_a_hung_worker_was_killed() -> None:
    asked = settings(hang_timeout_s=20.0)
    given = fork_request(asked, job_spec(), W0, slot=SLOT).settings
    assert given.exchange_deadline_s == 20.0 + asked.timeouts.exchange_margin_s


@pytest.mark.parametrize(
    ("changes", "host"),
    [
        ({"local_address": "10.0.0.7"}, "10.0.0.7"),
        ({}, "127.0.0.1"),
        ({"store": StoreSettings(endpoints=("127.0.0.1:2379",))}, "127.0.0.1"),
    ],
)
def test_others_are_told_this_end_of_the_road_to_etcd(
    changes: dict[str, object], host: str
) -> None:
    assert local_host(settings(**changes)) == host


def test_each_life_of_an_agent_is_another_one_on_the_same_host() -> None:
    first, second = (identity_of(settings(), address="a:1") for _ in range(2))
    assert first.incarnation != second.incarnation
    assert first.incarnation.rpartition("-")[0] == second.incarnation.rpartition("-")[0]
    assert (first.node, first.address) == ("a", "a:1")
