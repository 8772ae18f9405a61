"""longbench-sched: which engine and which scheduler settings serve a long-context workload best, and how sure is that."""

__version__ = "0.1.0"
