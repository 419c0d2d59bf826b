"""Addresses are read as people write them; versions are judged as decided."""

from pathlib import Path

import pytest

from easyscale.errors import StoreRefused, StoreUnreachable, UsageError
from easyscale.rendezvous import endpoints
from easyscale.rendezvous.endpoints import (
    Endpoint,
    EtcdSettings,
    await_versions,
    check_version,
    parse_endpoint,
    parse_endpoints,
)

ENDPOINT = Endpoint("etcd.local", 2379)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node-1", "node-1", 2379),
        ("node-1:29500", "node-1", 29500),
        ("http://node-1:2379/", "node-1", 2379),
        ("https://10.0.0.1", "10.0.0.1", 2379),
        ("[::1]:2379", "::1", 2379),
        ("[fe80::1]", "fe80::1", 2379),
        ("::1", "::1", 2379),
    ],
)
def test_an_endpoint_is_read_as_people_write_it(text: str, host: str, port: int) -> None:
    assert parse_endpoint(text) == (host, port)


@pytest.mark.parametrize("text", ["", "a:", "a:b", "a:0", "a:65536", "a/b:1", "[::1]x", "a:1:x"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_endpoint(text)


def test_endpoints_are_separated_by_commas() -> None:
    assert parse_endpoints("a:1, b:2,c,") == (("a", 1), ("b", 2), ("c", 2379))


def test_an_endpoint_is_shown_as_it_is_written() -> None:
    assert [str(Endpoint("a", 1)), str(Endpoint("::1", 1))] == ["a:1", "[::1]:1"]


@pytest.mark.parametrize("version", ["2.3.8", "3.3.27", "3.0.0", "nonsense", ""])
def test_a_version_below_3_4_is_refused(version: str) -> None:
    with pytest.raises(StoreRefused, match=r"etcd\.local:2379"):
        check_version(version, endpoint=ENDPOINT, is_embedded=True)


@pytest.mark.parametrize(
    ("version", "wanted"), [("3.4.0", "3.4.22"), ("3.4.21", "3.4.22"), ("3.5.5", "3.5.6")]
)
def test_a_version_that_can_lose_entries_is_warned_of(version: str, wanted: str) -> None:
    warning = check_version(version, endpoint=ENDPOINT, is_embedded=False)
    assert version in warning
    assert wanted in warning


@pytest.mark.parametrize("version", ["3.4.22", "3.5.6", "3.6.0", "3.5.21", "4.0.0", "3.6.0-rc.1"])
def test_a_sound_version_needs_no_word(version: str) -> None:
    assert check_version(version, endpoint=ENDPOINT, is_embedded=False) == ""


def test_the_age_of_our_own_server_is_no_news() -> None:
    assert check_version("3.5.1", endpoint=ENDPOINT, is_embedded=True) == ""


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    for settings in (
        {"endpoints": ()},
        {"cert": pem},
        {"key": pem},
        {"user": "root"},
        {"password": "secret"},
        {"ca": tmp_path / "missing.pem"},
    ):
        with pytest.raises(UsageError):
            EtcdSettings(**{"endpoints": (ENDPOINT,)} | settings)


def test_a_password_is_never_shown() -> None:
    settings = EtcdSettings((ENDPOINT,), user="root", password="hunter2")
    assert "hunter2" not in repr(settings) + str(settings)


def test_a_file_that_is_no_certificate_is_named_as_such(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.write_text("nonsense")
    with pytest.raises(UsageError, match="certificates"):
        EtcdSettings((ENDPOINT,), ca=pem).ssl_context()


def test_who_finds_no_etcd_reads_how_long_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]

    def ask(endpoint: Endpoint, _: EtcdSettings, *, timeout_s: float) -> str:
        now[0] += 15.6  # a name that is looked up knows of no deadline
        raise StoreUnreachable(f"{endpoint}: no answer")

    monkeypatch.setattr(endpoints, "server_version", ask)
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with pytest.raises(StoreUnreachable) as caught:
        await_versions(EtcdSettings((ENDPOINT,)), timeout_s=5.0)
    monkeypatch.undo()
    assert caught.value.message == (
        "no etcd answered, asked for 15.6 s (etcd.local:2379: no answer)"
    )
