"""`--model`: a model by its name, or by the `config.json` of any other."""

from __future__ import annotations

import json
from pathlib import Path

from longbench_sched.errors import UsageError
from longbench_sched.sim.model_config import model_from_config
from longbench_sched.sim.models import Model, find_model


def read_model(text: str) -> Model:
    """The shape of a known model, or of the one whose `config.json` (or folder with one) this is. Raises UsageError."""
    path = Path(text)
    if path.suffix != ".json" and not path.is_dir():
        return find_model(text)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"--model {text}: {path} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--model {text}: {path} is not JSON.") from None
    if not isinstance(config, dict):
        raise UsageError(f"--model {text}: {path} is no model configuration.")
    name = config.get("_name_or_path") or path.resolve().parent.name
    return model_from_config(str(name), config)
