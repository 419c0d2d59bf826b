"""What is fixed for the life of an elastic job: written by its first agent, held by all others."""

import contextlib
import secrets

import msgspec

from easyscale.agent.settings import LaunchSettings
from easyscale.agent.snapshots import FixedValues, refuse_other_values
from easyscale.errors import OutcomeUnknown, StoreUnreachable
from easyscale.model import FORMAT_VERSION, JobSpec, decode, encode
from easyscale.rendezvous.formats import our_release, refuse_other_format
from easyscale.rendezvous.keys import JobKeys
from easyscale.rendezvous.store import Entry, Modified, Put, Store, absent

_CALL_TIMEOUT_S = 2.0


def fixed_values(settings: LaunchSettings) -> FixedValues:
    return FixedValues(
        logical_workers=settings.logical_workers,
        seed=settings.seed,
        determinism=settings.determinism,
        threads_per_worker=settings.threads_per_worker,
    )


def agree_on_job(store: Store, keys: JobKeys, settings: LaunchSettings) -> JobSpec:
    """Create the job's spec, or check that this launch asks for what is fixed already."""
    wanted = JobSpec(
        logical_workers=settings.logical_workers,
        seed=settings.seed,
        determinism=settings.determinism,
        threads_per_worker=settings.threads_per_worker,
        token=secrets.token_hex(16),
        layout=settings.layout,
        release=our_release(),
    )
    with contextlib.suppress(OutcomeUnknown):  # what stands is read back either way
        store.transact(
            [absent(keys.job)], [Put(keys.job, encode(wanted))], timeout_s=_CALL_TIMEOUT_S
        )
    view = store.read(keys.job, keys.nodes, timeout_s=_CALL_TIMEOUT_S)
    entry = view.get(keys.job)
    if entry is None:
        raise StoreUnreachable(f"the key {keys.job!r} was written and is not there")
    is_running = any(key.startswith(keys.nodes) for key in view.entries)
    refuse_other_format(settings.job_id, entry.value, source=entry.key, is_running=is_running)
    stands = decode(entry.value, JobSpec, source=entry.key)
    refuse_other_values(settings.job_id, stands=stands, asked=fixed_values(settings))
    return _renew_format(store, entry, stands)


def _renew_format(store: Store, entry: Entry, stands: JobSpec) -> JobSpec:
    """A job of an older format that nobody ran goes on in ours: its record says so to the next."""
    if stands.version >= FORMAT_VERSION:
        return stands
    renewed = msgspec.structs.replace(stands, version=FORMAT_VERSION, release=our_release())
    put = Put(entry.key, encode(renewed))
    with contextlib.suppress(OutcomeUnknown):
        store.transact([Modified(entry.key, entry.mod_revision)], [put], timeout_s=_CALL_TIMEOUT_S)
    return renewed
