"""What holds for every test: no property is judged by the clock, and the same commit meets the same examples in CI."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ)
settings.load_profile("suite")
