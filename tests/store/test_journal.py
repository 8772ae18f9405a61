"""B-12: a run that is killed keeps what it had measured; a torn end is dropped, never guessed at."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import ORIGIN_NS, as_plain, make_meta, make_record, make_run, stream_records

from longbench_sched.errors import StoreError
from longbench_sched.record import Decoded, StreamRecord
from longbench_sched.run import RecordTable
from longbench_sched.store.journal import Journal, recover
from longbench_sched.store.parquet import read_run, write_run


def write_journal(path: Path, records: list[StreamRecord]) -> None:
    with Journal(path, make_meta()) as journal:
        for record in records:
            journal.append(record)


@settings(max_examples=40)
@given(st.lists(stream_records(), max_size=4))
def test_a_journal_gives_back_the_records_that_were_appended(records: list[StreamRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        write_journal(path, records)
        run = recover(path)
    assert as_plain(run.table) == as_plain(RecordTable.from_records(records))


@settings(max_examples=80)
@given(st.data())
def test_b12_a_journal_cut_at_any_byte_gives_a_prefix_of_whole_records(data: st.DataObject) -> None:
    records = [make_record(k, n_chunks=k % 4) for k in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        write_journal(path, [])
        start = path.stat().st_size
        path.unlink()
        write_journal(path, records)
        whole = path.read_bytes()
        cut = data.draw(st.integers(start, len(whole)))
        path.write_bytes(whole[:cut])
        run = recover(path)
    assert as_plain(run.table) == as_plain(RecordTable.from_records(records[: run.table.n]))
    assert (run.table.n == 5) == (cut == len(whole))


@settings(max_examples=40)
@given(st.data())
def test_b12_a_flipped_bit_ends_the_journal_before_the_frame_it_is_in(data: st.DataObject) -> None:
    records = [make_record(k, n_chunks=3) for k in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.journal"
        write_journal(path, [])
        start = path.stat().st_size
        path.unlink()
        write_journal(path, records)
        stored = bytearray(path.read_bytes())
        at = data.draw(st.integers(start, len(stored) - 1))
        stored[at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(stored)
        run = recover(path)
    frame = (len(stored) - start) // 4
    assert run.table.n == (at - start) // frame
    assert as_plain(run.table) == as_plain(RecordTable.from_records(records[: run.table.n]))


def test_a_tail_of_zeros_after_a_power_failure_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "run.journal"
    write_journal(path, [make_record(0)])
    path.write_bytes(path.read_bytes() + bytes(4096))
    assert recover(path).table.n == 1


class TestRecovered:
    """What the metadata of a recovered run says."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        with Journal(tmp_path / "run.journal", make_meta(measured_to_ns=0)) as journal:
            done, in_flight = make_record(0), make_record(7)
            in_flight.end_ns, in_flight.decoded = None, Decoded()
            journal.note_sent(done)
            journal.note_sent(in_flight)
            journal.append(done)
        return tmp_path / "run.journal"

    def test_it_is_marked_and_not_complete(self, path: Path) -> None:
        meta = recover(path).meta
        assert not meta.complete
        assert meta.marks == ("client-limited", "recovered", "incomplete")

    def test_it_ends_at_the_last_instant_that_is_known(self, path: Path) -> None:
        assert recover(path).meta.measured_to_ns == ORIGIN_NS + 7_000_040_000  # the send of the one in flight

    def test_it_says_whose_stamps_its_records_hold(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "run.journal", make_meta(clock="user")) as journal:
            journal.append(make_record(0))
        meta = recover(tmp_path / "run.journal").meta
        assert (meta.clock, meta.client.clock) == ("kernel", "kernel")

    def test_b12_a_request_in_flight_is_lost_not_forgotten(self, path: Path) -> None:
        table = recover(path).table
        assert list(table.texts["request_id"]) == ["run-r0", "run-r7"]
        assert list(table.texts["status"]) == ["ok", "lost"]
        assert table.ints["sent_ns"][1] == ORIGIN_NS + 7_000_040_000

    def test_it_can_be_stored_and_read_as_any_run(self, path: Path) -> None:
        run = recover(path)
        write_run(run, path.with_suffix(".parquet"))
        assert as_plain(read_run(path.with_suffix(".parquet")).table) == as_plain(run.table)

    def test_the_last_metadata_counts(self, tmp_path: Path) -> None:
        with Journal(tmp_path / "run.journal", make_meta()) as journal:
            journal.note_meta(make_meta(seed=7))
        assert recover(tmp_path / "run.journal").meta.seed == 7


def test_words_that_are_no_unicode_are_kept_as_far_as_they_go(tmp_path: Path) -> None:
    record = make_record(0, detail="half a pair: \ud83d.", finish_reason="stop")
    write_journal(tmp_path / "run.journal", [record])
    assert recover(tmp_path / "run.journal").table.texts["detail"] == ["half a pair: ?."]
    write_run(make_run([record], engine_facts={"model": "\ud83d"}), tmp_path / "run.parquet")
    assert read_run(tmp_path / "run.parquet").table.texts["detail"] == ["half a pair: ?."]


def test_b12_a_process_that_is_killed_keeps_what_was_synced(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import os, signal, sys, time
        from pathlib import Path
        from stored_runs import make_meta, make_record
        from longbench_sched.store.journal import Journal
        path = Path(sys.argv[1])
        journal = Journal(path, make_meta(), sync_every_s=0.01)
        for k in range(3):
            journal.append(make_record(k))
        while path.stat().st_size < int(sys.argv[2]):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    folders = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    path, twin = tmp_path / "run.journal", tmp_path / "twin.journal"
    write_journal(twin, [make_record(k) for k in range(3)])
    arguments = [sys.executable, "-c", program, str(path), str(twin.stat().st_size)]
    done = subprocess.run(arguments, env=os.environ | {"PYTHONPATH": folders}, timeout=60, check=False)
    assert done.returncode == -9
    run = recover(path)  # the lock went with the process
    assert list(run.table.texts["request_id"]) == [f"run-r{k}" for k in range(run.table.n)]
    assert run.table.n == 3


def test_a_journal_is_removed_when_its_records_are_safe(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.journal", make_meta())
    journal.append(make_record(0))
    journal.remove()
    assert os.listdir(tmp_path) == []
    journal.close()  # a second time does nothing


def test_a_run_refused_before_its_first_request_leaves_no_journal(tmp_path: Path) -> None:
    for n_requests in (0, 1):
        path = tmp_path / f"{n_requests}.journal"
        with contextlib.suppress(StoreError), Journal(path, make_meta()) as journal:
            for k in range(n_requests):
                journal.note_sent(make_record(k))
            raise StoreError("no")
        assert path.exists() == bool(n_requests)


def test_what_was_written_no_longer_waits(tmp_path: Path) -> None:
    """The bound is on what the disk has not taken: each byte that went in must have come out again at the end."""
    journal = Journal(tmp_path / "run.journal", make_meta(), sync_every_s=0.001)
    for number in range(50):
        journal.append(make_record(number))
    journal.close()
    assert journal.n_waiting_bytes == 0
    assert journal.failure is None


def test_a_full_disk_stops_the_journal_and_not_the_run(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.journal", make_meta())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8_192, limits[1]))
        for k in range(100):
            journal.append(make_record(k, n_chunks=50))
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert journal.failure is not None
    assert "file too large" in journal.failure
    journal.append(make_record(1))  # does nothing, raises nothing
    assert 0 < recover(tmp_path / "run.journal").table.n < 100


class TestErrors:
    def test_a_run_that_goes_on_is_not_recovered(self, tmp_path: Path) -> None:
        with (
            Journal(tmp_path / "run.journal", make_meta()),
            pytest.raises(StoreError, match="still going on"),
        ):
            recover(tmp_path / "run.journal")

    def test_an_id_that_is_taken(self, tmp_path: Path) -> None:
        write_journal(tmp_path / "run.journal", [])
        with pytest.raises(StoreError, match="another run has this id"):
            Journal(tmp_path / "run.journal", make_meta())

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "results").write_text("a file")
        with pytest.raises(StoreError, match="a file, not a folder"):
            Journal(tmp_path / "results" / "run.journal", make_meta())

    @pytest.mark.parametrize(
        ("content", "message"),
        [(b"", "not a journal"), (b"PAR1 something else", "not a journal"), (b"LBSJ\x01\n", "holds nothing")],
        ids=["empty", "other", "no-frames"],
    )
    def test_a_file_without_a_run(self, tmp_path: Path, content: bytes, message: str) -> None:
        (tmp_path / "run.journal").write_bytes(content)
        with pytest.raises(StoreError, match=message):
            recover(tmp_path / "run.journal")

    def test_a_journal_of_a_version_with_other_words(self, tmp_path: Path) -> None:
        path = tmp_path / "run.journal"
        strange = make_record(1)
        strange.decoded.reason = "teapot"  # type: ignore[assignment]
        write_journal(path, [make_record(0), strange])
        with pytest.raises(StoreError, match="written by another version of longbench-sched"):
            recover(path)

    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(StoreError, match="no such file"):
            recover(tmp_path / "run.journal")
