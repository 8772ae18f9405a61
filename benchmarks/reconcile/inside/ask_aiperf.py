"""AIPerf's own stream reader, endpoints, metrics and accumulator on the events of a run; run by its Python.

Started as services it needs a message bus; its parts are put together here as its record processor and its records manager do.
Counts are the server's (`--use-server-token-count`), as ours are.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

from figures import FIGURES, RATES
from replay import Clock, answer, pieces, read_case

BASE_S = 1e6  # it leaves out instants of 0


def settings(api: str) -> Any:
    """What its parts ask of a configuration."""
    endpoint = SimpleNamespace(type=api, streaming=True, use_server_token_count=True, per_chunk_usage=False)
    artifacts = SimpleNamespace(slice_duration=None)
    more = {"slos": None, "accuracy": None, "get_profiling_phases": list}
    return SimpleNamespace(cfg=SimpleNamespace(endpoint=endpoint, artifacts=artifacts, **more))


async def main() -> None:
    case = read_case()
    models = importlib.import_module("aiperf.common.models")
    records = importlib.import_module("aiperf.common.models.record_models")
    parser = importlib.import_module("aiperf.records.inference_result_parser").InferenceResultParser
    sse = importlib.import_module("aiperf.transports.sse_utils")
    plugins = importlib.import_module("aiperf.plugin.plugins")
    kinds = importlib.import_module("aiperf.plugin.enums")
    run = settings(case["api"])
    processor = importlib.import_module("aiperf.post_processors.metric_record_processor").MetricRecordProcessor(run=run)
    accumulator = importlib.import_module("aiperf.metrics.accumulator").MetricsAccumulator(run=run)
    endpoint = plugins.get_class(kinds.PluginType.ENDPOINT, case["api"])(model_endpoint=None)
    counter = SimpleNamespace(run=run, warning=print, _server_output_minus_reasoning=lambda n, _: n)
    clock = sse.time = Clock(BASE_S)
    failed: list[str] = []
    for i, request in enumerate(case["requests"]):
        clock.now_s = request["sent_s"]
        record = models.RequestRecord(
            start_perf_ns=clock.perf_counter_ns(), timestamp_ns=clock.time_ns(), model_name="awkward", status=request["status"]
        )
        try:
            async for message in sse.AsyncSSEStreamReader(pieces(request, clock, lambda: ConnectionError("cut"))):
                sse.AsyncSSEStreamReader.inspect_message_for_error(message)
                record.responses.append(message)
            if request["status"] != 200:
                raise ConnectionError("busy")
        except Exception as error:
            record.error = models.ErrorDetails.from_exception(error)
        record.end_perf_ns = round((BASE_S + request["end_s"]) * 1e9)
        responses, counts = [], None
        if not record.has_error:
            try:
                responses = endpoint.extract_response_data(record)
                counts = await parser._compute_server_token_counts(counter, responses)
            except Exception as error:
                record.error = models.ErrorDetails.from_exception(error)
        parsed = records.ParsedResponseRecord(request=record, responses=responses, token_counts=counts)
        parsed.create_error_from_invalid()
        if parsed.has_error:
            failed.append(request["answer"])
        metadata = records.MetricRecordMetadata(
            session_num=i, request_start_ns=record.timestamp_ns, request_end_ns=record.end_perf_ns, worker_id="w",
            record_processor_id="r", benchmark_phase="profiling",
        )  # fmt: skip
        await accumulator.process_record(await processor.process_record(parsed, metadata))
    # As its records manager has it computed: over the phase, which is taken to begin and end with the run here.
    window = {"window_start_ns": round(BASE_S * 1e9), "window_end_ns": round((BASE_S + case["duration_s"]) * 1e9)}
    results = accumulator._compute_results(**window)
    figures: dict[str, Any] = {}
    for name, tag in FIGURES["aiperf"].items():
        found = results[tag]
        scale = 1e-9 if found.unit == "ns" else 1.0
        figures[name] = {"mean": found.avg * scale, "n": found.count}
        figures[name] |= {f"p{share}": getattr(found, f"p{share}") * scale for share in (50, 90, 95, 99)}
    figures |= {name: {"mean": results[tag].avg} for name, tag in RATES["aiperf"].items()}
    answer("aiperf", importlib.metadata.version("aiperf"), figures, failed)


if __name__ == "__main__":
    asyncio.run(main())
