"""What lies in a snapshot folder is taken for what it is, and the last good one stays."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from easyscale.agent.snapshots import (
    Catalogue,
    FixedValues,
    SnapshotState,
    beyond_newest,
    refuse_other_values,
    short_name,
    superseded,
)
from easyscale.errors import ExitCode, JobConflict, SnapshotDamaged, UsageError
from easyscale.integrity import BLOCK_BYTES, Digester, check_file, digest_file
from easyscale.model import (
    Determinism,
    FileDigest,
    GenerationNumber,
    JobSpec,
    Manifest,
    Position,
    SnapshotRecord,
    WorkerId,
    encode,
)

WRITER = WorkerId("a", "life", "cpu:0", 1)


def name_of(step: int, *, writer: WorkerId = WRITER, generation: int = 1) -> str:
    return f"step-{step:08d}-g1.{generation}-{writer.writer}"


def write(
    folder: Path, step: int, *, data: bytes | None = None, job: str = "job", generation: int = 1
) -> Path:
    path = folder / name_of(step, generation=generation)
    path.mkdir(parents=True)
    (path / "state.pt").write_bytes(b"state %d" % step if data is None else data)
    manifest = Manifest(
        job_id=job,
        step=step,
        epoch=0,
        index=step,
        position=Position(step),
        digest="d" * 64,
        generation=GenerationNumber(1, generation),
        worker=str(WRITER),
        finished=False,
        logical_workers=4,
        seed=0,
        determinism=Determinism.SAME_KIND,
        threads_per_worker=1,
        torch_version="2.13.0",
        created="2026-01-01T00:00:00Z",
        files={"state.pt": digest_file(path / "state.pt")},
    )
    (path / "manifest.json").write_text(encode(manifest))
    return path


def catalogue(folder: Path) -> Catalogue:
    return Catalogue(folder, job_id="job", node="a")


def test_the_newest_that_verifies_is_taken_and_newer_ones_are_named(tmp_path: Path) -> None:
    write(tmp_path, 100)
    write(tmp_path, 200)
    (write(tmp_path, 300) / "state.pt").write_bytes(b"state 3O0")
    (write(tmp_path, 400) / "manifest.json").write_text("{")
    (write(tmp_path, 500) / "state.pt").unlink()
    newest = catalogue(tmp_path).newest()
    assert newest.entry is not None
    assert (newest.entry.step, newest.entry.state) == (200, SnapshotState.VERIFIED)
    assert newest.entry.reference.name == name_of(200)
    assert [(entry.step, entry.reason) for entry in newest.rejected] == [
        (500, "state.pt is missing"),
        (400, newest.rejected[1].reason),
        (300, "state.pt: blake2b of bytes 0 to 9 differs"),
    ]
    assert newest.rejected[1].reason.startswith("manifest.json is not a Manifest")


def test_the_damaged_block_is_named(tmp_path: Path) -> None:
    data = bytearray(2 * BLOCK_BYTES + 5)
    path = write(tmp_path, 1, data=bytes(data)) / "state.pt"
    promised = digest_file(path)
    data[BLOCK_BYTES] ^= 1
    path.write_bytes(data)
    with pytest.raises(SnapshotDamaged) as damage:
        check_file(path, promised)
    assert damage.value.message == "state.pt: blake2b of bytes 4,194,304 to 8,388,608 differs"
    without_blocks = msgspec.structs.replace(promised, blocks=())
    with pytest.raises(SnapshotDamaged, match=r"^state.pt: blake2b differs$"):
        check_file(path, without_blocks)


@given(st.lists(st.binary(max_size=40)))
def test_a_digest_does_not_depend_on_how_the_bytes_came(pieces: list[bytes]) -> None:
    one, many = Digester(), Digester()
    one.update(b"".join(pieces))
    for piece in pieces:
        many.update(piece)
    assert one.finish() == many.finish()


def test_blocks_end_where_they_should_in_any_pieces() -> None:
    data = bytes(BLOCK_BYTES) + b"x"
    one, two = Digester(), Digester()
    one.update(data)
    two.update(data[:7])
    two.update(data[7:])
    assert one.finish() == two.finish()
    assert len(one.finish().blocks) == 2
    exact = Digester()
    exact.update(bytes(BLOCK_BYTES))
    assert len(exact.finish().blocks) == 1
    assert Digester().finish() == FileDigest(0, Digester().finish().blake2b, ())


def test_a_truncated_state_is_damaged_without_being_read(tmp_path: Path) -> None:
    (write(tmp_path, 1) / "state.pt").write_bytes(b"sta")
    (entry,) = catalogue(tmp_path).entries()
    assert (entry.state, entry.reason) == (SnapshotState.DAMAGED, "state.pt has 3 bytes of 7")


@pytest.mark.parametrize("name", ["../state.pt", "/etc/passwd", "sub/state.pt"])
def test_a_manifest_reaches_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1) / "manifest.json"
    path.write_text(path.read_text().replace("state.pt", name))
    (entry,) = catalogue(tmp_path).entries()
    assert entry.reason == f"manifest.json names {name!r}, which lies outside"


def test_another_jobs_snapshot_is_not_taken(tmp_path: Path) -> None:
    write(tmp_path, 1, job="other")
    newest = catalogue(tmp_path).newest()
    assert newest.entry is None
    assert newest.rejected[0].reason == "it is of job 'other'"


def test_a_survey_tells_of_the_jobs_own_snapshots_that_are_damaged(tmp_path: Path) -> None:
    write(tmp_path, 1, job="other")
    (write(tmp_path, 2) / "state.pt").unlink()
    (write(tmp_path, 3) / "manifest.json").write_text("{")
    survey = catalogue(tmp_path).survey()
    assert [(record.step, bool(record.rejected)) for record in survey.records] == [
        (3, True),
        (2, True),
    ]
    assert len(survey.rejected) == 3


def test_a_newer_format_is_damaged_for_us_and_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, 1) / "manifest.json"
    path.write_text(path.read_text().replace('"version":1', '"version":9'))
    (entry,) = catalogue(tmp_path).entries()
    assert entry.reason == "manifest.json has format 9; this easyscale reads 1"


def test_at_one_step_the_newer_generation_is_newer(tmp_path: Path) -> None:
    write(tmp_path, 7, generation=9)
    write(tmp_path, 7, generation=10)
    newest = catalogue(tmp_path).newest()
    assert newest.entry is not None
    assert newest.entry.name == name_of(7, generation=10)


def test_what_is_no_snapshot_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "step-00000001").mkdir()
    (tmp_path / name_of(3)).write_text("a file")
    assert catalogue(tmp_path).entries() == ()
    assert catalogue(tmp_path / "missing").newest().entry is None


def test_an_unfinished_one_is_listed_and_never_taken(tmp_path: Path) -> None:
    write(tmp_path, 5).rename(tmp_path / f".{name_of(5)}.partial")
    (entry,) = catalogue(tmp_path).entries()
    assert (entry.state, entry.short_name) == (SnapshotState.UNFINISHED, "step-00000005")
    assert catalogue(tmp_path).newest().entry is None


def test_superseded_ones_go_oldest_first(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    gone = catalogue(tmp_path).delete({name_of(1), name_of(2)})
    assert gone == (name_of(1), name_of(2))
    assert [entry.step for entry in catalogue(tmp_path).entries()] == [4, 3]


def test_the_last_good_one_is_never_deleted(tmp_path: Path) -> None:
    write(tmp_path, 1)
    (write(tmp_path, 2) / "state.pt").write_bytes(b"")
    assert catalogue(tmp_path).delete({name_of(1), name_of(2)}) == ()
    assert catalogue(tmp_path).delete({name_of(1)}) == ()
    write(tmp_path, 3)
    assert catalogue(tmp_path).delete({name_of(1), name_of(2)}) == (name_of(1), name_of(2))


def test_a_newer_one_is_kept_even_when_marked(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    assert catalogue(tmp_path).delete({name_of(2)}) == ()


def test_what_dead_writers_left_is_swept_and_the_livings_is_not(tmp_path: Path) -> None:
    other = WorkerId("b", "life", "cpu:0", 1)
    for writer in (WRITER, other):
        (tmp_path / f".{name_of(5, writer=writer)}.partial").mkdir()
    (tmp_path / f".{name_of(4)}.deleted").mkdir()
    later = (tmp_path / f".{name_of(4)}.deleted").stat().st_mtime + 3700
    assert catalogue(tmp_path).sweep(live={WRITER}, now=later - 3700) == (f".{name_of(4)}.deleted",)
    assert catalogue(tmp_path).sweep(live={WRITER}, now=later) == (
        f".{name_of(5, writer=other)}.partial",
    )
    assert [entry.name for entry in catalogue(tmp_path).entries()] == [name_of(5)]
    catalogue(tmp_path).forget_writer(WRITER)
    assert catalogue(tmp_path).entries() == ()


def test_a_folder_that_cannot_be_written_to_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError) as refused:
        catalogue(tmp_path / "file" / "below").check_writable()
    assert refused.value.message == f"--snapshot-dir {tmp_path}/file/below: not a directory"
    assert refused.value.exit_code is ExitCode.USAGE
    catalogue(tmp_path / "new" / "folder").check_writable()
    assert list((tmp_path / "new" / "folder").iterdir()) == []


def test_what_can_be_gone_on_from_is_recorded_newest_first(tmp_path: Path) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)
    (write(tmp_path, 3) / "state.pt").write_bytes(b"state E")
    records = catalogue(tmp_path).survey().records
    assert [(r.name, r.step, r.nodes) for r in records] == [
        (name_of(2), 2, ("a",)),
        (name_of(1), 1, ("a",)),
    ]


def test_a_job_that_goes_on_keeps_the_values_of_its_snapshot(tmp_path: Path) -> None:
    asked = msgspec.structs.replace(SAME, logical_workers=8)
    catalogue(tmp_path).refuse_other_values(asked)
    write(tmp_path, 1)
    with pytest.raises(JobConflict, match="has 4 logical workers for life; 8 would"):
        catalogue(tmp_path).refuse_other_values(asked)


def record(step: int, *, gone: bool = False) -> SnapshotRecord:
    return SnapshotRecord(
        name=name_of(step),
        step=step,
        epoch=0,
        digest="",
        bytes=1,
        generation=GenerationNumber(1, 1),
        nodes=("a",),
        superseded=gone,
    )


def test_all_but_the_newest_are_superseded() -> None:
    records = [record(3), record(1, gone=True), record(4), record(2)]
    assert superseded(records, keep=2) == (name_of(2),)
    assert superseded(records, keep=3) == ()
    assert superseded(records, keep=0) == (name_of(3), name_of(2))


SPEC = JobSpec(
    logical_workers=16, seed=0, determinism=Determinism.SAME_KIND, threads_per_worker=1, token="t"
)
SAME = FixedValues(
    logical_workers=16, seed=None, determinism=Determinism.SAME_KIND, threads_per_worker=1
)


@pytest.mark.parametrize(
    ("asked", "said", "hint"),
    [
        (
            {"logical_workers": 8},
            "job 'resnet50' has 16 logical workers for life; 8 would change its bits",
            "--logical-workers 16, or a new job: --rdzv-id NAME",
        ),
        (
            {"seed": 7},
            "job 'resnet50' has seed 0 for life; 7 would change its bits",
            "--seed 0, or a new job: --rdzv-id NAME",
        ),
        (
            {"determinism": Determinism.HETEROGENEOUS},
            (
                "job 'resnet50' has determinism same-kind for life; "
                "heterogeneous would change its bits"
            ),
            "--determinism same-kind, or a new job: --rdzv-id NAME",
        ),
        (
            {"threads_per_worker": 2},
            "job 'resnet50' has 1 thread per worker for life; 2 would change its bits",
            "--threads-per-worker 1, or a new job: --rdzv-id NAME",
        ),
    ],
)
def test_a_value_fixed_for_life_is_not_changed(
    asked: dict[str, object], said: str, hint: str
) -> None:
    with pytest.raises(JobConflict) as conflict:
        refuse_other_values("resnet50", stands=SPEC, asked=msgspec.structs.replace(SAME, **asked))
    assert (conflict.value.message, conflict.value.hint) == (said, hint)


def test_a_seed_that_the_script_names_is_not_overruled_later() -> None:
    asked = msgspec.structs.replace(SAME, seed=0)
    spec = msgspec.structs.replace(SPEC, seed=None)
    with pytest.raises(
        JobConflict, match="has the script's own seed for life; 0 would"
    ) as conflict:
        refuse_other_values("resnet50", stands=spec, asked=asked)
    assert conflict.value.hint == "no --seed, or a new job: --rdzv-id NAME"


def test_the_same_values_go_on() -> None:
    refuse_other_values("resnet50", stands=SPEC, asked=SAME)


def test_screens_shorten_a_snapshots_name() -> None:
    assert short_name(name_of(6400)) == "step-00006400"
    assert short_name("elsewhere") == "elsewhere"


def test_beyond_the_newest_are_only_good_ones_and_one_that_verifies_stays(tmp_path: Path) -> None:
    for step in (100, 200, 300, 400):
        write(tmp_path, step)
    (tmp_path / name_of(400) / "state.pt").write_bytes(b"state 4O0")
    found = catalogue(tmp_path)
    newest = found.newest()

    def beyond(keep: int) -> list[int]:
        return [entry.step for entry in beyond_newest(found.entries(), newest, keep=keep)]

    assert [beyond(1), beyond(2), beyond(3)] == [[200, 100], [100], []]


def test_nothing_is_beyond_the_newest_where_nothing_verifies(tmp_path: Path) -> None:
    for step in (100, 200):
        (write(tmp_path, step) / "state.pt").write_bytes(b"stale 100")
    found = catalogue(tmp_path)
    assert beyond_newest(found.entries(), found.newest(), keep=1) == ()


def test_a_person_may_remove_what_they_name_but_nothing_unfinished(tmp_path: Path) -> None:
    write(tmp_path, 100)
    write(tmp_path, 200)
    partial = tmp_path / f".{name_of(300)}.partial"
    partial.mkdir()
    found = catalogue(tmp_path)
    assert found.remove([name_of(100), name_of(300)]) == (name_of(100),)
    assert [entry.step for entry in found.entries()] == [300, 200]
    assert partial.is_dir()
