"""Facts about an engine: what its information routes say, and nothing that they do not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.engine import facts
from longbench_sched.engine.facts import FACTS, ModelCard
from longbench_sched.engine.prometheus import read_samples


@pytest.mark.parametrize(
    ("body", "cards"),
    [
        pytest.param(
            b'{"object":"list","data":[{"id":"m","owned_by":"vllm","root":"/x/m","parent":null,"max_model_len":65536}]}',
            [ModelCard("m", 65536, "/x/m", "vllm")], id="vLLM, SGLang",
        ),
        pytest.param(
            b'{"object":"list","data":[{"id":"m","created":1,"owned_by":"nvidia","context_window":65536}]}',
            [ModelCard("m", 65536, None, "nvidia")], id="Dynamo",
        ),
        pytest.param(
            b'{"models":[{"name":"m"}],"object":"list","data":[{"id":"m","owned_by":"llamacpp","meta":{"n_ctx":8192,"n_ctx_train":32768}}]}',
            [ModelCard("m", 8192, None, "llamacpp")], id="llama.cpp: the context of a slot",
        ),
        pytest.param(
            b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"tensorrt_llm"}]}',
            [ModelCard("m", None, None, "tensorrt_llm")], id="trtllm-serve does not say a length",
        ),
        pytest.param(
            b'{"data":[{"id":"m","max_model_len":10},{"id":"lora","max_model_len":null,"parent":"m"}]}',
            [ModelCard("m", 10), ModelCard("lora")], id="an adapter beside its model",
        ),
        pytest.param(b'{"data":[{"id":"m","max_model_len":true}]}', [ModelCard("m")], id="a length that is no number"),
        pytest.param(b'{"data":[]}', [], id="no models"),
        pytest.param(b"<html>", [], id="no JSON"),
        pytest.param(b'{"data":[1,{"no":"id"}]}', [], id="no cards"),
    ],
)  # fmt: skip
def test_models_are_listed_with_what_is_known_of_them(body: bytes, cards: list[ModelCard]) -> None:
    assert facts.read_models(body) == cards


def test_a_model_card_gives_facts_without_nulls() -> None:
    assert facts.model_facts(ModelCard("m", 8192, None, "llamacpp")) == {
        "engine": "llama.cpp",
        "model": "m",
        "max_model_len": 8192,
    }
    assert facts.model_facts(ModelCard("m", None, None, "someone")) == {"model": "m"}


@pytest.mark.parametrize(
    ("body", "version"),
    [(b'{"version":"0.32.0"}', "0.32.0"), (b'{"detail":"Not Found"}', None), (b"", None), (b'{"version":"\\u001b[1m1"}', "1")],
)
def test_the_version_is_read_or_unknown(body: bytes, version: str | None) -> None:
    assert facts.read_version(body) == version


def test_vllm_says_its_settings_in_development_mode() -> None:
    body = b"""{"vllm_config":{
        "scheduler_config":{"max_num_batched_tokens":8192,"max_num_seqs":1024,"enable_chunked_prefill":true,
            "long_prefill_token_threshold":0,"policy":"fcfs","async_scheduling":true,"stream_interval":1},
        "parallel_config":{"tensor_parallel_size":2,"pipeline_parallel_size":1,"data_parallel_size":1},
        "cache_config":{"block_size":16,"gpu_memory_utilization":0.92,"cache_dtype":"auto","enable_prefix_caching":true},
        "speculative_config":{"method":"ngram"},"kv_transfer_config":null},"vllm_env":{"HF_TOKEN":"secret"}}"""
    assert facts.read_server_info(body) == {
        "engine": "vllm", "token_budget": 8192, "max_num_seqs": 1024, "chunked_prefill": True,
        "long_prefill_token_threshold": 0, "schedule_policy": "fcfs",
        "async_scheduling": True, "stream_interval": 1, "tensor_parallel": 2, "pipeline_parallel": 1,
        "data_parallel": 1, "block_size": 16, "memory_fraction": 0.92, "kv_dtype": "auto", "prefix_caching": True,
        "speculative": "ngram",
    }  # fmt: skip


def test_sglang_says_its_resolved_settings() -> None:
    body = b"""{"model_path":"/x/m","served_model_name":"m","chunked_prefill_size":8192,"enable_mixed_chunk":false,
        "max_prefill_tokens":16384,"schedule_policy":"fcfs","max_running_requests":null,"disable_radix_cache":false,
        "disable_overlap_schedule":false,"stream_interval":1,"incremental_streaming_output":false,"page_size":1,
        "max_total_num_tokens":262144,"context_length":null,"kv_cache_dtype":"auto","mem_fraction_static":0.88,
        "tp_size":1,"pp_size":1,"dp_size":1,"speculative_algorithm":null,"disaggregation_mode":"null","version":"0.5.23",
        "launch_command":"python --api-key secret","internal_states":[{"effective_max_running_requests_per_dp":2048}]}"""
    assert facts.read_server_info(body) == {
        "engine": "sglang", "model_path": "/x/m", "model": "m", "version": "0.5.23", "token_budget": 8192,
        "chunked_prefill": True, "mixed_chunk": False, "max_prefill_tokens": 16384, "schedule_policy": "fcfs",
        "max_num_seqs": 2048, "prefix_caching": True, "async_scheduling": True, "stream_interval": 1,
        "incremental_output": False, "block_size": 1,
        "kv_capacity_tokens": 262144, "kv_dtype": "auto", "memory_fraction": 0.88, "tensor_parallel": 1, "pipeline_parallel": 1,
        "data_parallel": 1, "speculative": None,
    }  # fmt: skip


def test_a_chunk_size_of_minus_one_is_off_and_no_budget() -> None:
    info = facts.read_server_info(b'{"chunked_prefill_size":-1,"disable_radix_cache":true,"disaggregation_mode":"prefill"}')
    assert info == {"engine": "sglang", "chunked_prefill": False, "prefix_caching": False, "disaggregation": "prefill"}


def test_a_server_that_says_nothing_gives_no_facts() -> None:
    assert facts.read_server_info(b'{"disaggregated_params":null}') == {}  # trtllm-serve
    assert facts.read_server_info(b"nothing") == {}


def test_the_embedded_engine_says_how_fast_its_clock_runs() -> None:
    info = facts.read_server_info(b'{"chunked_prefill_size":4096,"time_scale":6.0,"simulated":true}')
    assert (info["time_scale"], info["simulated"]) == (6.0, True)


_CACHE = (
    '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="128",cache_dtype="auto",'
    'enable_prefix_caching="True",engine="0",gpu_memory_utilization="0.92",%snum_gpu_blocks="8192"} 1.0\n'
)


@pytest.mark.parametrize(
    ("more", "capacity"),
    [('kv_cache_size_tokens="1048000",', 1_048_000), ('kv_cache_size_tokens="None",', 1_048_576), ("", 1_048_576)],
)
def test_vllm_metrics_say_the_cache(more: str, capacity: int) -> None:
    assert facts.read_metrics(_CACHE % more) == {
        "engine": "vllm", "block_size": 128, "kv_capacity_tokens": capacity, "prefix_caching": True, "kv_dtype": "auto",
        "memory_fraction": 0.92,
    }  # fmt: skip


def test_settings_that_are_none_are_absent() -> None:
    text = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="None",cache_dtype="None",enable_prefix_caching="None"} 1.0'
    assert facts.read_metrics(text) == {"engine": "vllm", "block_size": 16}


def test_sglang_and_dynamo_metrics_say_sizes() -> None:
    sglang = 'sglang:max_total_num_tokens{tp_rank="0"} 262144.0\nsglang:page_size{} 1.0\nsglang:context_len 65536.0\n'
    assert facts.read_metrics(sglang) == {
        "engine": "sglang", "kv_capacity_tokens": 262_144, "block_size": 1, "max_model_len": 65_536,
    }  # fmt: skip
    dynamo = (
        'dynamo_frontend_model_context_length{model="m"} 65536\ndynamo_frontend_model_kv_cache_block_size{model="m"} 64\n'
        'dynamo_frontend_model_max_num_batched_tokens{model="m"} 2048\ndynamo_frontend_model_total_kv_blocks{model="m"} 16384\n'
    )
    assert facts.read_metrics(dynamo) == {
        "engine": "dynamo", "max_model_len": 65_536, "block_size": 64, "token_budget": 2048, "kv_capacity_tokens": 1_048_576,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "hits"),
    [
        ('vllm:prefix_cache_hits_total{engine="0"} 9728.0\nvllm:prefix_cache_hits_created{engine="0"} 1.796e+09\n', 9728),
        ('vllm:prefix_cache_hits_total{engine="0"} 3.0\nvllm:prefix_cache_hits_total{engine="1"} 4.0\n', 7),
        ('sglang:cached_tokens_total{cache_source="device"} 204.0\nsglang:cached_tokens_total{cache_source="host"} 6.0\n', 210),
        ("vllm:prefix_cache_hits_total 0.0\n", 0),
        ("sglang:max_total_num_tokens 262144.0\n", 0),
        ("llamacpp:prompt_tokens_cached_total 12\n", 12),
        ("llamacpp:requests_processing 1\n", None),
    ],
    ids=["vllm", "two-ranks", "two-tiers", "none-yet", "no-counter-yet", "llama.cpp", "not-told"],
)
def test_a11_hits_of_the_prefix_cache_are_counted_by_the_server(text: str, hits: int | None) -> None:
    assert facts.read_prefix_hits(text) == hits


@pytest.mark.parametrize("value", ["NaN", "+Inf", "1e999"])
def test_gauges_without_a_number_say_nothing(value: str) -> None:
    assert facts.read_prefix_hits(f"vllm:prefix_cache_hits_total {value}\n") is None
    assert facts.read_metrics(f"sglang:max_total_num_tokens {value}\nsglang:page_size 1\n") == {
        "engine": "sglang", "block_size": 1,
    }  # fmt: skip
    blocks = f"dynamo_frontend_model_kv_cache_block_size 16\ndynamo_frontend_model_total_kv_blocks {value}\n"
    assert facts.read_metrics(blocks) == {"engine": "dynamo", "block_size": 16}


def test_a_number_of_thousands_of_digits_is_no_setting() -> None:
    assert facts.read_metrics(f'vllm:cache_config_info{{block_size="{"9" * 5000}"}} 1\n') == {"engine": "vllm"}


def test_a_method_that_is_no_word_is_left_out() -> None:
    assert facts.read_server_info(b'{"chunked_prefill_size":8192,"speculative_algorithm":[[1]]}')["speculative"] is None
    assert (
        facts.read_server_info(b'{"vllm_config":{"speculative_config":{"method":"\\u001b[1mngram"}}}')["speculative"] == "ngram"
    )


def test_metrics_of_another_kind_give_no_facts() -> None:
    assert facts.read_metrics("llamacpp:requests_processing 1\n") == {}
    assert facts.read_metrics('[{"iter":1}]') == {}  # trtllm-serve: JSON under that path


def test_every_fact_has_a_meaning() -> None:
    keys = [facts._VLLM_SCHEDULER, facts._VLLM_PARALLEL, facts._VLLM_CACHE, facts._SGLANG]
    assert {key for table in keys for key in table} <= set(FACTS)


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"count":2,"max_model_len":65536,"tokens":[0,6836],"token_strs":null}', [0, 6836]),
        (b'{"tokens":[2]}', [2]),
        (b'{"tokens":["a"]}', None),
        (b'{"detail":"Not Found"}', None),
    ],
)
def test_tokens_are_read_or_absent(body: bytes, tokens: list[int] | None) -> None:
    assert facts.read_tokens(body) == tokens


@pytest.mark.parametrize("key", ["prompt", "text", "content"])
def test_the_text_of_tokens_has_a_name_in_each_engine(key: str) -> None:
    assert facts.read_text(f'{{"{key}":"Hello"}}'.encode()) == "Hello"


@given(st.binary() | st.text().map(str.encode))
def test_no_answer_breaks_the_reading(body: bytes) -> None:
    facts.read_models(body)
    facts.read_server_info(body)
    facts.read_metrics(body.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("line", "sample"),
    [
        ('a_total{x="1",y="b"} 3', ("a_total", {"x": "1", "y": "b"}, 3.0)),
        ("a 1e3 1796034769", ("a", {}, 1000.0)),
        ('a:b{x="say \\"hi\\"\\n\\\\ {}, "} 0.5', ("a:b", {"x": 'say "hi"\n\\ {}, '}, 0.5)),
        ('a{le="+Inf"} +Inf', ("a", {"le": "+Inf"}, float("inf"))),
        ('a{x="1",} 2', ("a", {"x": "1"}, 2.0)),
    ],
)
def test_prometheus_lines_are_read(line: str, sample: tuple[str, dict[str, str], float]) -> None:
    assert list(read_samples(f"# HELP a b\n{line}\nnot a sample\na{{}} word\n")) == [sample]


def test_samples_are_chosen_by_their_beginning() -> None:
    assert [name for name, _, _ in read_samples("ab 1\nac 2\nb 3\n", "a")] == ["ab", "ac"]
