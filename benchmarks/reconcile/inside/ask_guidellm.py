"""GuideLLM's own backend, request statistics and summaries on the events of a run; run by its Python."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
from types import SimpleNamespace
from typing import Any

import httpx
from figures import FIGURES, RATES
from replay import Clock, answer, pieces, read_case

BASE_S = 1e6  # it leaves out instants of 0


class Body(httpx.AsyncByteStream):
    """The body of an answer."""

    def __init__(self, request: dict[str, Any], clock: Clock) -> None:
        self._request, self._clock = request, clock

    async def __aiter__(self) -> Any:
        async for piece in pieces(self._request, self._clock, lambda: httpx.RemoteProtocolError("cut")):
            yield piece


async def main() -> None:
    case = read_case()
    schemas = importlib.import_module("guidellm.schemas")
    http = importlib.import_module("guidellm.backends.openai.http")
    accumulator = importlib.import_module("guidellm.benchmark.schemas.accumulator")
    metrics = importlib.import_module("guidellm.benchmark.schemas.metrics")
    clock = http.time = Clock(BASE_S)
    path = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[case["api"]]
    arguments = http.OpenAIHTTPBackendArgs(target="http://x", model="awkward", request_format=path)
    backend = http.OpenAIHTTPBackend(arguments)
    stats: dict[str, list[Any]] = {"completed": [], "errored": []}
    failed: list[str] = []
    for request in case["requests"]:
        transport = httpx.MockTransport(
            lambda _, request=request: httpx.Response(request["status"], stream=Body(request, clock))
        )
        backend._async_client = httpx.AsyncClient(transport=transport)
        clock.now_s = request["sent_s"]
        info = schemas.RequestInfo(status="completed")
        asked = schemas.GenerationRequest(columns={"text_column": ["p"]})
        response, has_failed = None, False
        try:
            async for said, _ in backend.resolve(asked, info):
                response = said
        except Exception:
            has_failed = True
            failed.append(request["answer"])
        info.timings.resolve_start, info.timings.resolve_end = BASE_S + request["sent_s"], BASE_S + request["end_s"]
        usage = schemas.UsageMetrics
        made = schemas.GenerativeRequestStats(
            request_id=info.request_id, info=info, input_metrics=getattr(response, "input_metrics", None) or usage(),
            output_metrics=getattr(response, "output_metrics", None) or usage(),
        )  # fmt: skip
        stats["errored" if has_failed else "completed"].append(made)
    every = {name: accumulator.GenerativeRequestsAccumulator(requests_stats=kept) for name, kept in stats.items()}
    compiled = metrics.GenerativeMetrics.compile(
        SimpleNamespace(
            timings=SimpleNamespace(finalized_measure_start=BASE_S, finalized_measure_end=BASE_S + case["duration_s"]),
            incomplete=accumulator.GenerativeRequestsAccumulator(),
            config=SimpleNamespace(confidence=None, slo=None, strategy=SimpleNamespace(defines_arrival_schedule=False)),
            **every,
        )
    )
    figures: dict[str, Any] = {}
    for name, field in FIGURES["guidellm"].items():
        scale = 1e-3 if field.endswith("_ms") else 1.0
        found = getattr(compiled, field).successful
        shares = {f"p{share}": getattr(found.percentiles, f"p{share}") * scale for share in (50, 90, 95, 99)}
        figures[name] = {"mean": found.mean * scale, "n": found.count, **shares}
    figures |= {name: {"mean": getattr(compiled, field).successful.mean} for name, field in RATES["guidellm"].items()}
    answer("guidellm", importlib.metadata.version("guidellm"), figures, failed)


if __name__ == "__main__":
    asyncio.run(main())
