"""The experiment of each claim, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from longbench_sched.experiment import claims_benchmark, claims_parallel, claims_scheduling, claims_speculation
from longbench_sched.experiment.claims import Answer, Answered, Claim

EXPERIMENTS: Mapping[str, Callable[[Claim], Answer]] = {
    **claims_scheduling.EXPERIMENTS,
    **claims_benchmark.EXPERIMENTS,
    **claims_parallel.EXPERIMENTS,
    **claims_speculation.EXPERIMENTS,
}


def answer_claim(claim: Claim) -> Answered:
    """Run the experiment of a claim."""
    return Answered(claim, EXPERIMENTS[claim.id](claim))
