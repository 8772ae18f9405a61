"""What a prompt consists of, by name instead of by value.

A token list is a tuple of pieces `(stream, start, n)`: n tokens of a stream from position `start` on. Two sequences share a
prefix exactly as far as their pieces name the same tokens, so a cache can tell what it holds without ever seeing a token.
Streams are numbers: every request has one for what is its own in the prompt and one for its output, every group of requests
with a common beginning has one, and a server that sees real tokens gives them names by what it has seen before.
"""

from __future__ import annotations

Piece = tuple[int, int, int]  # stream, position of the first token in it, tokens
Content = tuple[Piece, ...]


def prompt_stream(request_id: int) -> int:
    """The stream of what is a request's own in its prompt."""
    return 2 * request_id


def output_stream(request_id: int) -> int:
    """The stream of a request's output."""
    return 2 * request_id + 1


def group_stream(group: int) -> int:
    """The stream of a prefix that the requests of a group (from 0) have in common."""
    return -(group + 1)


def joined(content: Content, piece: Piece) -> Content:
    """The content with a piece behind it; a piece that goes on where the last one ended becomes part of it."""
    stream, start, n = piece
    if n <= 0:
        return content
    if content:
        last_stream, last_start, last_n = content[-1]
        if last_stream == stream and last_start + last_n == start:
            return (*content[:-1], (stream, last_start, last_n + n))
    return (*content, piece)


def first(content: Content, n: int) -> Content:
    """The first `n` tokens."""
    kept: list[Piece] = []
    for stream, start, length in content:
        if n <= 0:
            break
        kept.append((stream, start, min(length, n)))
        n -= length
    return tuple(kept)


def after(content: Content, n: int) -> Content:
    """All but the first `n` tokens."""
    kept: list[Piece] = []
    for stream, start, length in content:
        if n < length:
            kept.append((stream, start + n, length - n))
            n = 0
        else:
            n -= length
    return tuple(kept)


def length_of(content: Content) -> int:
    """Tokens."""
    return sum(n for _, _, n in content)


def common(one: Content, other: Content) -> int:
    """Tokens that both begin with."""
    n = 0
    for (stream, start, length), (other_stream, other_start, other_length) in zip(one, other, strict=False):
        if stream != other_stream or start != other_start:
            break
        n += min(length, other_length)
        if length != other_length:
            # Canonical pieces (`joined`): the shorter one is followed by another stream, or by nothing.
            break
    return n


def prompt_content(request_id: int, isl: int, *, group: int | None = None, prefix_tokens: int = 0) -> Content:
    """A prompt whose first `prefix_tokens` are its group's, and the rest its own."""
    shared: Content = ()
    if group is not None:
        shared = joined((), (group_stream(group), 0, min(prefix_tokens, isl)))
    return joined(shared, (prompt_stream(request_id), 0, isl - length_of(shared)))
