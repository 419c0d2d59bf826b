"""What a checkup makes of each node: its devices, torch, cores, limits and folders. Pure."""

from collections import Counter
from collections.abc import Sequence

from easyscale.agent.checkup.doctor_report import (
    Check,
    Level,
    by,
    listed,
    names_of,
    on,
    on_list,
    size,
)
from easyscale.agent.checkup.node_facts import NodeFacts
from easyscale.agent.hardware.surroundings import SHM, SMALL_SHM_BYTES

OLDEST_TORCH = (2, 11)
#: A worker has some files open per peer, per loader worker and per shard.
_OPEN_FILES = 4096
_LITTLE_SPACE_BYTES = 2_000_000_000


def devices(nodes: Sequence[NodeFacts]) -> Check:
    mute = [node for node in nodes if node.driver and not node.gpus]
    facts = by(nodes, _devices_of)
    drivers = {node.driver for node in nodes if node.driver}
    if len(drivers) == 1:
        facts += f"; driver {next(iter(drivers))}{' on all' if len(nodes) > 1 else ''}"
    if mute:
        return Check(
            name="devices",
            level=Level.FAULT,
            facts=facts,
            nodes=names_of(mute),
            cure=f"{on(mute, nodes)}the driver {mute[0].driver} shows no GPU: nvidia-smi, "
            "CUDA_VISIBLE_DEVICES, docker run --gpus all",
        )
    if len({bool(node.gpus) for node in nodes}) > 1:
        bare = [node for node in nodes if not node.gpus]
        return Check(
            name="devices",
            level=Level.WARNING,
            facts=facts,
            nodes=names_of(bare),
            cure="one kind of device trains, the others stay standby: --devices cpu on all, or "
            f"leave out {listed(bare)}",
        )
    return Check(name="devices", level=Level.GOOD, facts=facts)


def _devices_of(node: NodeFacts) -> str:
    if not node.gpus:
        return f"{node.cores} CPU slots" if node.cores > 1 else "1 CPU slot"
    counts = Counter(name.removeprefix("NVIDIA ") for name in node.gpus)
    return " and ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def torch(nodes: Sequence[NodeFacts]) -> Check:
    facts = by(nodes, lambda node: node.torch.version or "none")
    missing = [node for node in nodes if not node.torch.version]
    old = [node for node in nodes if node.torch.version and _numbers(node) < OLDEST_TORCH]
    if missing or old:
        wrong = missing or old
        least = ".".join(map(str, OLDEST_TORCH))
        return Check(
            name="torch",
            level=Level.FAULT,
            facts=facts,
            nodes=names_of(wrong),
            cure=f"{on(wrong, nodes)}pip install 'torch>={least}'",
        )
    idle = [node for node in nodes if node.gpus and not node.torch.cuda]
    if idle:
        return Check(
            name="torch",
            level=Level.FAULT,
            facts=facts,
            nodes=names_of(idle),
            cure=f"{on(idle, nodes)}this build knows no CUDA, so the GPUs cannot train: "
            "pip install torch from the index of your CUDA",
        )
    versions = Counter(node.torch.version for node in nodes)
    if len(versions) > 1:
        usual = max(versions, key=lambda version: (versions[version], version))
        others = [node for node in nodes if node.torch.version != usual]
        return Check(
            name="torch",
            level=Level.WARNING,
            facts=facts,
            nodes=names_of(others),
            cure=f"bits may differ between {listed(others)} and the others: "
            f"pip install torch=={usual.partition('+')[0]} on {listed(others)}",
        )
    return Check(name="torch", level=Level.GOOD, facts=facts)


def _numbers(node: NodeFacts) -> tuple[int, ...]:
    parts = node.torch.version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdecimal() else 0 for part in parts)


def cores(nodes: Sequence[NodeFacts]) -> Check:
    def shown(node: NodeFacts) -> str:
        if node.cores < node.processors:
            return f"{node.cores} of {node.processors}, by quota or affinity"
        return f"{node.cores}"

    return Check(name="cores", level=Level.GOOD, facts=by(nodes, shown))


def open_files(nodes: Sequence[NodeFacts]) -> Check:
    few = [node for node in nodes if 0 <= node.open_files < _OPEN_FILES]
    if not few:
        facts = by(nodes, lambda node: _count(node.open_files))
        return Check(name="file limit", level=Level.GOOD, facts=f"{facts} open files")
    hard = [node for node in few if 0 <= node.most_open_files < _OPEN_FILES]
    facts = f"{on(few, nodes)}{few[0].open_files:,} open files; many loader workers want more"
    where = on_list(few, nodes)
    cure = f"ulimit -n 65536 before easyscale launch{where}"
    if hard:
        cure = f"raise the hard limit in /etc/security/limits.conf{on_list(hard, nodes)}"
    return Check(
        name="file limit", level=Level.WARNING, facts=facts, nodes=names_of(few), cure=cure
    )


def _count(limit: int) -> str:
    return "unlimited" if limit < 0 else f"{limit:,}"


def shared_memory(nodes: Sequence[NodeFacts]) -> Check | None:
    measured = [node for node in nodes if node.shm_bytes is not None]
    small = [node for node in measured if (node.shm_bytes or 0) < SMALL_SHM_BYTES]
    if not measured:
        return None
    facts = by(measured, lambda node: size(node.shm_bytes or 0))
    if not small:
        return Check(name=str(SHM), level=Level.GOOD, facts=facts)
    return Check(
        name=str(SHM),
        level=Level.WARNING,
        facts=facts,
        nodes=names_of(small),
        cure="loader workers hand over their batches there: docker run --shm-size 2g, "
        "or num_workers=0",
    )


def folder(nodes: Sequence[NodeFacts]) -> Check:
    path = nodes[0].folder.path
    barred = [node for node in nodes if node.folder.fault]
    if barred:
        reason = barred[0].folder.fault
        lost = (
            "no snapshot can be written"
            if len(nodes) == 1
            else f"none is written on {listed(barred)}"
        )
        return Check(
            name="shared folder",
            level=Level.FAULT,
            facts=f"{on(barred, nodes)}{path} cannot be written ({reason})",
            nodes=names_of(barred),
            cure=f"{lost}: mount it rw, or --snapshot-dir DIR",
        )
    everybody = {node.node for node in nodes}
    alone = [node for node in nodes if node.reached is not None and not everybody <= {*node.sees}]
    if alone:
        return Check(
            name="shared folder",
            level=Level.WARNING,
            facts=f"{path} is a folder of its own on {listed(alone)}",
            nodes=names_of(alone),
            cure=f"snapshots written on {alone[0].node} are lost with {alone[0].node}: "
            "--snapshot-dir on a shared file system",
        )
    free = min((node.folder.free_bytes or 0 for node in nodes), default=0)
    shared = ", shared by all" if len(nodes) > 1 else ""
    facts = f"{path} can be written{shared}, {size(free)} free"
    if free < _LITTLE_SPACE_BYTES:
        cure = "a full disk loses snapshots, not the training: make room, or --snapshot-keep 1"
        return Check(name="shared folder", level=Level.WARNING, facts=facts, cure=cure)
    return Check(name="shared folder", level=Level.GOOD, facts=facts)
