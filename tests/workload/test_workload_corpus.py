from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.errors import PromptError
from longbench_sched.workload.corpus import PIECE_CHARS, files_text, prose, standard_library
from longbench_sched.workload.roundtext import RoundText


def test_prose_says_nothing_twice() -> None:
    """No run of 12 words comes twice in 400,000 characters."""
    words = "".join(islice(prose(0, "test"), 100)).split()
    runs = [" ".join(words[i : i + 12]) for i in range(len(words) - 12)]
    assert len(words) > 50_000
    assert len(set(runs)) == len(runs)


def test_prose_reads_like_sentences() -> None:
    text = next(prose(0, "test"))
    paragraphs = text.strip().split("\n\n")
    assert len(paragraphs) > 5
    assert all(p[0].isupper() and p.endswith(".") for p in paragraphs)
    assert 4 < sum(map(len, text.split())) / len(text.split()) < 8  # letters a word, as in English prose


def test_prose_depends_on_seed_and_purpose_alone() -> None:
    assert next(prose(0, "a")) == next(prose(0, "a"))
    assert len({next(prose(0, "a")), next(prose(1, "a")), next(prose(0, "b"))}) == 3


def test_the_standard_library_is_code() -> None:
    text = "".join(islice(standard_library(0, "test"), 50))
    assert text.count("def ") > 20
    assert text != "".join(islice(standard_library(1, "test"), 50))


def test_a_file_comes_whole_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    text = "".join(f"line {i} of the book\n" for i in range(2000))
    path.write_text(text, "utf-8")
    pieces = list(files_text(path, 0))
    assert "".join(pieces) == text
    assert all(piece.endswith("\n") and len(piece) <= PIECE_CHARS for piece in pieces)


def test_a_folder_gives_its_text_files_and_skips_the_rest(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "sub" / "b.md").write_text("beta")
    (tmp_path / "c.bin").write_bytes(b"\0\1\2")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe\xfd")
    (tmp_path / ".git" / "e.txt").write_text("hidden")
    orders = {tuple(files_text(tmp_path, seed)) for seed in range(20)}
    assert orders == {("alpha\n", "beta\n"), ("beta\n", "alpha\n")}


@pytest.mark.parametrize("content", [b"\xff\xfe\xfd", b"a\0b"], ids=["other coding", "binary"])
def test_a_file_that_is_no_text_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "book.txt"
    path.write_bytes(content)
    with pytest.raises(PromptError, match="cannot be read as UTF-8 text"):
        next(files_text(path, 0))


def test_an_entry_that_the_system_will_not_even_look_at_is_skipped(tmp_path: Path) -> None:
    """A link to a name that is too long: pathlib's is_file raises before Python 3.14."""
    (tmp_path / "text.txt").write_text("words and words\n" * 20)
    (tmp_path / "link").symlink_to("x" * 300)
    assert "words and words" in "".join(islice(files_text(tmp_path, 0), 1))


def test_a_folder_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="holds no UTF-8 text files"):
        next(files_text(tmp_path, 0))


@given(st.text(alphabet="ab \n語", min_size=1, max_size=60).filter(str.strip), st.integers(0, 200), st.integers(0, 200))
def test_a_round_text_goes_on_for_ever(text: str, start: int, length: int) -> None:
    endless = text * 500
    assert RoundText(iter([text]), 1000).between(start, start + length) == endless[start : start + length]


@given(st.text(alphabet="ab \n語", min_size=1, max_size=60).filter(str.strip), st.integers(0, 200))
def test_a_text_may_be_cut_after_visible_characters_only(text: str, at: int) -> None:
    rounds = RoundText(iter([text]), 1000)
    after, before = rounds.end_after(at), rounds.end_at_or_before(at)
    assert before <= at < after
    assert rounds.end_at_or_before(after) == after
    assert rounds.end_after(after - 1) == after
    assert not rounds.between(after - 1, after).isspace()
    assert not rounds.between(rounds.word_start(at), rounds.word_start(at) + 1).isspace()


@given(st.text(alphabet="ab \n", min_size=1, max_size=60).filter(str.strip), st.integers(0, 100), st.integers(0, 300))
def test_pieces_make_up_the_stretch(text: str, start: int, length: int) -> None:
    rounds = RoundText(iter([text]), 1000)
    pieces = list(rounds.pieces_between(start, start + length))
    assert "".join(rounds.between(*piece) for piece in pieces) == rounds.between(start, start + length)


def test_an_empty_text_is_refused() -> None:
    with pytest.raises(PromptError, match="the text is empty"):
        RoundText(iter([" \n"]), 1000)
