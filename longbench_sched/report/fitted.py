"""Fit -> Page: which parameters, what they became, and how far every number is from the measurement, before and after."""

from __future__ import annotations

from longbench_sched.experiment.calibrate import Fit, FittedParameter
from longbench_sched.quantity import significant
from longbench_sched.report.layout import NULL, Column, Line, Lines, Notice, Page, Table
from longbench_sched.report.untrusted import clean


def build_fit_page(fit: Fit, stored: str) -> Page:
    """The report on a calibration."""
    parameters = Table(
        "Parameters",
        (Column("", "left"), Column("before"), Column("fitted"), Column("+-"), Column("", "left", gives_way=1)),
        tuple(_parameter(one) for one in fit.parameters),
    )
    numbers = Table(
        "Against what was measured (simulated figures)",
        (Column("", "left"), Column("", "left"), Column("measured"), Column("before"), Column("fitted"), Column("deviation")),
        tuple(
            (
                clean(one.observation, 22),
                one.measure,
                significant(one.measured),
                significant(one.before),
                significant(one.after),
                f"{one.deviation:+.1%}",
            )
            for one in fit.residuals
        ),
    )
    return Page(
        title="Calibration of the simulated engine",
        is_simulated=True,
        head=(Line("observations", ", ".join(clean(one.name, 60) for one in fit.observations)),),
        blocks=(parameters, numbers, Lines((Line("Stored", stored),))),
        notices=tuple(_notices(fit)),
        files=(Line("Stored", stored),),
        summaries=(),
    )


def _parameter(one: FittedParameter) -> tuple[str, ...]:
    if one.value is None:
        return one.name, significant(one.before), NULL, NULL, "not identified: left as it was"
    error = NULL if one.standard_error is None else significant(one.standard_error, 2)
    return one.name, significant(one.before), significant(one.value), error, "at its bound" if one.is_at_bound else ""


def _notices(fit: Fit) -> list[Notice]:
    found = []
    if fit.n_spare <= 0:
        found.append(
            Notice(
                "FIT-EXACT",
                f"{len(fit.residuals)} numbers for {len(fit.residuals) - fit.n_spare} parameters.",
                "Such a fit meets its numbers whatever the model is worth.",
                "Keep a run out of the fit and predict it, or add runs.",
            )
        )
    bounds = [one.name for one in fit.parameters if one.is_at_bound]
    if bounds:
        found.append(
            Notice(
                "FIT-BOUND",
                f"{', '.join(bounds)} ended at the end of its range.",
                "Something else in the setting is wrong: GPU, model, flags, or whether the host works beside the GPU.",
                "Check --gpu, --model and the engine's flags; try --set is_host_overlapped=false for an engine that waits.",
            )
        )
    if fit.worst > 0.15:
        found.append(
            Notice(
                "FIT-POOR",
                f"a number is still {fit.worst:.0%} off.",
                "These parameters do not explain the measurement.",
                "TTFT near saturation is beyond any fit: calibrate on runs at low load.",
            )
        )
    return found
