"""`check`: holds runs against a baseline under a policy; the exit code is the verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from longbench_sched.errors import EXIT_CODES

EXAMPLES = """
Examples:

  longbench-sched check latest --baseline main

  longbench-sched check new --baseline old --policy gate.toml --export verdict.xml --export verdict.md

  longbench-sched check latest --baseline main --noise-floor main

Exit codes:

""" + "\n\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())


def check(
    candidate: Annotated[str, typer.Argument(help="Runs to check: a target of an experiment, ids, a folder, `latest`.")],
    baseline: Annotated[str, typer.Option("--baseline", help="What they are held against: a baseline by name, or runs.")],
    policy: Annotated[
        str | None, typer.Option("--policy", help="Rules (TOML). Default: 5 % of medians, 10 % of p99, 1 % errors.")
    ] = None,
    noise_floor: Annotated[
        str | None,
        typer.Option("--noise-floor", help="Runs of one build, to show what two sets of them differ by (A/A)."),
    ] = None,
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the runs had: ttft:3000 tpot:50.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option("--export", help="Also write .xml (JUnit) .md (job summary) .csv .json .txt; - is stdout; repeatable."),
    ] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs and baselines are looked up.")] = "results",
) -> int:
    """How does this build stand against the baseline: pass, fail, or not known? Made for CI: the exit code says it."""
    from pathlib import Path

    from longbench_sched.cli import pages
    from longbench_sched.cli.exports import open_exports
    from longbench_sched.cli.selection import select_side
    from longbench_sched.compare.gate import check as hold
    from longbench_sched.compare.policy import default_policy, read_policy
    from longbench_sched.errors import StoreError
    from longbench_sched.report import VERDICT_FORMATS
    from longbench_sched.report.verdict import build_verdict
    from longbench_sched.slo import Slo

    rules = default_policy()
    if policy is not None:
        try:
            rules = read_policy(Path(policy).read_text("utf-8-sig"), policy)
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"--policy {policy}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    folder, slo = Path(results), Slo.parse(goodput) if goodput else None
    with open_exports(export or [], VERDICT_FORMATS) as exports:
        base, new = select_side(baseline, folder, slo), select_side(candidate, folder, slo)
        noise = select_side(noise_floor, folder, slo).points if noise_floor is not None else ()
        verdict = hold(base, new, rules, noise)
        pages.say_page(build_verdict(verdict), exports)
        return verdict.exit_code
