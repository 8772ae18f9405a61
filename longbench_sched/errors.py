"""Every failure a user can meet, with its exit code.

Only `cli/app.py` catches these. A message says what is wrong, where, and what to do, in one to three lines. A request that
fails during a run is not an error but a record (`record.Status`); an error here means that the command could not do its job.
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_INCONCLUSIVE = 3
EXIT_NOT_MEASURED = 4
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

EXIT_CODES: dict[int, str] = {
    EXIT_OK: "fine",
    EXIT_GATE_FAILED: "a gate failed",
    EXIT_USAGE: "wrong usage, or a file that cannot be read or written",
    EXIT_INCONCLUSIVE: "inconclusive, or runs that are not comparable",
    EXIT_NOT_MEASURED: "could not measure: unreachable, or too few requests succeeded",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C); what was measured is stored",
    EXIT_TERMINATED: "terminated (SIGTERM); what was measured is stored",
}


class LongbenchError(Exception):
    """A failure with a message meant for the person at the terminal."""

    exit_code: int = EXIT_USAGE


class UsageError(LongbenchError):
    """A flag or an argument that makes no sense."""


class WorkloadError(LongbenchError):
    """A workload file that cannot be read as one: names the file, the key and the remedy."""


class PromptError(LongbenchError):
    """Prompts of the wanted length cannot be made: no tokenizer, an unusable corpus, a length that cannot be reached."""


class StoreError(LongbenchError):
    """A run file or folder that cannot be read or written: missing, damaged, newer than this version, disk full."""


class TargetError(LongbenchError):
    """The engine cannot be measured: unreachable, another dialect, no such model, a context too short."""

    exit_code = EXIT_NOT_MEASURED


class ClientLimitError(LongbenchError):
    """The load asked for is beyond what the client's own machine can offer (open files, memory)."""

    exit_code = EXIT_NOT_MEASURED


class NotComparableError(LongbenchError):
    """Runs that would not be compared like with like."""

    exit_code = EXIT_INCONCLUSIVE
