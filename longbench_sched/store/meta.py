"""Metadata of stored runs without their rows: which run is which, read in a millisecond each."""

from __future__ import annotations

from pathlib import Path

from longbench_sched.errors import StoreError
from longbench_sched.run import RunMeta
from longbench_sched.store import journal
from longbench_sched.store.footer import decode_meta
from longbench_sched.store.opened import open_for_arrow, remedy
from longbench_sched.store.schema import FOOTER_KEY


def read_meta(path: Path) -> RunMeta:
    """The metadata of a run file or of a journal. Raises StoreError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.suffix == journal.ENDING:
        return journal.recover(path).meta
    try:
        with open_for_arrow(path) as file:
            stored = pq.read_metadata(file).metadata or {}
    except FileNotFoundError:
        raise StoreError(f"{path}: no such file.") from None
    except (OSError, pa.ArrowException):
        raise StoreError(f"{path} is not a readable Parquet file. {remedy(path)}") from None
    if FOOTER_KEY not in stored:
        raise StoreError(f"{path} is a Parquet file, but not a run of longbench-sched.")
    return decode_meta(stored[FOOTER_KEY], str(path))
