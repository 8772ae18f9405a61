"""Runs against runs. In a notebook it is also the function: `lb.compare(a, b)`."""

from __future__ import annotations

from longbench_sched.callable_package import let_be_called

let_be_called(__name__)
