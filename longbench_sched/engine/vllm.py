"""vLLM: one event an engine step, also without text; running usage in each event if asked; `[DONE]` ends every stream.

Several tokens share an event under speculation, with `--stream-interval`, and whenever the API server lags behind the engine,
so events are not counted as tokens where anything better came. In a chat the first event holds only the role.
"""

from __future__ import annotations

from longbench_sched.engine.openai import Fields, OpenAiDialect
from longbench_sched.engine.verdict import Rules
from longbench_sched.target import Api, CountMode

# With a reasoning or tool parser, empty chat events are dropped by the server, so those that come hold tokens there too.
_RULES = Rules(empty_text_is_token=True)
_FIELDS = Fields()


def make(api: Api, count: CountMode) -> OpenAiDialect:
    """The dialect of vLLM for one API."""
    return OpenAiDialect("vllm", api, count, _RULES, _FIELDS)
