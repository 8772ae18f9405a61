"""Claims on speculative decoding: C15 to C22."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from longbench_sched.experiment.claims import Answer, Cell, Claim, Grid
from longbench_sched.sim.acceptance import (
    Acceptance,
    Chain,
    ConstantRate,
    TableRate,
    alpha_for,
    break_even_draft_cost,
    expected_tokens,
    speedup,
)
from longbench_sched.sim.bill import StepLoad
from longbench_sched.sim.cost import StepCost
from longbench_sched.sim.hardware import GPUS
from longbench_sched.sim.models import MODELS, Gqa, Model
from longbench_sched.sim.speculation import Speculator, Wish, find_speculator

H200, LLAMA = GPUS["H200"], MODELS["Llama-3.1-8B"]
SMALL = Model("Llama-3.2-1B", 16, 2048, Gqa(32, 8, 64), 8192, 128_256, 131_072, tied_embeddings=True)
K128 = 131_072


def decode_speedup(speculator: Speculator, n: int, context: int, target: Model = LLAMA) -> float:
    """Tokens a second with speculation over those without, `n` requests at that context on H200."""
    tokens = speculator.acceptance.expected(context, speculator.n_drafts)
    with_drafts = StepCost(H200, target, speculator=speculator).price(
        StepLoad((), n, n * speculator.verify_tokens, n * context)
    )
    return tokens * StepCost(H200, target).decode_s(n, n * context) / with_drafts


def verify_cost(n: int, k: int, context: int) -> float:
    """v: a step that verifies k drafts a request, over one that decodes."""
    cost = StepCost(H200, LLAMA)
    return cost.price(StepLoad((), n, n * (k + 1), n * context)) / cost.decode_s(n, n * context)


def sampled_mean(acceptance: Acceptance, k: int, n: int = 20_000, seed: int = 1) -> float:
    """Mean tokens a step, drawn."""
    rng = Random(seed)
    return 1 + sum(acceptance.accepted(1, k, rng) for _ in range(n)) / n


def _c15(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for k in (1, 3, 5, 8):
        for alpha in (0.5, 0.7, 0.9, 1.0):
            tokens = expected_tokens(alpha, k)
            drawn = sampled_mean(Chain(ConstantRate(alpha)), k)
            rows.append((k, alpha, tokens, drawn, *(speedup(tokens, k, cost) for cost in (0.02, 0.1))))
    grid = Grid(
        "Tokens a step and speed-up, verification free",
        ("K", "alpha", "closed form", "drawn", "c = 0.02", "c = 0.1"),
        tuple(rows),
    )
    usual = [float(str(row[5])) for row in rows if row[0] in (3, 5) and row[1] in (0.7, 0.9)]
    return Answer("K, 2..4 x", f"K+1, {min(usual):.0f}..{max(usual):.0f} x", "partly", grids=(grid,))


def _c16(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for context in (1024, 8192, 32_768, K128):
        free, windowed = (find_speculator("eagle3", LLAMA, Wish(draft_window=window)) for window in (None, 2048))
        times = [StepCost(H200, LLAMA, speculator=one).draft_s(8, 8 * context) * 1e3 for one in (free, windowed)]
        accepted = [one.acceptance.expected(context, one.n_drafts) for one in (free, windowed)]
        rows.append((context, *times, *accepted))
    grid = Grid(
        "EAGLE-3 head of Llama-3.1-8B, 8 requests: drafting with all history and with a window of 2048",
        ("context", "all ms", "window ms", "AL all", "AL window"), tuple(rows),
        ("The window spares time. What it does to acceptance is not modelled: the same law is used for both.",),
    )  # fmt: skip
    return Answer("2048 tokens", "no limit", "fails", grids=(grid,))


def _c17(claim: Claim) -> Answer:
    length = claim.published["acceptance_length"]
    table = TableRate(((2048, 3.0), (8192, 2.2), (32_768, 1.6), (K128, length)), at_drafts=5)
    alphas = tuple((k, alpha_for(length, k), break_even_draft_cost(length, k)) for k in (1, 3, 5, 7))
    first = Grid(f"What AL {length:g} means", ("K", "alpha", "break-even c"), alphas)
    rows: list[tuple[Cell, ...]] = []
    for n in (1, 8, 32):
        eagle = find_speculator("eagle3", LLAMA, Wish(n_drafts=5, acceptance=Chain(table)))
        rows.append((n, verify_cost(n, 5, K128), decode_speedup(eagle, n, K128)))
    second = Grid("EAGLE-3, 5 drafts, at 128K", ("requests", "v = verify / decode", "speed-up"), tuple(rows))
    slow = float(str(rows[0][2]))
    notes = ("Whether AL really falls to 1.28 no model can tell; what follows from it is computed.",)
    return Answer("AL 1.28", f"{slow:.2f} x", "open", grids=(first, second), notes=notes)


def _c18(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for n in (1, 4, 16, 64, 256):
        speeds = []
        for length in (3.0, 4.0, 6.0):
            k = 7
            eagle = find_speculator("eagle3", LLAMA, Wish(n_drafts=k, alpha=alpha_for(length, k)))
            speeds.append(decode_speedup(eagle, n, 2048))
        rows.append((n, *speeds))
    grid = Grid("EAGLE-3 on Llama-3.1-8B, 7 drafts, 2K of context: speed-up", ("batch", "AL 3", "AL 4", "AL 6"), tuple(rows))
    best, crowded = float(str(rows[0][3])), float(str(rows[3][1]))
    return Answer("2..6.5 x", f"{crowded:.1f}..{best:.1f} x", "partly", grids=(grid,))


def _c19(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for context in (2048, 4096, 8192, 32_768, K128):
        old, new = (find_speculator(name, LLAMA) for name in ("eagle3", "eagle3.1"))
        lengths = [one.acceptance.expected(context, one.n_drafts) for one in (old, new)]
        rows.append((context, *lengths, decode_speedup(old, 1, context), decode_speedup(new, 1, context)))
    grid = Grid(
        "A claimed maximum: AL - 1 doubled beyond 2048 tokens",
        ("context", "AL 3", "AL 3.1", "speed-up 3", "speed-up 3.1"),
        tuple(rows),
    )
    ratio = float(str(rows[-1][2])) / float(str(rows[-1][1]))
    return Answer(
        "2 x", f"{ratio:.1f} x", "open", grids=(grid,), notes=("What if, not a prediction: the factor is the claim's own.",)
    )


def _c20(claim: Claim) -> Answer:
    rows: list[tuple[Cell, ...]] = []
    for name in ("eagle", "eagle2", "eagle3", "self"):
        one = find_speculator(name, LLAMA)
        rows.append((name, one.own_weights / 1e6, one.kv_bytes_per_token, one.drafter.layers))
    grid = Grid("Drafters of Llama-3.1-8B", ("method", "own weights, M", "own KV, B/token", "layers a pass"), tuple(rows))
    return Answer("its layers", "own head", "fails", grids=(grid,))


def _c21(claim: Claim) -> Answer:
    rows = tuple(
        (n, context, *(verify_cost(n, k, context) for k in (1, 3, 7)))
        for n in (1, 16, 64, 256) for context in (2048, 32_768, K128)
    )  # fmt: skip
    grid = Grid("Verification over decode, Llama-3.1-8B on H200", ("batch", "context", "K = 1", "K = 3", "K = 7"), rows)
    return Answer("about 1 x", f"{rows[2][4]:.2f}..{rows[9][4]:.1f} x", "partly", grids=(grid,))


def _c22(claim: Claim) -> Answer:
    target = LLAMA.kv_bytes_per_token()
    rows: list[tuple[Cell, ...]] = []
    for name in ("ngram", "eagle3", "mtp", "draft-model"):
        one = find_speculator(name, LLAMA, Wish(draft_model=SMALL))
        rows.append((name, one.kv_bytes_per_token, one.kv_bytes_per_token / target, one.kv_bytes_per_token * K128 / 1e9))
    grid = Grid("KV of the drafter beside that of Llama-3.1-8B", ("method", "B/token", "share", "GB at 128K"), tuple(rows))
    head, model = (float(str(row[2])) for row in (rows[1], rows[3]))
    return Answer("sizeable", f"{head:.0%}..{model:.0%}", "partly", grids=(grid,))


def speculation_by_context() -> Grid:
    """Speed-up of each method by context, one request."""
    contexts = (1024, 4096, 16_384, 65_536, K128)
    rows: list[tuple[Cell, ...]] = []
    for name in ("ngram", "draft-model", "medusa", "eagle", "eagle2", "eagle3", "eagle3.1", "mtp", "self", "cascade"):
        one = find_speculator(name, LLAMA, Wish(draft_model=SMALL))
        rows.append((name, one.n_drafts, *(decode_speedup(one, 1, context) for context in contexts)))
    return Grid(
        "Speculation against context: speed-up of one request, Llama-3.1-8B on H200",
        ("method", "K", *(f"{context // 1024}K" for context in contexts)), tuple(rows),
        ("Acceptance is assumed (see each method's source), and eagle3.1 is a claimed maximum.",),
    )  # fmt: skip


EXPERIMENTS: Mapping[str, Callable[[Claim], Answer]] = {
    "C15": _c15,
    "C16": _c16,
    "C17": _c17,
    "C18": _c18,
    "C19": _c19,
    "C20": _c20,
    "C21": _c21,
    "C22": _c22,
}
