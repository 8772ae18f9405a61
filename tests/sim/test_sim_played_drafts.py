"""Every set of parameters of a drafter, played by an engine under load: what it yields, what it takes, what is refused."""

from __future__ import annotations

import math
from statistics import fmean, pvariance

import pytest

from longbench_sched.errors import UsageError
from longbench_sched.sim.acceptance import Chain, Tree
from longbench_sched.sim.draft_knobs import check_drafts, read_drafts
from longbench_sched.sim.drafting import build_speculating, draft_facts
from longbench_sched.sim.engine import Engine, build_engine
from longbench_sched.sim.flags import read_flags
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS, Gqa, Model
from longbench_sched.sim.speculation import METHODS, Speculator, Wish

H200, LLAMA = GPUS["H200"], MODELS["Llama-3.1-8B"]
SMALL = Model("Llama-3.2-1B", 16, 2048, Gqa(32, 8, 64), 8192, 128_256, 131_072, tied_embeddings=True)
WITH_MODEL = ("draft-model", "cascade")
# The engine's own flag that turns on what each set is played by.
VLLM = {
    "draft-model": "draft_model",
    "ngram": "ngram",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle2": "eagle",
    "eagle3": "eagle3",
    "eagle3.1": "eagle3",
    "mtp": "mtp",
    "self": "draft_model",
    "cascade": "draft_model",
}
SGLANG = {
    "draft-model": "STANDALONE",
    "ngram": "NGRAM",
    "medusa": "EAGLE",
    "eagle": "EAGLE",
    "eagle2": "EAGLE",
    "eagle3": "EAGLE3",
    "eagle3.1": "EAGLE3",
    "mtp": "NEXTN",
    "self": "STANDALONE",
    "cascade": "STANDALONE",
}
TREE = ("--speculative-num-steps=5", "--speculative-eagle-topk=4", "--speculative-num-draft-tokens=16")
PLAYED = [
    *(("vllm", (f'--speculative-config={{"method": "{VLLM[one]}", "num_speculative_tokens": 3}}',), one) for one in METHODS),
    *(("vllm-v0", ("--num-speculative-tokens=3",), one) for one in METHODS),
    *(("trtllm", ("--num-speculative-tokens=3",), one) for one in METHODS),
    *(("sglang", (f"--speculative-algorithm={SGLANG[one]}",), one) for one in METHODS),
    *(("sglang", (f"--speculative-algorithm={SGLANG[one]}", *TREE), one) for one in METHODS),
    *(("sglang-0.4", ("--speculative-algorithm=EAGLE",), one) for one in ("eagle", "eagle2", "medusa")),
]


def play(name: str, flags: tuple[str, ...], method: str, **wish) -> Engine:
    wish = {"draft_model": SMALL if method in WITH_MODEL else None, **wish}
    return build_speculating(name, H200, LLAMA, read_flags(name, flags), wish=Wish(method=method, **wish), seed=3)


def speculator(engine: Engine) -> Speculator:
    found = engine.cost.speculator
    assert found is not None
    return found


def chunks_under_load(engine: Engine, isl: int, osl: int, n_requests: int = 4) -> list[int]:
    """Tokens of every verification that the end of the output did not cut short."""
    sequences = [engine.submit(isl, osl, 0.0) for _ in range(n_requests)]
    first, now_s = set(), 0.0
    chunks: list[int] = []
    while (seconds := engine.begin(now_s)) is not None:
        now_s += seconds
        for sequence in engine.end(now_s):
            if sequence in first and sequence.finish is None:
                chunks.append(sequence.yielded_now)
            first.add(sequence)
    assert [sequence.generated for sequence in sequences] == [osl] * n_requests
    return chunks


@pytest.mark.parametrize(("name", "flags", "method"), PLAYED, ids=lambda value: value if isinstance(value, str) else "")
def test_sp2_every_set_runs_under_load_and_yields_what_its_law_says(name: str, flags: tuple[str, ...], method: str) -> None:
    """Within the trained length, where no law depends on the context: the mean of the chunks is E to 3 sigma."""
    engine = play(name, flags, method)
    drafting = speculator(engine)
    chunks = chunks_under_load(engine, isl=200, osl=1200)
    assert 1 <= min(chunks) < max(chunks) <= drafting.n_drafts + 1, "SP-1"
    sigma = math.sqrt(pvariance(chunks) / len(chunks))
    assert abs(fmean(chunks) - drafting.acceptance.expected(800, drafting.n_drafts)) < 3 * sigma
    assert (drafting.method, engine.cost.draft_s(4, 4000) > 0) == (method, method != "ngram")


def test_c19_beyond_the_trained_length_eagle31_yields_more_than_eagle3_and_up_to_twice_as_many_drafts() -> None:
    """At 16K, alpha 0.286: 1.4 tokens a verification against the claimed 1.8. Same engine, same flag, same price."""
    flags = ('--speculative-config={"method": "eagle3", "num_speculative_tokens": 3}',)
    old, new = (play("vllm", flags, method) for method in ("eagle3", "eagle3.1"))
    assert old.cost.draft_s(1, 16_384) == new.cost.draft_s(1, 16_384)
    assert old.state.kv.total == new.state.kv.total
    gains = [fmean(chunks_under_load(engine, isl=16_384, osl=600)) - 1 for engine in (old, new)]
    assert gains[1] / gains[0] == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("vllm", ('--speculative-config={"method": "draft_model", "num_speculative_tokens": 4}',)),
        ("vllm-v0", ("--num-speculative-tokens=4",)),
        ("sglang", ("--speculative-algorithm=STANDALONE", "--speculative-num-steps=4")),
        ("trtllm", ("--num-speculative-tokens=4",)),
    ],
)
def test_c20_memory_and_time_are_those_of_the_set_that_is_played(name: str, flags: tuple[str, ...]) -> None:
    """Self-speculation adds nothing to memory; a cascade what its draft model adds, and it drafts in fewer passes."""
    plain = build_engine(name, H200, LLAMA, read_flags(name, flags))
    model, own, cascade = (play(name, flags, method) for method in ("draft-model", "self", "cascade"))
    assert own.state.kv.total == plain.state.kv.total
    assert model.state.kv.total == cascade.state.kv.total < 0.81 * plain.state.kv.total
    assert cascade.cost.draft_s(4, 4000) < model.cost.draft_s(4, 4000) < own.cost.draft_s(4, 4000)
    reads = own.cost.draft_s(1, 40_000) - own.cost.draft_s(1, 4000)
    assert reads > 4 * 36_000 * LLAMA.kv_bytes_per_token() / 2 / H200.bandwidth, "half of the layers read their cache"


def test_a_set_is_played_by_the_drafter_whose_books_it_shares() -> None:
    """vLLM keeps slots ahead and a place in the drafter's input for a draft model: so for what takes its place."""
    engine = play("vllm", ('--speculative-config={"method": "draft_model", "num_speculative_tokens": 3}',), "self")
    assert (engine.options.lookahead_tokens, engine.options.draft_slots) == (3, 1)  # type: ignore[union-attr]


def test_without_a_method_the_flag_decides() -> None:
    for name, flags, method in PLAYED:
        own = {"EAGLE": "eagle2", "EAGLE3": "eagle3", "STANDALONE": "draft-model"}
        named = next((own[word] for word in own if flags[0] == f"--speculative-algorithm={word}"), None)
        if named is not None:
            assert speculator(play(name, flags, "", draft_model=SMALL if named == "draft-model" else None)).method == named
        assert speculator(play(name, flags, method)).method == method


@pytest.mark.parametrize(
    ("name", "flags", "method", "said"),
    [
        ("vllm", ('--speculative-config={"method": "eagle3", "num_speculative_tokens": 3}',), "self", "Give draft_model there"),
        ("vllm", ("--num-speculative-tokens=3",), "eagle3.1", "played as: ngram.\n  Give eagle3 there"),
        ("sglang", ("--speculative-algorithm=EAGLE",), "mtp", "Give NEXTN there"),
        ("sglang-0.4", ("--speculative-algorithm=EAGLE",), "cascade", "another --engine"),
        ("vllm", ("--num-speculative-tokens=3",), "egale3", "Did you mean eagle3"),
        ("trtllm", ("--num-speculative-tokens=3",), "egale3", "Did you mean eagle3"),
    ],
)
def test_a_set_that_the_flag_does_not_turn_on_is_refused_with_the_flag_that_does(
    name: str, flags: tuple[str, ...], method: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        play(name, flags, method)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"method": "self", "draft_model": SMALL}, "without a model of its own"),
        ({"method": "cascade", "draft_model": None}, "cascade needs a draft model"),
        ({"method": "medusa", "draft_window": 100}, "has no window"),
        ({"method": "", "draft_window": 100}, "ngram drafts without attention"),
    ],
)
def test_what_a_set_has_no_use_for_is_refused(wish: dict, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        play("trtllm", ("--num-speculative-tokens=3",), **wish)


def test_a_run_says_what_its_drafts_are_played_as_and_what_is_only_claimed() -> None:
    flags = ("--speculative-algorithm=EAGLE3",)
    claimed = draft_facts(speculator(play("sglang", flags, "eagle3.1")))
    assert claimed["drafter"] == "eagle3.1, claimed maximum"
    assert claimed["speculator"]["is_claimed_maximum"] is True  # type: ignore[index]
    assert "claimed maximum" in claimed["speculator"]["source"]  # type: ignore[index]
    measured = draft_facts(speculator(play("sglang", flags, "eagle3.1", alpha=0.6, draft_window=2048)))
    assert measured["drafter"] == "eagle3.1, window 2048, acceptance 0.6", "nothing is claimed where it was given"
    layers = draft_facts(speculator(play("trtllm", ("--num-speculative-tokens=3",), "self", alpha=0.6, layer_share=0.3)))
    assert layers["drafter"] == "self, layer share 0.3, acceptance 0.6"
    table = draft_facts(speculator(play("sglang", flags, "", lengths=((2048, 3.1), (32768, 1.8)))))
    assert table["drafter"] == "eagle3, acceptance length 3.1@2048 1.8@32768"
    model = draft_facts(speculator(play("trtllm", ("--num-speculative-tokens=3",), "cascade")))
    assert model["drafter"] == "cascade, draft model Llama-3.2-1B"


def test_sglangs_tree_has_the_nodes_that_its_flags_say_and_its_chain_the_steps() -> None:
    tree = speculator(play("sglang", ("--speculative-algorithm=EAGLE3", *TREE), ""))
    assert isinstance(tree.acceptance, Tree)
    assert (tree.acceptance.n_nodes, tree.acceptance.top_k, tree.drafter.width, tree.verify_tokens) == (15, 4, 4, 16)
    chain = speculator(play("sglang", ("--speculative-algorithm=EAGLE", "--speculative-num-steps=5"), ""))
    assert isinstance(chain.acceptance, Chain)
    assert (chain.n_drafts, chain.verify_tokens) == (5, 6)
    lookup = speculator(play("sglang", ("--speculative-algorithm=NGRAM", "--speculative-num-draft-tokens=8"), ""))
    assert (lookup.n_drafts, lookup.verify_tokens) == (7, 8)
    fixed, chosen = (speculator(play("sglang", ("--speculative-algorithm=EAGLE", *TREE), one)) for one in ("eagle", "eagle2"))
    assert fixed.acceptance.expected(500, 5) < chosen.acceptance.expected(500, 5)


def test_words_become_a_wish() -> None:
    words = {"draft_method": "Eagle3.1", "draft_window": "2Ki", "acceptance_rate": "0.5"}
    assert read_drafts(words) == Wish(method="eagle3.1", draft_window=2048, alpha=0.5)
    assert read_drafts({"acceptance_length": "2Ki:3.1,32Ki:1.8"}) == Wish(lengths=((2048, 3.1), (32768, 1.8)))
    assert read_drafts({"draft_layer_share": "0.3", "acceptance_rate": "0.6"}) == Wish(layer_share=0.3, alpha=0.6)
    assert read_drafts({"draft_model": "Qwen3-8B"}).draft_model == MODELS["Qwen3-8B"]
    for knob in ("acceptance_rate", "draft_layer_share"):
        with pytest.raises(UsageError, match=f"--{knob.replace('_', '-')} 'often' is not a number"):
            read_drafts({knob: "often"})
    with pytest.raises(UsageError, match=r"--draft-method, .* nothing turns it on"):
        check_drafts(Wish(method="self"), read_flags("vllm", ()))
