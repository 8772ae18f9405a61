"""Calibrations by name or file, as flags give them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from longbench_sched.errors import UsageError
from longbench_sched.sim.calibration import CALIBRATIONS, Calibration, from_json


def read_calibration(text: str) -> Calibration:
    """A set that comes with the tool, or a file of `calibrate`. Raises UsageError."""
    if text in CALIBRATIONS:
        return CALIBRATIONS[text]
    path = Path(text)
    known = ", ".join(CALIBRATIONS)
    try:
        return from_json(json.loads(path.read_text("utf-8")), text)
    except FileNotFoundError:
        raise UsageError(f"--calibration {text}: no such file, and no set of that name. Known: {known}.") from None
    except OSError as error:
        raise UsageError(f"--calibration {text}: cannot be read ({error.strerror}).") from None
    except ValueError:
        raise UsageError(f"--calibration {text} is not JSON. Make one with `calibrate`.") from None


def with_settings(calibration: Calibration, words: Sequence[str]) -> Calibration:
    """The same with `name=value` applied. Raises UsageError."""
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"--set {word!r} is not NAME=VALUE. Write for example --set is_host_overlapped=false.")
        try:
            value = json.loads(text)
        except ValueError:
            raise UsageError(f"--set {word!r}: {text!r} is neither a number nor true or false.") from None
        rows = {name: {"value": value, "source": "set on the command line"}}
        checked = from_json({"format": "longbench-calibration/1", "parameters": rows}, "--set")
        calibration = calibration.with_values("set on the command line", **{name: checked.values()[name]})
    return calibration
