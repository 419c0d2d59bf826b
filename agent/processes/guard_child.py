"""The lease guard: a small process that outlives its agent by a moment, to say that it has ended.

Orders come as JSON lines on standard input. When that ends without the word `done`, the agent was
killed: once all processes named are gone it writes `gone/`, then it revokes the lease, and leaves.
Standard library only, run by its path; it talks to etcd's JSON gateway.
"""

import base64
import contextlib
import http.client
import json
import os
import select
import ssl
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_CALL_TIMEOUT_S = 2.0
#: Trying all servers of etcd again and again ends after this.
_DEADLINE_S = 20.0
#: What hangs on the agent by parent-death signals is gone in milliseconds.
_PROCESSES_TIMEOUT_S = 5.0
_PAUSE_S = 0.1


class GatewayError(Exception):
    """Raised when no server answered as it should."""


class Gateway:
    """Calls to the first endpoint that answers."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._endpoints: list[list[Any]] = settings["endpoints"]
        self._user: str = settings["user"]
        self._password: str = settings["password"]
        self._tls: ssl.SSLContext | None = None
        self._token = ""
        if settings["ca"] or settings["cert"]:
            self._tls = ssl.create_default_context(cafile=settings["ca"] or None)
            if settings["cert"]:
                self._tls.load_cert_chain(settings["cert"], settings["key"])

    def put(self, key: str, value: str) -> None:
        self._call("/v3/kv/put", {"key": _text(key), "value": _text(value)})

    def revoke(self, lease: int) -> None:
        # A number beyond 2**53 is no number in JSON: etcd takes it as text.
        try:
            self._call("/v3/lease/revoke", {"ID": str(lease)})
        except GatewayError as error:
            if "lease not found" not in str(error):
                raise

    def check(self, lease: int) -> None:
        self._call("/v3/lease/timetolive", {"ID": str(lease)})

    def _call(self, path: str, body: dict[str, Any]) -> None:
        reasons = []
        for host, port in self._endpoints:
            try:
                if self._user and not self._token:
                    self._token = self._authenticate(host, port)
                self._post(host, port, path, body)
            except (OSError, http.client.HTTPException, ValueError, GatewayError) as error:
                self._token = ""
                reasons.append(f"{host}:{port}: {error}")
            else:
                return
        raise GatewayError("; ".join(reasons))

    def _authenticate(self, host: str, port: int) -> str:
        body = {"name": self._user, "password": self._password}
        return str(self._post(host, port, "/v3/auth/authenticate", body)["token"])

    def _post(self, host: str, port: int, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = (
            http.client.HTTPConnection(host, port, timeout=_CALL_TIMEOUT_S)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=_CALL_TIMEOUT_S, context=self._tls)
        )
        with contextlib.closing(connection):
            headers = {"Authorization": self._token} if self._token else {}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read(1 << 20)
            if response.status != http.HTTPStatus.OK:
                words = text[:300].decode(errors="replace").strip()
                raise GatewayError(f"{path} answered {response.status}: {words}")
        answer: dict[str, Any] = json.loads(text)
        return answer


class Guard:
    """What is to be done at the agent's end, kept current by it."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        self._say = say
        self._gateway: Gateway | None = None
        self._gone: tuple[str, str] = ("", "")
        self._lease = 0
        self._agent = os.getppid()
        self._sockets = ""
        #: By process id: a handle that becomes readable when it ends.
        self._processes: dict[int, int] = {}
        self.is_done = False

    def obey(self, order: dict[str, Any]) -> None:
        match order.get("order"):
            case "settings":
                self._gateway = Gateway(order)
                self._gone = (order["gone_key"], order["gone_value"])
                self._sockets = order["sockets"]
            case "lease":
                self._lease = order["lease"]
                self._report()
            case "process":
                self._watch(order["pid"])
            case "done":
                self.is_done = True
            case _:
                raise ValueError(f"no order: {order}")

    def act(self) -> None:
        """The agent has ended: prove it, as far as it is true."""
        deadline = time.monotonic() + _DEADLINE_S
        for path in Path(self._sockets).glob(f"*-{self._agent}.sock") if self._sockets else ():
            path.unlink(missing_ok=True)
        ended = self._await_processes()
        while time.monotonic() < deadline:
            try:
                assert self._gateway is not None
                if ended and self._gone[0]:
                    self._gateway.put(*self._gone)
                    self._gone = ("", "")
                if self._lease:
                    self._gateway.revoke(self._lease)
            except GatewayError:
                time.sleep(_PAUSE_S)
            else:
                return

    def _report(self) -> None:
        if self._gateway is None or not self._lease:
            return
        try:
            self._gateway.check(self._lease)
        except GatewayError as error:
            self._say({"armed": False, "reason": str(error)})
        else:
            self._say({"armed": True, "reason": ""})

    def _watch(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # gone already
            if pid not in self._processes:
                self._processes[pid] = os.pidfd_open(pid)
        for known, handle in list(self._processes.items()):
            if select.select([handle], [], [], 0)[0]:
                os.close(handle)
                del self._processes[known]

    def _await_processes(self) -> bool:
        deadline = time.monotonic() + _PROCESSES_TIMEOUT_S
        for handle in self._processes.values():
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([handle], [], [], left_s)[0]:
                return False  # something of it still runs: its end is no fact yet
        return True


def _text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def _say(answer: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def main() -> int:
    guard = Guard(_say)
    for line in sys.stdin:
        try:
            guard.obey(json.loads(line))
        except (OSError, ValueError) as error:
            # Certificates that cannot be read: without us the lease ends by itself.
            _say({"armed": False, "reason": str(error)})
        if guard.is_done:
            return 0
    guard.act()
    return 0


if __name__ == "__main__":
    sys.exit(main())
