"""Which field of a tool's own results is which figure of `report --as`. Read inside the tools' environments, too."""

FIGURES = {  # tool -> figure -> its key in the tool; the standard library alone may be needed here
    "vllm": {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2EL": "e2el"},
    "sglang": {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E Latency": "e2e_latency"},
    "guidellm": {
        "Time to First Token": "time_to_first_token_ms",
        "Time Per Output Token": "time_per_output_token_ms",
        "Inter Token Latency": "inter_token_latency_ms",
        "Request Latency": "request_latency",
    },
    "aiperf": {
        "Time to First Token": "time_to_first_token",
        "Time to Second Token": "time_to_second_token",
        "Inter Token Latency": "inter_token_latency",
        "Inter Chunk Latency": "inter_chunk_latency",
        "Output Token Throughput Per User": "output_token_throughput_per_user",
        "Request Latency": "request_latency",
    },
}
RATES = {
    "vllm": {
        "Request throughput (req/s)": "request_throughput",
        "Output token throughput (tok/s)": "output_throughput",
        "Total token throughput (tok/s)": "total_token_throughput",
    },
    "sglang": {
        "Request throughput (req/s)": "request_throughput",
        "Output token throughput (tok/s)": "output_throughput",
        "Total token throughput (tok/s)": "total_throughput",
        "Concurrency": "concurrency",
    },
    "guidellm": {
        "Requests Per Second": "requests_per_second",
        "Output Tokens Per Second": "output_tokens_per_second",
        "Request Concurrency": "request_concurrency",
    },
    "aiperf": {"Request Throughput": "request_throughput", "Output Token Throughput": "output_token_throughput"},
}
