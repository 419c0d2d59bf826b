"""Held still: the clock and the entropy that the script's own files see, and no other file."""

import datetime as dt
import importlib.util
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from easyscale.recording import ClockRead, Entry
from easyscale.runtime.controls import fix_clock, fix_entropy

_CLOCKS = ("time", "perf_counter", "monotonic", "process_time", "thread_time")


@pytest.fixture(autouse=True)
def put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is replaced stands as it did when the test is over."""
    for name in (*_CLOCKS, *(f"{clock}_ns" for clock in _CLOCKS)):
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr(dt, "datetime", dt.datetime)
    monkeypatch.setattr(os, "urandom", os.urandom)
    monkeypatch.setattr(random, "Random", random.Random)
    for name in ("default_rng", "RandomState"):
        monkeypatch.setattr(np.random, name, getattr(np.random, name))


def own(folder: Path, body: str) -> Callable[[], object]:
    """A function of the person's own file that returns what `body` gives."""
    path = folder / "script.py"
    path.write_text(f"""
import datetime, os, random, time
import numpy as np
def f():
    return {body}
""")
    spec = importlib.util.spec_from_file_location("script", path)
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[[], object] = module.f
    return found


@pytest.mark.parametrize(
    "body",
    ["time.time()", "time.perf_counter_ns()", "datetime.datetime.now().isoformat()",
     "datetime.datetime.utcnow().isoformat()"],
)  # fmt: skip
def test_the_scripts_clock_depends_on_how_often_it_is_looked_at_only(
    tmp_path: Path, body: str
) -> None:
    said: list[Entry] = []
    shown = []
    for _ in range(2):
        fix_clock(tmp_path, said.append)
        ask = own(tmp_path, body)
        shown.append([ask(), ask()])
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[0][1]
    reads = [entry for entry in said if isinstance(entry, ClockRead)]
    assert {read.place for read in reads} == {f"{tmp_path / 'script.py'}:5"}


def test_others_keep_the_real_clock(tmp_path: Path) -> None:
    before_s = time.time()
    fix_clock(tmp_path, lambda entry: None)
    assert before_s <= time.time() < before_s + 60
    assert dt.datetime.now(dt.UTC).year >= dt.datetime.fromtimestamp(before_s, dt.UTC).year
    assert isinstance(time.monotonic_ns(), int)


@pytest.mark.parametrize(
    "body",
    [
        "np.random.default_rng().random()",
        "np.random.RandomState().random_sample()",
        "random.Random().random()",
        "os.urandom(8).hex()",
    ],
)
def test_what_the_script_starts_by_chance_starts_from_a_number(tmp_path: Path, body: str) -> None:
    shown = []
    for _ in range(2):
        fix_entropy(tmp_path, lambda entry: None)
        draw = own(tmp_path, body)
        shown.append([draw(), draw()])
    assert shown[0] == shown[1]
    assert shown[0][0] != shown[0][1]


def test_what_the_script_seeds_itself_is_left_alone(tmp_path: Path) -> None:
    expected = np.random.default_rng(5).random()
    fix_entropy(tmp_path, lambda entry: None)
    assert own(tmp_path, "np.random.default_rng(5).random()")() == expected
