"""vLLM's own client code and arithmetic on the events of a run; run by vLLM's Python, see benchmarks/reconcile."""

from __future__ import annotations

import asyncio
import importlib
from typing import Any

import aiohttp
from figures import FIGURES, RATES
from replay import Clock, Session, answer, read_case


async def main() -> None:
    case = read_case()
    client = importlib.import_module("vllm.benchmarks.lib.endpoint_request_func")
    serve = importlib.import_module("vllm.benchmarks.serve")
    clock = client.time = Clock()
    is_chat = case["api"] == "chat"
    ask = client.async_request_openai_chat_completions if is_chat else client.async_request_openai_completions
    outputs: list[Any] = []
    for request in case["requests"]:
        clock.now_s = request["sent_s"]
        wanted = client.RequestFuncInput(
            prompt="p", api_url="/v1/chat/completions" if is_chat else "/v1/completions", prompt_len=request["isl"],
            output_len=request["osl"], model="awkward",
        )  # fmt: skip
        outputs.append(await ask(wanted, Session(request, clock, aiohttp.ClientPayloadError)))

    def tokenizer(text: str, **_: object) -> Any:  # asked only where the server counted nothing: a word is a token here
        return type("Encoded", (), {"input_ids": text.split()})

    metrics, _ = serve.calculate_metrics([], outputs, case["duration_s"], tokenizer, [90.0, 95.0, 99.0], {})
    figures: dict[str, Any] = {}
    for name, key in FIGURES["vllm"].items():
        shares = {f"p{share:g}": value / 1e3 for share, value in getattr(metrics, f"percentiles_{key}_ms")}
        middle = {"mean": getattr(metrics, f"mean_{key}_ms") / 1e3, "p50": getattr(metrics, f"median_{key}_ms") / 1e3}
        figures[name] = middle | shares
    figures |= {name: {"mean": getattr(metrics, key)} for name, key in RATES["vllm"].items()}
    failed = [request["answer"] for request, output in zip(case["requests"], outputs, strict=True) if not output.success]
    answer("vllm", importlib.import_module("vllm").__version__, figures, failed)


if __name__ == "__main__":
    asyncio.run(main())
