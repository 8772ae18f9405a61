"""`check`: holds runs against a baseline under a policy; the exit code is the verdict."""

from __future__ import annotations

from typing import Annotated

import typer

from longbench_sched.errors import EXIT_CODES

EXAMPLES = """
Examples:

  longbench-sched check latest --baseline main

  longbench-sched check new --baseline old --policy gate.toml --export verdict.xml --export verdict.md

  longbench-sched check latest --baseline main --measure-noise 10

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
    measure_noise: Annotated[
        int | None,
        typer.Option("--measure-noise", min=2, help="Measure them now: so many more runs of the candidate's experiment."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", help="NAME:VALUE to send with --measure-noise; repeatable, not stored.")
    ] = None,
    goodput: Annotated[
        list[str] | None, typer.Option("--goodput", help="Other limits, in ms, than the runs had: ttft:3000 tpot:50.")
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export", help="Also write .xml (JUnit) .md (job summary) .html .csv .json .txt; - is stdout; repeatable."
        ),
    ] = None,
    results: Annotated[str, typer.Option("--output-dir", help="Folder where runs and baselines are looked up.")] = "results",
) -> int:
    """How does this build stand against the baseline: pass, fail, or not known? Made for CI: the exit code says it."""
    from pathlib import Path

    from longbench_sched.cli import pages
    from longbench_sched.cli.exports import open_exports, shows_curves
    from longbench_sched.cli.selection import select_side
    from longbench_sched.compare.gate import check as hold
    from longbench_sched.compare.point import RunPoint
    from longbench_sched.compare.policy import default_policy, read_policy
    from longbench_sched.errors import StoreError, UsageError
    from longbench_sched.report import VERDICT_FORMATS
    from longbench_sched.report.verdict import build_verdict
    from longbench_sched.slo import Slo
    from longbench_sched.store.baselines import known_text

    if noise_floor is not None and measure_noise is not None:
        raise UsageError("--noise-floor reads runs and --measure-noise makes them. Give one of the two.")
    rules = default_policy()
    if policy is not None:
        try:
            rules = read_policy(Path(policy).read_text("utf-8-sig"), policy)
        except (OSError, UnicodeDecodeError) as error:
            raise StoreError(f"--policy {policy}: cannot be read ({getattr(error, 'strerror', None) or error}).") from None
    folder, slo = Path(results), Slo.parse(goodput) if goodput else None
    with open_exports(export or [], VERDICT_FORMATS) as exports:
        curves = shows_curves(exports)
        try:
            base = select_side(baseline, folder, slo, with_curves=curves)
        except StoreError as error:
            raise StoreError(f"{error}\n  {known_text(folder)}") from None
        new = select_side(candidate, folder, slo, with_curves=curves)
        floor: tuple[RunPoint, ...] = ()
        if noise_floor is not None:
            floor = select_side(noise_floor, folder, slo).points
        elif measure_noise is not None:
            from longbench_sched.cli.noise import measure_noise as measure

            floor = measure(new, measure_noise, folder, header or (), slo)
        verdict = hold(base, new, rules, floor)
        pages.say_page(build_verdict(verdict), exports)
        return verdict.exit_code
