"""SGLang's own client code and arithmetic on the events of a run; run by SGLang's Python, see benchmarks/reconcile."""

from __future__ import annotations

import asyncio
import importlib
import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from figures import FIGURES, RATES
from replay import Clock, Session, answer, read_case

ROUTES = {
    "generate": ("sglang", "async_request_sglang_generate", "/generate"),
    "completions": ("sglang-oai", "async_request_openai_completions", "/v1/completions"),
    "chat": ("sglang-oai-chat", "async_request_openai_chat_completions", "/v1/chat/completions"),
}
ARGUMENTS = {
    "disable_stream": False, "disable_ignore_eos": False, "return_logprob": False, "top_logprobs_num": 0, "temperature": 0.0,
    "top_p": 1.0, "return_routed_experts": False, "logprob_start_len": -1, "token_ids_logprob": None, "plot_throughput": False,
}  # fmt: skip


def as_asked(request: Mapping[str, Any], api: str) -> dict[str, Any]:
    """Without the usage that a server would not have sent: this client asks for none on the routes of OpenAI."""
    if api == "generate":
        return dict(request)
    events = []
    for at_s, text in request["events"]:
        payload = text.removeprefix("data: ").strip()
        if not payload.startswith("{"):
            events.append([at_s, text])
            continue
        event = json.loads(payload)
        if event.pop("usage", None) is None or event["choices"]:
            events.append([at_s, f"data: {json.dumps(event)}\n\n"])
    return {**request, "events": events}


async def main() -> None:
    case = read_case()
    serving = importlib.import_module("sglang.benchmark.serving")
    aiohttp = importlib.import_module("aiohttp")
    backend, function, path = ROUTES[case["api"]]
    serving.args = Namespace(**ARGUMENTS)
    clock = serving.time = Clock()
    outputs, rows = [], []
    for request in case["requests"]:
        clock.now_s = request["sent_s"]
        session = Session(as_asked(request, case["api"]), clock, aiohttp.ClientPayloadError)
        serving._create_bench_client_session = lambda session=session: session
        wanted = serving.RequestFuncInput(
            prompt="p", api_url=path, prompt_len=request["isl"], output_len=request["osl"], model="awkward", lora_name="",
            image_data=None, extra_request_body={},
        )  # fmt: skip
        outputs.append(await getattr(serving, function)(wanted))
        rows.append(Namespace(prompt_len=request["isl"], text_prompt_len=request["isl"], vision_prompt_len=0))
    tokenizer = Namespace(encode=lambda text, **_: text.split())  # counts a second time, in figures that are not compared
    metrics, _ = serving.calculate_metrics(rows, outputs, case["duration_s"], tokenizer, backend)
    figures: dict[str, Any] = {}
    for name, key in FIGURES["sglang"].items():
        fields = {"mean": f"mean_{key}_ms", "p50": f"median_{key}_ms"} | {f"p{s}": f"p{s}_{key}_ms" for s in (90, 95, 99)}
        figures[name] = {share: float(getattr(metrics, field)) / 1e3 for share, field in fields.items()}
    figures |= {name: {"mean": float(getattr(metrics, key))} for name, key in RATES["sglang"].items()}
    failed = [request["answer"] for request, output in zip(case["requests"], outputs, strict=True) if not output.success]
    answer("sglang", importlib.import_module("sglang").__version__, figures, failed)


if __name__ == "__main__":
    asyncio.run(main())
