"""A run as a pandas DataFrame, one row a request: for notebooks and questions that the reports do not answer.

The only file that imports pandas, and only when asked: it costs seconds. Times are in seconds of engine time. What is not
defined is `<NA>` (nullable columns), never NaN or 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from longbench_sched.metrics.columns import Columns, Ints, Samples
from longbench_sched.metrics.definitions import DISTRIBUTIONS
from longbench_sched.run import NONE, TEXT_COLUMNS, Run
from longbench_sched.slo import Slo

if TYPE_CHECKING:
    import pandas as pd

COUNT_COLUMNS = ("index", "isl", "osl", "prompt_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "http_status")
NOT_SHOWN = ("isl", "osl", "failed_duration")  # the counts are there already; a failure's duration is its stream_end


def per_request(run: Run, slo: Slo | None = None) -> pd.DataFrame:
    """Every request of a run, warm-ups and failures included, with its texts, counts and per-request metrics.

    A metric stands in a row wherever its instants exist, also if the request failed: filter by `status` and `phase`.
    """
    import pandas as pd

    columns = Columns.of(run)
    limits = slo if slo is not None else Slo.of_limits(run.meta.slo)
    data: dict[str, object] = {name: pd.array(list(columns.texts(name)), dtype="string") for name in TEXT_COLUMNS}
    for name in COUNT_COLUMNS:
        data[name] = _nullable_ints(columns.ints(name))
    due = columns.ints("due_ns")
    data["due_s"] = _nullable_floats(Samples.one_a_row(columns.seconds(due - run.meta.measured_from_ns), due != NONE))
    data["n_chunks"] = columns.n_chunks
    for metric in DISTRIBUTIONS.values():
        if metric.scope == "request" and metric.name not in NOT_SHOWN:
            name = f"{metric.name}_s" if metric.unit == "s" else metric.name
            data[name] = _nullable_floats(metric.compute(columns, limits))
    return pd.DataFrame(data)


def stacked(frames: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The requests of several runs, one below the other, with `run_id` in front."""
    import pandas as pd

    parts = []
    for run_id, frame in frames.items():
        parts.append(frame.copy())
        parts[-1].insert(0, "run_id", pd.Series([run_id] * len(frame), dtype="string"))
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def from_rows(rows: Sequence[Mapping[str, object]]) -> pd.DataFrame:
    """Plain rows as a table, with nullable columns."""
    import pandas as pd

    return pd.DataFrame(list(rows)).convert_dtypes()


def _nullable_ints(values: Ints) -> pd.api.extensions.ExtensionArray:
    import pandas as pd

    return pd.arrays.IntegerArray(values.copy(), values == NONE)


def _nullable_floats(samples: Samples) -> pd.api.extensions.ExtensionArray:
    import pandas as pd

    values = np.zeros(len(samples.counts))
    missing = samples.counts == 0
    values[~missing] = samples.values
    return pd.arrays.FloatingArray(values, missing)
