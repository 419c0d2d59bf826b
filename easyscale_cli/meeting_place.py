"""Where the nodes of a launch meet, and by what names: read from the command line."""

import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from easyscale.agent.settings import StoreSettings
from easyscale.errors import UsageError
from easyscale_cli.parameters import NodeRange

#: What torchrun takes for its c10d where no port is given.
_C10D_PORT = 29400
_HOST_NAME_VARIABLES = ("SLURMD_NODENAME", "NODE_NAME")


def store_of(asked: Mapping[str, Any], *, nodes: NodeRange, password: str) -> StoreSettings:
    endpoints = tuple(part.strip() for part in (asked["etcd"] or "").split(",") if part.strip())
    serve_at = _serve_at(asked, endpoints)
    if asked["standalone"] and endpoints:
        message = f"--standalone starts an etcd of its own; --etcd {asked['etcd']} names another"
        raise UsageError(message, hint="give one of the two")
    if not endpoints and nodes.least > 1:
        raise UsageError(
            f"{nodes.least} nodes need an etcd at which they meet", hint="--etcd HOST:2379"
        )
    return StoreSettings(
        endpoints=(serve_at,) if serve_at else endpoints,
        serve_at=serve_at,
        ca_file=asked["etcd_ca"],
        certificate_file=asked["etcd_cert"],
        key_file=asked["etcd_key"],
        user=asked["etcd_user"],
        password=password,
    )


def _serve_at(asked: Mapping[str, Any], endpoints: Sequence[str]) -> str:
    """Where the agent that finds HOST to be its own serves etcd; empty: etcd runs by itself."""
    from easyscale.rendezvous.endpoints import parse_endpoint

    backend = asked["rdzv_backend"]
    if backend == "static":
        raise UsageError(
            "--rdzv-backend static fixes nodes and ranks; an elastic job changes both",
            hint="--rdzv-backend c10d, or --etcd HOST:PORT",
        )
    if backend != "c10d" or not endpoints:
        return ""
    if len(endpoints) > 1:
        raise UsageError(
            f"--rdzv-backend c10d: one of the nodes serves, {len(endpoints)} addresses are given",
            hint="give one HOST:PORT, or --rdzv-backend etcd",
        )
    secure = [name for name in ("etcd_ca", "etcd_cert", "etcd_key", "etcd_user") if asked[name]]
    if secure:
        raise UsageError(
            f"--{secure[0].replace('_', '-')}: the etcd that an agent serves has neither TLS nor"
            " users",
            hint="an etcd of your own, with --etcd HOST:PORT and no --rdzv-backend c10d",
        )
    return str(parse_endpoint(endpoints[0], default_port=_C10D_PORT))


def nameless_nodes() -> UsageError:
    """Several nodes and no name: each would invent another one, and they would never meet."""
    return UsageError(
        "nodes of a job find each other by its name", hint="--rdzv-id NAME, the same on each"
    )


def new_job_id(script: str) -> str:
    stem = "".join(
        c if (c.isascii() and c.isalnum()) or c in "-_" else "-" for c in Path(script).stem
    )
    return f"{stem[:40] or 'job'}-{secrets.token_hex(3)}"


def host_name(environ: Mapping[str, str]) -> str:
    for variable in _HOST_NAME_VARIABLES:
        if environ.get(variable):
            return environ[variable]
    return socket.gethostname().partition(".")[0] or "node"


def password_of(environ: Mapping[str, str]) -> str:
    return environ.get("EASYSCALE_ETCD_PASSWORD", "")
