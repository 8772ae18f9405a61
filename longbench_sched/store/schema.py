"""The columns of a stored run: name, type, unit and meaning, in the order in which they are stored.

One row a request, whatever became of it. This table is the only place where a column is described: the Arrow schema (with unit
and meaning in each field's metadata) and `docs/columns.md` are made from it. A later version may add columns without a new
schema version; a reader fills what a file does not have with null. What a column means never changes within a version.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

from longbench_sched.run import SCHEMA_VERSION

if TYPE_CHECKING:
    import pyarrow as pa

FOOTER_KEY = b"longbench_sched"  # RunMeta as JSON
ENDING = ".parquet"
OPTIONAL_COLUMNS = frozenset({"text"})  # stored only if it was asked to be kept

Type = Literal["int64", "string", "list<int64>", "list<int32>", "list<string>"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a stored run."""

    name: str
    type: Type
    unit: str  # ns, tokens, bytes, 1 (a count or a code), or "" for text
    meaning: str
    repeats: bool = False  # few different values: dictionary encoding pays


_INSTANT = "ns on the run's monotonic clock"

COLUMNS: tuple[Column, ...] = (
    Column("request_id", "string", "", "as sent in X-Request-Id"),
    Column("index", "int64", "1", "place in the plan, warm-ups included"),
    Column("phase", "string", "", "warmup or measured", repeats=True),
    Column("lane", "string", "", "name of the lane of the plan", repeats=True),
    Column("isl", "int64", "tokens", "prompt tokens as planned"),
    Column("osl", "int64", "tokens", "output tokens asked for"),
    Column("due_ns", "int64", "ns", f"when the request was due; {_INSTANT}"),
    Column("slot_ns", "int64", "ns", "when a place in flight was free: slot - due is the wait for it"),
    Column("sent_ns", "int64", "ns", "just before the first byte was handed to the kernel; null: never sent"),
    Column("body_sent_ns", "int64", "ns", "when the kernel had taken the last byte of the request"),
    Column("header_ns", "int64", "ns", "end of the response's header block"),
    Column("first_byte_ns", "int64", "ns", "first byte of the response's body, comments and all"),
    Column("answer_at_ns", "int64", "ns", "first event with answer content: not reasoning"),
    Column("finish_ns", "int64", "ns", "the event that carried the finish reason"),
    Column("end_ns", "int64", "ns", "end of the answer by its framing, or the moment it was given up"),
    Column("chunk_at_ns", "list<int64>", "ns", "arrival of each token-bearing event: first = TTFT, last = E2E"),
    Column("chunk_tokens", "list<int32>", "tokens", "tokens in each of these events; null where unknown"),
    Column(
        "chunk_lateness_ns",
        "list<int64>",
        "ns",
        "user stamp - kernel stamp of each of these events; 0 where user stamps are used",
    ),
    Column("chunk_token_source", "string", "", "where chunk_tokens came from: ids, usage, inferred, local", repeats=True),
    Column("clock", "string", "", "whose stamps chunk_at_ns holds: kernel, user, mixed or virtual", repeats=True),
    Column("n_shared_reads", "int64", "1", "token-bearing events that came in the same read as the one before"),
    Column("n_comments", "int64", "1", "comment lines in the stream (keep-alives)"),
    Column("n_body_bytes", "int64", "bytes", "body of the response, transfer coding removed"),
    Column("prompt_tokens", "int64", "tokens", "prompt tokens as the server counts them"),
    Column("prompt_token_source", "string", "", "where prompt_tokens came from", repeats=True),
    Column("output_tokens", "int64", "tokens", "generated tokens"),
    Column("output_token_source", "string", "", "where output_tokens came from", repeats=True),
    Column("cached_tokens", "int64", "tokens", "prompt tokens that the server took from its prefix cache"),
    Column("cached_token_source", "string", "", "where cached_tokens came from", repeats=True),
    Column("reasoning_tokens", "int64", "tokens", "generated tokens that were reasoning, as the server counts them"),
    Column("finish_reason", "string", "", "as the server says it: length, stop, ...", repeats=True),
    Column("status", "string", "", "ok, failed, timeout, cancelled or lost", repeats=True),
    Column("reason", "string", "", "why a request is not ok, a fixed slug; null if ok", repeats=True),
    Column("http_status", "int64", "1", "status code of the answer; null: no answer came"),
    Column("error_code", "int64", "1", "code of an error inside the stream"),
    Column("detail", "string", "", "the server's words on a failure, at most 500 bytes", repeats=True),
    Column("marks", "list<string>", "", "what a reader should know of this row: isl-mismatch, single-chunk, retried, ..."),
    Column("text", "string", "", "the generated text; this column exists only if it was asked to be kept"),
)


@cache
def arrow_schema(*, with_text: bool) -> pa.Schema:
    """The Arrow schema; unit and meaning of each column are in its field's metadata."""
    import pyarrow as pa

    types: dict[Type, pa.DataType] = {
        "int64": pa.int64(),
        "string": pa.string(),
        "list<int64>": pa.list_(pa.int64()),
        "list<int32>": pa.list_(pa.int32()),
        "list<string>": pa.list_(pa.string()),
    }
    return pa.schema(
        [
            pa.field(column.name, types[column.type], metadata={"unit": column.unit, "meaning": column.meaning})
            for column in COLUMNS
            if with_text or column.name not in OPTIONAL_COLUMNS
        ]
    )


def columns_table() -> str:
    """The table of columns as Markdown, for `docs/columns.md`."""
    rows = [f"| `{column.name}` | {column.type} | {column.unit} | {column.meaning} |" for column in COLUMNS]
    return (
        "\n".join(["| column | type | unit | meaning |", "|---|---|---|---|", *rows])
        + f"\n\nSchema version {SCHEMA_VERSION}.\n"
    )
