"""TensorRT-LLM's trtllm-serve. From its source; not yet run against a live server.

It refuses any field that it does not know, so nothing is sent that it does not list. A failure in the middle of a stream
shows as a body that just ends, without an error event and without `[DONE]`: the missing terminator is the only sign. The role
event of a chat has a space before its line end.
"""

from __future__ import annotations

from longbench_sched.engine.openai import Fields, OpenAiDialect
from longbench_sched.engine.verdict import Rules
from longbench_sched.target import Api, CountMode

_RULES = Rules()
_FIELDS = Fields(priority=False)


def make(api: Api, count: CountMode) -> OpenAiDialect:
    """The dialect of trtllm-serve for one API."""
    return OpenAiDialect("trtllm", api, count, _RULES, _FIELDS)
