"""Hosts of a small network on this machine: namespaces on a bridge, whose cables can be pulled.

            bridge (this machine: etcd)
           /        |         \
       host 1     host 2     host 3
"""

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.support.processes import ROOT

_numbers = itertools.count()


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass(frozen=True, slots=True)
class Host:
    """One namespace; `within` goes before a command that shall run there."""

    name: str
    address: str
    #: This machine's end of its cable, a port of the bridge.
    port: str

    @property
    def within(self) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self.name)

    def unplug(self) -> None:
        """Whatever is sent to it or by it is lost without a word."""
        ip("link", "set", self.port, "down")

    def plug_in(self) -> None:
        ip("link", "set", self.port, "up")

    def isolate(self, *, on: bool) -> None:
        """Isolated hosts reach this machine and others, but not one another."""
        word = "on" if on else "off"
        ip("link", "set", "dev", self.port, "type", "bridge_slave", "isolated", word)

    def drop_what_is_sent_to(self, other: "Host", *, on: bool) -> None:
        """It hears the other one, which hears nothing of it."""
        word = "add" if on else "delete"
        ip("-n", self.name, "route", word, "blackhole", other.address)


@dataclass(frozen=True, slots=True)
class Bad:
    """What a cable does to the frames on it, each way."""

    delay_s: float
    loss: float
    seed: int = 1


@dataclass(slots=True)
class Network:
    """A bridge with this machine's address on it, and its hosts."""

    bridge: str
    subnet: str
    hosts: list[Host] = field(default_factory=list)
    relays: list["subprocess.Popen[str]"] = field(default_factory=list)

    @property
    def address(self) -> str:
        return f"{self.subnet}.1"

    def add_host(self, bad: Bad | None = None) -> Host:
        number = len(self.hosts) + 2
        host = Host(
            name=f"{self.bridge}-{number}",
            address=f"{self.subnet}.{number}",
            port=f"{self.bridge}p{number}",
        )
        ip("netns", "add", host.name)
        self.hosts.append(host)
        far = f"{self.bridge}f{number}"
        if bad is None:
            ip("link", "add", host.port, "type", "veth", "peer", "name", far)
        else:
            self._relay(host.port, far, bad)
        ip("link", "set", far, "netns", host.name, "name", "eth0")
        ip("link", "set", host.port, "master", self.bridge, "up")
        ip("-n", host.name, "link", "set", "lo", "up")
        ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", "eth0")
        ip("-n", host.name, "link", "set", "eth0", "up")
        return host

    def _relay(self, near: str, far: str, bad: Bad) -> None:
        words = (near, far, "--delay", bad.delay_s, "--loss", bad.loss, "--seed", bad.seed)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.bad_cable", *map(str, words)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self.relays.append(process)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            pytest.skip("no TAP devices here")

    def end_relays(self) -> None:
        for process in self.relays:
            process.communicate()


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network of this test's own; skips the test where the machine permits none."""
    number = next(_numbers)
    found = Network(
        bridge=f"es{os.getpid() % 100000}n{number}",
        subnet=f"10.{200 + number % 50}.{os.getpid() % 250}",
    )
    try:
        ip("link", "add", found.bridge, "type", "bridge")
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        pytest.skip(f"no network namespaces here: {str(said).strip()}")
    try:
        ip("addr", "add", f"{found.address}/24", "dev", found.bridge)
        ip("link", "set", found.bridge, "up")
        yield found
    finally:
        found.end_relays()
        for host in found.hosts:
            with contextlib.suppress(subprocess.CalledProcessError):
                ip("link", "delete", host.port)
            ip("netns", "delete", host.name)
        ip("link", "delete", found.bridge)
