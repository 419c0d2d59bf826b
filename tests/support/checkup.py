"""Nodes as a checkup finds them, for tests of its judgement and of its screen."""

import msgspec

from easyscale.agent.checkup.node_facts import FolderFacts, NodeFacts, Reached, TorchFacts


def node(name: str = "a", **changes: object) -> NodeFacts:
    """A node with nothing to complain about."""
    sound = NodeFacts(
        node=name,
        release="0.1.0",
        python="3.11.7",
        torch=TorchFacts(version="2.13.0+cu128", cuda="12.8"),
        gpus=("NVIDIA H100",) * 4,
        driver="570.124",
        cores=64,
        processors=64,
        open_files=65_536,
        most_open_files=65_536,
        shm_bytes=64_000_000_000,
        folder=FolderFacts(path="runs/resnet50", free_bytes=900_000_000_000),
    )
    return msgspec.structs.replace(sound, **changes)


def met(*nodes: NodeFacts, clock_s: float = 0.003, trip_s: float = 0.0002) -> tuple[NodeFacts, ...]:
    """The same nodes after they have reached one another and seen one folder."""
    names = tuple(each.node for each in nodes)
    return tuple(
        msgspec.structs.replace(
            each,
            address="10.0.0.1:4000",
            reached=each.reached
            or tuple(
                Reached(node=name, round_trip_s=trip_s, clock_s=clock_s)
                for name in names
                if name != each.node
            ),
            sees=each.sees or names,
        )
        for each in nodes
    )
