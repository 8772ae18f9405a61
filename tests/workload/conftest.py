"""Two tiny tokenizers, trained on the spot: a byte-level BPE that adds a BOS, and one in SentencePiece's manner."""

from pathlib import Path

import pytest

from longbench_sched.workload.tokens import LocalTokenizer


def _train(path: Path, *, metaspace: bool) -> Path:
    from pydoc_data import topics

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    inner = Tokenizer(models.BPE(byte_fallback=metaspace))
    if metaspace:
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        inner.decoder = decoders.Metaspace()
    else:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    alphabet = [] if metaspace else sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<s>", *(f"<0x{i:02X}>" for i in range(256))] if metaspace else ["<s>"]
    trainer = trainers.BpeTrainer(vocab_size=1500, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator(list(topics.topics.values())[:40], trainer)
    if not metaspace:
        inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    inner.enable_truncation(100)  # as files left over from training have it; counts must not be affected
    path.mkdir()
    inner.save(str(path / "tokenizer.json"))
    return path


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _train(tmp_path_factory.mktemp("models") / "tiny-bpe", metaspace=False)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> LocalTokenizer:
    return LocalTokenizer(tokenizer_folder)


@pytest.fixture(scope="session")
def metaspace_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LocalTokenizer:
    return LocalTokenizer(_train(tmp_path_factory.mktemp("models") / "tiny-sp", metaspace=True))
