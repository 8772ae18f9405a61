"""Real prompts -> names of tokens (`content.py`): what an engine over HTTP has seen before, it knows again.

The texts seen are kept in order, as bytes; the one that shares the longest beginning with a new prompt then stands beside the
place where the new one belongs, and is found by bisection. Two names agree exactly as far as the tokens do.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque

from longbench_sched.sim.content import Content, first, joined, output_stream, prompt_stream

_WIDTH = array("I").itemsize


class Names:
    """The token lists seen, at most `max_tokens` of them all together; the oldest are forgotten first.

    What is forgotten is only the name: a prompt that comes again after that shares nothing, as if it had been evicted.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._texts: list[bytes] = []  # sorted
        self._contents: dict[bytes, Content] = {}
        self._order: deque[bytes] = deque()
        self._n_tokens = 0

    def name(self, request_id: int, prompt: array[int]) -> Content:
        """The names of a prompt's tokens; what no text seen before begins with is the request's own."""
        text = prompt.tobytes()
        known = self._contents.get(text)
        if known is not None:
            return known
        shared, n = self._longest(text)
        content = joined(first(shared, n), (prompt_stream(request_id), n, len(prompt) - n))
        self._keep(text, content)
        return content

    def extend(self, request_id: int, prompt: array[int], content: Content, output: list[int]) -> None:
        """An answer has ended: a later turn of its conversation begins with prompt and answer."""
        text = prompt.tobytes() + array("I", output).tobytes()
        if text not in self._contents:
            self._keep(text, joined(content, (output_stream(request_id), 0, len(output))))

    def _longest(self, text: bytes) -> tuple[Content, int]:
        """The content of the text that shares the longest beginning with this one, and how many tokens that is."""
        at = bisect_left(self._texts, text)
        best: tuple[Content, int] = ((), 0)
        for place in (at - 1, at):
            if 0 <= place < len(self._texts):
                other = self._texts[place]
                n = common_bytes(text, other) // _WIDTH
                if n > best[1]:
                    best = (self._contents[other], n)
        return best

    def _keep(self, text: bytes, content: Content) -> None:
        self._contents[text] = content
        insort(self._texts, text)
        self._order.append(text)
        self._n_tokens += len(text) // _WIDTH
        while self._n_tokens > self._max_tokens and len(self._order) > 1:
            oldest = self._order.popleft()
            del self._contents[oldest]
            del self._texts[bisect_left(self._texts, oldest)]
            self._n_tokens -= len(oldest) // _WIDTH


def common_bytes(one: bytes, other: bytes) -> int:
    """How many bytes two texts begin with alike, by halving: whole slices are compared at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low
