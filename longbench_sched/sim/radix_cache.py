"""KV with a radix tree, as SGLang keeps it: prefixes are found token by token.

The tree holds what sequences have computed, once; an edge is a run of tokens by name (`content.py`). A running sequence locks
the path it stands on; what is not locked can be evicted, leaves first, those looked at longest ago first. A sequence's newest
tokens are its own until a chunk of its prompt, or it itself, has ended; they then go into the tree, and what somebody else
had put there in the meantime is freed. So sequences of one batch do not share what that batch computes. Every chunk is an edge
of its own, so nothing here walks a path from the root that is known to its end: a chunk costs the same wherever it lies.

Pages of more than one token are whole in the tree or not there. `free` counts what is unused and what can be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longbench_sched.sim.content import Content, Piece, after, common, first
from longbench_sched.sim.kv_blocks import KvBlocks

if TYPE_CHECKING:
    from longbench_sched.sim.step import Sequence, StepPlan


@dataclass(slots=True, eq=False)
class TreeNode:
    """Tokens after those of the parent."""

    content: Content
    n: int  # tokens
    parent: TreeNode | None
    children: dict[Content, TreeNode] = field(default_factory=dict)  # by their first page
    locks: int = 0
    looked_at: int = 0  # of a leaf; one with children was looked at whenever they were
    born: int = 0  # when it, or the node that it was cut from, was put below its parent


@dataclass(slots=True, eq=False)
class RadixCache(KvBlocks):
    """A pool of tokens (or pages) with a tree of what is in it."""

    splits_prompt: bool = True  # the output of a sequence can be evicted without its prompt (0.5.23)
    n_evictable: int = 0  # tokens
    root: TreeNode = field(default_factory=lambda: TreeNode((), 0, None, locks=1))
    _clock: int = 0
    _leaves: dict[TreeNode, None] = field(default_factory=dict, repr=False)  # that can be evicted

    def __post_init__(self) -> None:
        if self.free < 0:
            self.free = self.total

    @property
    def idle(self) -> int:
        """Pages that can be evicted."""
        return self.n_evictable // self.block_tokens

    @property
    def unused(self) -> int:
        """Pages that hold nothing."""
        return self.free - self.n_evictable // self.block_tokens

    @property
    def is_caching(self) -> bool:
        """Prefixes are found again."""
        return True

    # -- taking and releasing

    def take(self, n: int) -> None:
        """Take `n` pages; what is needed is evicted."""
        assert 0 <= n <= self.free, f"{n} pages taken, {self.free} free"
        if n > self.free - self.n_evictable // self.block_tokens:
            self.make_room(n)
        if self._undo is not None:
            self._put(self, "free", self.free)
        self.free -= n

    def make_room(self, n: int) -> None:
        """Evict until `n` pages are unused, or nothing can be evicted any more."""
        while self.unused < n and self._leaves:
            leaf = min(self._leaves, key=lambda node: node.looked_at)
            parent = leaf.parent
            assert parent is not None
            self._put(self, "n_evictable", self.n_evictable - leaf.n)
            self._set_child(parent, self._edge(leaf.content), None)
            self._set_leaf(leaf, False)
            self._put(parent, "looked_at", max(parent.looked_at, leaf.looked_at))
            self._judge(parent)

    def look_up(self, sequence: Sequence, limit: int) -> int:
        """Find the longest prefix of a waiting sequence within `limit` tokens, and look at it; how long it is."""
        content = first(sequence.content_so_far(), limit - limit % self.block_tokens)
        n, node = self._walk(content, self.root)
        self._put(sequence, "node", node)
        self._put(sequence, "cached", n)
        return n

    def depth_first(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Sequences in the order of a walk down the tree, by the node at which the last lookup of each ended.

        At a fork the branch below which more of them ended comes first, then the older one; who ended at a node comes after
        those below it.
        """
        here: dict[TreeNode, list[Sequence]] = {}
        weight: dict[TreeNode, int] = {}
        branches: dict[TreeNode, list[TreeNode]] = {}
        for sequence in sequences:
            node = sequence.node
            assert node is not None
            here.setdefault(node, []).append(sequence)
            while node is not None:
                if node not in weight and node.parent is not None:
                    branches.setdefault(node.parent, []).append(node)
                weight[node] = weight.get(node, 0) + 1
                node = node.parent
        walked: list[Sequence] = []
        path: list[tuple[TreeNode, bool]] = [(self.root, False)]
        while path:
            node, is_back = path.pop()
            if is_back:
                walked += here.get(node, ())
                continue
            path.append((node, True))
            forks = sorted(branches.get(node, ()), key=lambda one: (weight[one], -one.born))
            path += [(one, False) for one in forks]
        return walked

    def found_tokens(self, sequence: Sequence) -> int:
        """Tokens found; the last token is always computed."""
        return self.look_up(sequence, sequence.length - 1)

    def adopt(self, sequence: Sequence, cached_tokens: int) -> None:
        """Begin a sequence at the end of the prefix that was found for it last."""
        node = sequence.node if cached_tokens else self.root
        assert node is not None
        self._put(sequence, "node", node)
        self._put(sequence, "kept", cached_tokens)
        self._put(sequence, "blocks", cached_tokens // self.block_tokens)
        self._lock(node, self.root)

    def progress(self, sequence: Sequence) -> None:
        """Put what has been computed of a prompt into the tree."""
        self._insert(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take all pages of a sequence back; if it ended by itself, the tree keeps what it can."""
        if sequence.finish is not None and sequence.computed:
            self._insert(sequence)
        node = sequence.node
        assert node is not None
        self._put(self, "free", self.free + sequence.blocks - sequence.kept // self.block_tokens)
        self._unlock(node)
        self._put(sequence, "node", None)
        self._put(sequence, "kept", 0)
        self._put(sequence, "blocks", 0)

    def forget_idle(self) -> None:
        """Find nothing any more that nobody holds (`/flush_cache`)."""
        self.make_room(self.free)

    def locked_tokens(self) -> int:
        """Tokens of the tree that somebody holds (for checks)."""
        return self._tokens(self.root) - self.n_evictable

    def _tokens(self, node: TreeNode) -> int:
        return node.n + sum(self._tokens(child) for child in node.children.values())

    def follow(self, plan: StepPlan | None) -> None:
        """Nothing is found before it is computed."""

    # -- the tree

    def _insert(self, sequence: Sequence) -> None:
        """Move a sequence's own tokens into the tree, and lock the path to its end as well."""
        size = self.block_tokens
        known = min(sequence.computed, sequence.length - 1)  # accepted drafts may reach beyond the end of the output
        length = known - known % size
        content = sequence.content_so_far()
        old, kept = sequence.node, sequence.kept
        assert old is not None
        assert kept <= length, "the path of a running sequence only grows"
        new = first(after(content, kept), length - kept)
        n, node = self._walk(new, old)
        if n < length - kept:
            rest = after(new, n)
            leaf = TreeNode(rest, length - kept - n, node, looked_at=self._clock, born=self._clock)
            self._set_child(node, self._edge(rest), leaf)
            self._put(self, "n_evictable", self.n_evictable + leaf.n)
            self._put(self, "free", self.free + leaf.n // size)
            self._judge(node)
            self._judge(leaf)
        prompt = sequence.isl - sequence.isl % size
        if self.splits_prompt and 0 < prompt < length:
            at, above = kept, old
            while at > prompt:
                assert above.parent is not None
                at, above = at - above.n, above.parent
            self._walk(first(after(content, at), prompt - at), above)
        if n:  # somebody had put it there before
            self._put(self, "free", self.free + n // size)
        _, end = self._walk(new, old)
        self._lock(end, old)
        self._put(sequence, "node", end)
        self._put(sequence, "kept", length)

    def _walk(self, content: Content, node: TreeNode) -> tuple[int, TreeNode]:
        """Follow a content from a node on as far as it is known, looking at all on the way; an edge that it leaves is split.

        How many tokens of it are known, and the node at which they end.
        """
        self._put(self, "_clock", self._clock + 1)
        now = self._clock
        self._put(node, "looked_at", now)
        n = 0
        while content:
            child = node.children.get(self._edge(content))
            if child is None:
                break
            self._put(child, "looked_at", now)
            shared = common(child.content, content)
            shared -= shared % self.block_tokens
            if shared < child.n:
                node = self._split(child, shared)
                n += shared
                break
            node = child
            n += shared
            content = after(content, shared)
        return n, node

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut an edge; the upper part, which is new."""
        parent = node.parent
        assert parent is not None
        upper = TreeNode(first(node.content, at), at, parent, locks=node.locks, looked_at=self._clock, born=node.born)
        lower = after(node.content, at)
        upper.children[self._edge(lower)] = node
        self._set_child(parent, self._edge(node.content), upper)
        self._put(node, "content", lower)
        self._put(node, "n", node.n - at)
        self._put(node, "parent", upper)
        return upper

    def _edge(self, content: Content) -> Content:
        """What tells the children of a node apart: their first page."""
        if self.block_tokens == 1:
            stream, start, _ = content[0]
            piece: Piece = (stream, start, 1)
            return (piece,)
        return first(content, self.block_tokens)

    def _lock(self, node: TreeNode, above: TreeNode) -> None:
        """Lock the path from a node up to one above it, which is locked already."""
        while node is not above:
            assert node.parent is not None
            if node.locks == 0:
                self._put(self, "n_evictable", self.n_evictable - node.n)
                self._put(self, "free", self.free - node.n // self.block_tokens)
            self._put(node, "locks", node.locks + 1)
            self._judge(node)
            node = node.parent

    def _unlock(self, node: TreeNode) -> None:
        while node.parent is not None:
            if node.locks == 1:
                self._put(self, "n_evictable", self.n_evictable + node.n)
                self._put(self, "free", self.free + node.n // self.block_tokens)
            self._put(node, "locks", node.locks - 1)
            self._judge(node)
            node = node.parent

    def _judge(self, node: TreeNode) -> None:
        """Whether a node is a leaf that can be evicted."""
        self._set_leaf(node, node.locks == 0 and not node.children)

    def _set_leaf(self, node: TreeNode, is_leaf: bool) -> None:
        leaves = self._leaves
        if is_leaf == (node in leaves):
            return
        if self._undo is not None:
            self._undo.append((lambda: leaves.pop(node, None)) if is_leaf else (lambda: leaves.update({node: None})))
        if is_leaf:
            leaves[node] = None
        else:
            del leaves[node]

    def _set_child(self, parent: TreeNode, edge: Content, child: TreeNode | None) -> None:
        children = parent.children
        if self._undo is not None:
            old = children.get(edge)
            if old is None:
                self._undo.append(lambda: _drop(children, edge))
            else:
                self._undo.append(lambda: children.update({edge: old}))
        if child is None:
            del children[edge]
        else:
            children[edge] = child


def _drop(children: dict[Content, TreeNode], edge: Content) -> None:
    children.pop(edge, None)
