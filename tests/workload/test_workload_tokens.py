import socket
from pathlib import Path

import pytest

from longbench_sched.errors import PromptError
from longbench_sched.workload.tokens import LocalTokenizer, open_tokenizer, special_count


def test_d02_a_local_tokenizer_needs_no_network(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-02: with every socket forbidden, a folder and a file are read alike."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a local tokenizer opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    by_folder, by_file = LocalTokenizer(tokenizer_folder), LocalTokenizer(tokenizer_folder / "tokenizer.json")
    assert by_folder.encode("The harbour", False) == by_file.encode("The harbour", False)
    assert by_folder.name == by_file.name


def test_special_tokens_are_counted_as_the_server_adds_them(
    tokenizer: LocalTokenizer, metaspace_tokenizer: LocalTokenizer
) -> None:
    assert tokenizer.encode("abc", True) == [0, *tokenizer.encode("abc", False)]
    assert special_count(tokenizer) == 1
    assert special_count(metaspace_tokenizer) == 0


def test_ids_decode_to_the_text(tokenizer: LocalTokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("Grüße, мир!", False)) == "Grüße, мир!"


def test_truncation_left_in_the_file_is_switched_off(tokenizer: LocalTokenizer) -> None:
    assert len(tokenizer.encode("a b " * 500, False)) >= 1000


def test_the_name_is_the_folder_and_a_digest_never_a_path(tokenizer: LocalTokenizer) -> None:
    folder, digest = tokenizer.name.split()
    assert folder == "tiny-bpe"
    assert len(digest) == 8


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        pytest.param(None, "has no tokenizer.json", id="no file in the folder"),
        pytest.param("", "cannot be loaded", id="empty file"),
        pytest.param('{"model": {"type": "Unheard"}}', "cannot be loaded", id="unknown model"),
    ],
)
def test_d07_a_folder_that_fails_to_load_is_named_with_the_cause(tmp_path: Path, content: str | None, cause: str) -> None:
    """D-07: the reason can be shown, and the run goes on."""
    folder = tmp_path / "strange"
    folder.mkdir()
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    tokenizer, reason = open_tokenizer(folder)
    assert tokenizer is None
    assert reason is not None
    assert str(folder) in reason
    assert cause in reason
    assert "\n" not in reason


def test_a_path_to_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PromptError, match="is no file or folder"):
        LocalTokenizer(tmp_path / "nowhere")
