"""Terms of a leader: what follows from the leader key, and from the clock alone."""

from dataclasses import replace

from easyscale.rendezvous.election import Office, see, watch_clock
from easyscale.rendezvous.store import Entry

OFFICE = Office("a/1", stands=True, renewed_s=100.0)


def key(value: str, revision: int = 9) -> Entry:
    return Entry("leader", value, revision, revision, None)


def test_a_vacant_office_is_tried_for() -> None:
    assert see(OFFICE, None).try_now
    assert not see(replace(OFFICE, stands=False), None).try_now


def test_our_own_key_is_our_term_whoever_told_us() -> None:
    term = see(OFFICE, key("a/1"))
    assert term.elected == 9
    assert term.office.token == 9
    assert see(term.office, key("a/1")).elected is None


def test_a_new_term_has_a_new_token() -> None:
    leading = see(OFFICE, key("a/1")).office
    assert see(leading, key("a/1", 12)).elected == 12


def test_somebody_elses_key_ends_our_term() -> None:
    leading = see(OFFICE, key("a/1")).office
    term = see(leading, key("b/1"))
    assert term.deposed == "b/1 leads"
    assert term.office.token is None
    assert not term.try_now


def test_a_leader_steps_down_before_its_lease_could_have_ended() -> None:
    leading = replace(OFFICE, token=9)
    assert not watch_clock(leading, 103.9, ttl_s=5, margin_s=1).deposed
    term = watch_clock(leading, 104.0, ttl_s=5, margin_s=1)
    assert term.deposed == "the lease was not renewed for 4.0 s"
    assert term.office.token is None


def test_who_does_not_lead_has_nothing_to_step_down_from() -> None:
    assert not watch_clock(OFFICE, 999.0, ttl_s=5, margin_s=1).deposed
