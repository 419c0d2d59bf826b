"""A training state comes back bit for bit, refuses what does not fit, and has one name."""

import io
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from easyscale.errors import FormatError, JobConflict, ScriptError, SnapshotDamaged
from easyscale.model import Determinism, GenerationNumber, WorkerId
from easyscale.runtime.randomness import Streams
from easyscale.runtime.registry import Registry
from easyscale.runtime.settings import JobSettings
from easyscale.runtime.snapshots import Origin, SnapshotWriter, read_snapshot, write_snapshot
from easyscale.runtime.state import (
    State,
    captured,
    digest,
    entry_digests,
    has_equal_bits,
    plain_value,
    restore,
)
from easyscale.runtime.training import SourcePlace, Training

CPU = torch.device("cpu")


class Trained:
    """A model with everything that a state holds, after two steps."""

    def __init__(self, *, seed: int = 0, width: int = 4, lr: float = 0.1, n: int = 2) -> None:
        torch.manual_seed(seed)
        self.notes: list[str] = []
        self.model = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
        self.model.register_buffer("mask", torch.ones(2) * seed, persistent=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 5], gamma=0.5)
        self.average = {"w": torch.zeros(width, 3)}
        settings = JobSettings(
            logical_workers=n, seed=7, determinism=Determinism.SAME_KIND, threads_per_worker=1
        )
        self.training = Training(
            settings=settings, device=CPU, say=self.notes.append, streams=Streams(CPU)
        )
        self.training.register(
            {
                "model": self.model,
                "optimizer": self.optimizer,
                "scheduler": self.scheduler,
                "average": self.average,
            }
        )
        self.training.note_registered()

    def train(self) -> State:
        for _ in range(2):
            self.optimizer.zero_grad()
            self.model(torch.randn(5, 3)).square().sum().backward()
            self.optimizer.step()
            self.scheduler.step()
        self.average["w"] += 1
        self.model[0].bias.requires_grad_(False)
        self.training.user["best"] = 0.75
        self.training.metrics["loss"] = 0.1
        return self.training.capture()


def through_file(state: State) -> State:
    file = io.BytesIO()
    state.write(file)
    file.seek(0)
    return State.read(file, source="a test")


def test_a_state_comes_back_bit_for_bit_into_another_process() -> None:
    state = Trained().train()
    other = Trained(seed=5)
    other.training.restore(through_file(state))
    again = other.training.capture()
    assert again.digest == state.digest
    assert again.place == state.place
    assert again.user == {"best": 0.75}
    assert again.metrics == {"loss": 0.1}
    assert again.trainable == state.trainable
    assert not other.model[0].bias.requires_grad
    assert torch.equal(other.model.mask, torch.zeros(2))  # type: ignore[arg-type]
    assert isinstance(other.scheduler.milestones, Counter)


def test_a_state_travels_in_pieces() -> None:
    state = Trained().train()
    pieces = list(state.chunks())
    assert State.from_chunks(pieces, source="a peer").digest == state.digest
    with pytest.raises(FormatError, match="a peer holds no training state"):
        State.from_chunks([b"".join(pieces)[:-100]], source="a peer")


def test_the_file_is_read_without_running_what_is_in_it() -> None:
    file = io.BytesIO()
    Trained().train().write(file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["format"] == 1


def test_the_outer_stream_comes_back_with_the_first_step_and_not_before() -> None:
    first = Trained()
    state = first.train()
    expected = float(torch.rand(()))
    other = Trained(seed=3)
    torch.manual_seed(11)
    undisturbed = float(torch.rand(()))
    torch.manual_seed(11)
    other.training.restore(through_file(state))
    assert float(torch.rand(())) == undisturbed
    other.training.open_step(SourcePlace.of_caller())
    assert float(torch.rand(())) == expected


def test_one_changed_bit_changes_the_digest() -> None:
    state = Trained().train()
    before = entry_digests(state.objects)
    weight = state.objects["model"]["0.weight"]
    weight.view(torch.int32)[0, 0] ^= 1
    assert digest(state.objects) != Trained().train().digest
    changed = {path for path, one in entry_digests(state.objects).items() if one != before[path]}
    assert changed == {"model.0.weight"}


@pytest.mark.parametrize(
    ("change", "changes"),
    [
        (lambda o: o["optimizer"]["param_groups"][0].update(lr=0.2), True),
        (lambda o: o["scheduler"].update(last_epoch=9), True),
        (lambda o: o["model"].update(extra=torch.zeros(1)), True),
        (lambda o: o.update(model=dict(reversed(o["model"].items()))), False),
    ],
    ids=["lr", "epoch", "tensor", "order"],
)
def test_values_count_and_the_order_of_names_does_not(
    change: Callable[[Any], None], changes: bool
) -> None:
    state = Trained().train()
    before = state.digest
    change(state.objects)
    assert (digest(state.objects) != before) == changes


def without_average() -> Trained:
    trained = Trained()
    del trained.training.things.tensors["average"]
    return trained


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        (lambda: Trained(width=6), r"model.0.bias is \(6,\) here and \(4,\) in the state"),
        (without_average, "the state holds average, model"),
    ],
    ids=["shape", "name"],
)
def test_a_model_that_does_not_fit_is_refused_by_name(
    other: Callable[[], Trained], sentence: str
) -> None:
    state = Trained().train()
    with pytest.raises(ScriptError, match=sentence):
        other().training.restore(state)


def test_another_n_is_refused_for_life() -> None:
    state = Trained().train()
    with pytest.raises(JobConflict, match="logical workers 2 for life; 3 would change its bits"):
        Trained(n=3).training.restore(state)


def test_the_restored_learning_rate_wins_and_the_difference_is_named() -> None:
    state = Trained().train()
    same = Trained()
    same.training.restore(state)
    assert same.notes == []
    other = Trained(lr=0.3)
    other.training.restore(state)
    assert other.optimizer.param_groups[0]["lr"] == 0.05
    (note,) = other.notes
    assert 'register(..., override=["optimizer.lr"])' in note


def test_an_override_takes_the_scripts_value_once_and_for_all() -> None:
    state = Trained().train()
    other = Trained(lr=0.3)
    other.training.restore(state, override=["optimizer.lr"])
    assert other.optimizer.param_groups[0]["lr"] == 0.3
    assert other.scheduler.base_lrs == [0.3]
    again = Trained(lr=0.3)
    again.training.restore(other.training.capture())
    assert again.notes == []
    with pytest.raises(ScriptError, match="names no value"):
        Trained().training.restore(state, override=["model.lr"])


def test_what_would_have_to_be_unpickled_is_refused_by_name() -> None:
    trained = Trained()
    trained.scheduler.gamma = object()  # type: ignore[assignment]
    with pytest.raises(ScriptError, match=r"scheduler.gamma is a object"):
        trained.training.capture()


class Colour(str, Enum):  # noqa: UP042 - its str() is not its text
    RED = "red"


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.75), 0.75),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (Level.LOW, 1),
        (Colour.RED, "red"),
        (
            {Level.LOW: [np.float64(1.5)], Colour.RED: (np.int8(2), None)},
            {1: [1.5], "red": (2, None)},
        ),
        (OrderedDict(a=Counter(x=2)), {"a": {"x": 2}}),
    ],
)
def test_a_plain_value_is_kept_as_pythons_own_and_can_be_read_back(
    value: object, plain: object
) -> None:
    trained = Trained()
    trained.training.user["best"] = value
    user = through_file(trained.training.capture()).user
    assert user == {"best": plain}
    assert repr(user["best"]) == repr(plain)
    assert repr(plain_value("best", value)) == repr(plain)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({("a", object()): 1}, "job.state: best has the key <object"),
        ({"a": [1, {2}]}, r"best.a.1 is a set"),
        ([np.ones(2)], r"best.0 is a ndarray"),
        (np.datetime64("2026-01-01"), "best is a datetime64"),
        (np.longdouble(1), "best is a longdouble"),
    ],
)
def test_a_value_that_is_not_plain_is_refused_by_name(value: object, sentence: str) -> None:
    with pytest.raises(ScriptError, match=sentence):
        plain_value("best", value)


def test_a_list_that_is_changed_in_place_is_checked_and_copied_at_the_boundary() -> None:
    trained = Trained()
    given = [1]
    trained.training.user["history"] = plain_value("history", given)
    given.append(9)
    trained.training.user["history"].append(np.float64(2.0))
    state = trained.training.capture()
    trained.training.user["history"].append(3)
    assert state.user == {"history": [1, 2.0]}
    assert through_file(state).user == state.user
    trained.training.user["history"].append(object())
    with pytest.raises(ScriptError, match=r"history.3 is a object"):
        trained.training.capture()


OPTIMIZERS = "SGD Adam AdamW Adagrad Adadelta Adamax ASGD NAdam RAdam RMSprop Rprop Adafactor"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS.split())
def test_an_optimizers_own_numbers_keep_their_type(name: str, dtype: torch.dtype) -> None:
    def built(seed: int) -> tuple[nn.Parameter, torch.optim.Optimizer, Registry]:
        drawn = torch.randn(4, 3, generator=torch.Generator().manual_seed(seed))
        weight = nn.Parameter(drawn.to(dtype))
        optimizer = getattr(torch.optim, name)([weight], lr=0.01)
        return weight, optimizer, Registry.of({"weight": weight, "optimizer": optimizer})

    def train(weight: nn.Parameter, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            generator = torch.Generator().manual_seed(step)
            weight.grad = torch.randn(4, 3, generator=generator).to(dtype)
            optimizer.step()

    weight, optimizer, registry = built(1)
    train(weight, optimizer, range(3))
    file = io.BytesIO()
    torch.save(captured(registry), file)
    file.seek(0)
    other_weight, other_optimizer, other = built(2)
    restore(other, torch.load(file, weights_only=True))
    assert digest(captured(other)) == digest(captured(registry))
    train(weight, optimizer, range(3, 6))
    train(other_weight, other_optimizer, range(3, 6))
    assert digest(captured(other)) == digest(captured(registry))


class Rounds:
    """Something registered whose load_state_dict does not set what it was given."""

    def __init__(self) -> None:
        self.rate = 0.1

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        self.rate = float(np.float32(values["rate"]))


def test_what_does_not_come_back_bit_for_bit_is_refused_by_name() -> None:
    registry = Registry.of({"rounds": Rounds()})
    with pytest.raises(ScriptError, match=r"rounds.rate is not what it was after it was restored"):
        restore(registry, captured(registry))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_bits_are_compared_and_not_numbers(dtype: torch.dtype) -> None:
    one = torch.tensor([[0.0, float("nan"), 1.0], [2.0, -3.0, 4.0]], dtype=dtype)
    assert has_equal_bits(one, one.clone())
    assert has_equal_bits(one, one.t().contiguous().t())
    signed = one.clone()
    signed[0, 0] = -0.0
    assert not has_equal_bits(one, signed)
    assert not has_equal_bits(one, one.flip(1))
    assert not has_equal_bits(one, None)


# --- on disk -------------------------------------------------------------------------------------


def origin(folder: Path) -> Origin:
    return Origin(
        folder=folder,
        job_id="job",
        worker=WorkerId("n", "i", "cpu:0", 0),
        generation=GenerationNumber(1, 2),
    )


def test_a_snapshot_is_whole_private_and_named_for_step_generation_and_writer(
    tmp_path: Path,
) -> None:
    state = Trained().train()
    name, manifest = write_snapshot(state, origin(tmp_path / "s"))
    assert name.startswith("step-00000000-g1.2-")
    assert manifest.digest == state.digest
    assert read_snapshot(tmp_path / "s", name).digest == state.digest
    assert [path.name for path in (tmp_path / "s").iterdir()] == [name]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "s" / name).iterdir()} == {0o600}
    assert (tmp_path / "s" / name).stat().st_mode & 0o777 == 0o700
    assert write_snapshot(state, origin(tmp_path / "s"))[0] == name


@pytest.mark.parametrize("file", ["state.pt", "manifest.json"])
def test_a_snapshot_with_a_changed_byte_is_refused(tmp_path: Path, file: str) -> None:
    name, _ = write_snapshot(Trained().train(), origin(tmp_path))
    path = tmp_path / name / file
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotDamaged):
        read_snapshot(tmp_path, name)


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    said: list[Any] = []
    writer = SnapshotWriter(said.append)
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    writer.begin(Trained().train(), origin(blocked / "s"), pause_s=0.0, last=False)
    writer.finish()
    assert [type(one).__name__ for one in said] == ["SnapshotFailed"]


def test_what_cannot_be_read_back_is_said_and_gets_no_name(tmp_path: Path) -> None:
    said: list[Any] = []
    state = replace(Trained().train(), user={"best": Level.LOW})
    writer = SnapshotWriter(said.append)
    writer.begin(state, origin(tmp_path), pause_s=0.0, last=False)
    writer.finish()
    (failed,) = said
    assert type(failed).__name__ == "SnapshotFailed"
    assert "holds no training state" in failed.reason
    assert list(tmp_path.iterdir()) == []
