"""A plan, sent on time. In a notebook it is also the function that reads stored runs: `lb.load("results/...")`."""

from __future__ import annotations

from longbench_sched.callable_package import let_be_called

let_be_called(__name__)
