from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest

from longbench_sched.errors import PromptError
from longbench_sched.plan import Plan, Request
from longbench_sched.workload.build import build_plan
from longbench_sched.workload.overrides import Overrides, apply
from longbench_sched.workload.prompt import PromptForm, PromptMaker
from longbench_sched.workload.spec import read_workload
from longbench_sched.workload.tokens import LocalTokenizer, open_tokenizer


def plan(maker: PromptMaker, seed: int = 0, repeat: int = 0, text: str = "", **flags: object) -> Plan:
    base = "isl = 200\nosl = 8\nconcurrency = 4\nrequests = 12\nwarmups = 3\n" + text
    workload = apply(read_workload(base, "mine", "mine.toml", Path()), Overrides(**flags))  # type: ignore[arg-type]
    return build_plan(workload, seed, maker, repeat=repeat)


def everything(plan: Plan) -> list[Request]:
    return [*plan.requests, *plan.warmups]


def ids_of(request: Request) -> array:  # type: ignore[type-arg]
    assert isinstance(request.prompt, array)
    return request.prompt


def text_of(request: Request) -> str:
    assert isinstance(request.prompt, str)
    return request.prompt


def first_blocks(requests: Sequence[Request]) -> set[bytes]:
    return {ids_of(request)[:16].tobytes() for request in requests}


def test_a11_two_cells_of_one_seed_share_no_first_block() -> None:
    """A-11: concurrency 4 and 8, same seed, 16 prompts of 16,384 tokens each: 32 first blocks."""
    cells = [plan(PromptMaker(), isl=16384, num_prompts=16, concurrency=concurrency, num_warmups=0) for concurrency in (4, 8)]
    assert all(len(ids_of(request)) == 16384 for cell in cells for request in cell.requests)
    assert len(first_blocks([request for cell in cells for request in cell.requests])) == 32


def test_a11_prompts_depend_on_seed_repeat_and_load_and_on_nothing_else() -> None:
    plans = [
        plan(PromptMaker()),
        plan(PromptMaker(), seed=1),
        plan(PromptMaker(), repeat=1),
        plan(PromptMaker(), concurrency=5),
        plan(PromptMaker(), request_rate=5),
        plan(PromptMaker(), osl=9),
    ]
    assert len(first_blocks([request for p in plans for request in everything(p)])) == 6 * 15
    again = plan(PromptMaker(), text='title = "Another name"\n[slo]\nttft = 5\n')
    assert [r.prompt for r in again.requests] == [r.prompt for r in plans[0].requests]
    assert [r.prompt for r in plan(PromptMaker(), num_warmups=0).requests] == [r.prompt for r in plans[0].requests]


def test_a11_in_one_plan_of_text_no_two_prompts_begin_alike(tokenizer: LocalTokenizer) -> None:
    made = everything(plan(PromptMaker("text", tokenizer), num_prompts=300, isl=40))
    assert len({tuple(tokenizer.encode(text_of(r), True)[:16]) for r in made}) == 303


def test_random_ids_keep_to_the_range() -> None:
    made = plan(PromptMaker(), text="[prompts]\nmin_id = 50\nmax_id = 99\n", isl=5000)
    assert {i for r in made.requests for i in ids_of(r)} == set(range(50, 100))
    assert made.prompt_source == "synthetic ids"
    assert made.extra["isl_source"] == "ids"


def test_random_ids_keep_to_a_small_vocabulary(tokenizer: LocalTokenizer) -> None:
    made = plan(PromptMaker("ids", tokenizer), prompts="ids", isl=5000)
    ids = {i for r in made.requests for i in ids_of(r)}
    assert min(ids) >= 1000
    assert max(ids) < (tokenizer.vocab_size or 0)


def test_with_a_tokenizer_ids_are_natural_text(tokenizer: LocalTokenizer) -> None:
    made = plan(PromptMaker("ids", tokenizer))
    assert made.prompt_source == "synthetic prose"
    assert all(len(ids_of(r)) == 200 for r in everything(made))
    text = tokenizer.decode(ids_of(made.requests[0]))
    assert " the " in text
    assert len(first_blocks(everything(made))) == 15


def test_a13_all_of_200_prompts_encode_to_8192_tokens(tokenizer: LocalTokenizer) -> None:
    """A-13: target 8192, 200 prompts, a BPE tokenizer: 200 of 200, the special token that the server adds counted in."""
    made = plan(PromptMaker("text", tokenizer), isl=8192, num_prompts=200, num_warmups=0)
    encoded = tokenizer._inner.encode_batch([text_of(r) for r in made.requests])  # as `encode`, on all cores
    assert [len(e.ids) for e in encoded] == [8192] * 200
    assert {r.isl for r in made.requests} == {8192}
    assert made.extra["isl_source"] == "tokenizer"


@pytest.mark.parametrize("isl", [2, 3, 5, 17, 100, 1000])
@pytest.mark.parametrize("form", ["text", "chat"])
@pytest.mark.parametrize("kind", ["byte level", "metaspace"])
@pytest.mark.parametrize("source", ["prose", "stdlib"])
def test_a13_text_is_exact_at_any_length(
    isl: int, form: PromptForm, kind: str, source: str, tokenizer: LocalTokenizer, metaspace_tokenizer: LocalTokenizer
) -> None:
    chosen = tokenizer if kind == "byte level" else metaspace_tokenizer
    made = plan(PromptMaker(form, chosen), isl=isl, num_prompts=5, num_warmups=1, prompts=source)
    assert [len(chosen.encode(text_of(r), form == "text")) for r in everything(made)] == [isl] * 6


def test_a16_in_chat_the_content_alone_has_the_length(tokenizer: LocalTokenizer) -> None:
    """A-16: the client's count is of the content; the template's overhead is the server's, and is not hidden in it."""
    made = plan(PromptMaker("chat", tokenizer), isl=1024)
    assert all(len(tokenizer.encode(text_of(r), False)) == r.isl == 1024 for r in everything(made))


@pytest.mark.parametrize("source", ["prose", "stdlib"])
def test_text_begins_and_ends_with_a_visible_character(source: str, tokenizer: LocalTokenizer) -> None:
    """Chat templates trim the content, which would change its length."""
    made = plan(PromptMaker("chat", tokenizer), prompts=source, num_prompts=40)
    assert all(text_of(r) == text_of(r).strip() for r in everything(made))


def test_c08_a_short_text_is_gone_round_again_from_different_places(tokenizer: LocalTokenizer, tmp_path: Path) -> None:
    """C-08: a text of about 3,000 tokens, target 30,000, 64 prompts: each exact, no equal first block."""
    book = tmp_path / "book.txt"
    book.write_text(" ".join(f"word{i} means {i * 7919 % 1013}." for i in range(380)), "utf-8")
    assert 2500 < len(tokenizer.encode(book.read_text("utf-8"), False)) < 6000
    made = plan(PromptMaker("ids", tokenizer), isl=30000, num_prompts=64, prompts=str(book))
    assert all(len(ids_of(r)) == 30000 for r in made.requests)
    assert len(first_blocks(made.requests)) == 64
    assert made.prompt_source == "book.txt"
    as_text = plan(PromptMaker("text", tokenizer), isl=30000, num_prompts=4, num_warmups=0, prompts=str(book))
    assert [len(tokenizer.encode(text_of(r), True)) for r in as_text.requests] == [30000] * 4


def test_a12_warm_ups_are_never_cut_from_the_measured_text(tokenizer: LocalTokenizer, tmp_path: Path) -> None:
    """A-12: a data set of 10 rows, 3 warm-ups: none is a row or a part of one; all are as long as the measured prompts."""
    rows = [f"Row {i} tells of the {i * 31}th ship that came to the port of entry in {1800 + i}." for i in range(10)]
    book = tmp_path / "rows.txt"
    book.write_text("\n".join(rows), "utf-8")
    made = plan(PromptMaker("text", tokenizer), isl=60, num_prompts=10, prompts=str(book))
    assert len(made.warmups) == 3
    assert all(w.phase == "warmup" and w.lane == -1 and w.isl == 60 for w in made.warmups)
    assert not any(row[:20] in text_of(w) for w in made.warmups for row in rows)
    assert any(row[:20] in text_of(r) for r in made.requests for row in rows)


def test_a12_warm_ups_of_ids_share_no_first_block_with_measured_prompts() -> None:
    made = plan(PromptMaker())
    assert not first_blocks(made.requests) & first_blocks(made.warmups)


@pytest.mark.parametrize("form", ["ids", "text"])
def test_a_shared_prefix_is_shared_when_asked_for_and_no_further(form: PromptForm, tokenizer: LocalTokenizer) -> None:
    made = plan(PromptMaker(form, tokenizer), text="shared_prefix = 100\n")
    ids = [tokenizer.encode(text_of(r), True)[1:] if form == "text" else list(ids_of(r)) for r in made.requests]
    assert made.shared_prefix_tokens == 100
    assert len({tuple(i[:100]) for i in ids}) == 1
    assert len({tuple(i[101:117]) for i in ids}) == 12
    assert len(ids[0]) == (199 if form == "text" else 200)


def test_without_a_tokenizer_the_length_of_text_is_an_estimate_and_says_so() -> None:
    made = plan(PromptMaker("chat"), isl=1000)
    assert made.extra["isl_source"] == "estimate"
    assert made.notes == ("without a tokenizer the length of a text is only estimated; the server's counts are used",)
    assert all(5400 < len(text_of(r)) <= 5500 for r in everything(made))
    assert len({text_of(r)[:64] for r in everything(made)}) == 15


def test_d07_a_broken_tokenizer_is_named_in_the_notes_and_the_plan_is_made(tmp_path: Path) -> None:
    """D-07: the run goes on with the server's counts; one note names the folder and the cause."""
    (tmp_path / "tokenizer.json").write_text("{}")
    tokenizer, reason = open_tokenizer(tmp_path)
    made = plan(PromptMaker("ids", tokenizer, reason))
    assert len(made.notes) == 1
    assert str(tmp_path) in made.notes[0]
    assert "cannot be loaded" in made.notes[0]
    assert made.notes[0].endswith("Token counts are the server's.")
    assert all(len(ids_of(r)) == 200 for r in made.requests)


def test_natural_text_without_a_tokenizer_is_sent_as_text_of_estimated_length() -> None:
    made = plan(PromptMaker("ids"), prompts="stdlib")
    assert (made.prompt_source, made.extra["isl_source"]) == ("stdlib", "estimate")
    assert all(text_of(r) for r in made.requests)


def test_ids_that_an_api_does_not_take_become_prose_and_the_plan_says_so(tokenizer: LocalTokenizer) -> None:
    made = plan(PromptMaker("chat", tokenizer), prompts="ids")
    assert made.prompt_source == "synthetic prose"
    assert made.notes == ("this API takes text, not token ids: the prompts are prose",)


def test_too_little_text_for_prompts_that_differ_is_an_error(tokenizer: LocalTokenizer, tmp_path: Path) -> None:
    book = tmp_path / "book.txt"
    book.write_text("the same again " * 500, "utf-8")
    with pytest.raises(PromptError, match=r"book\.txt is too short or too repetitive for \d+ prompts that begin differently"):
        plan(PromptMaker("ids", tokenizer), num_prompts=50, prompts=str(book))


def test_a_text_that_is_not_there_is_an_error() -> None:
    with pytest.raises(PromptError, match=r"prompts: nowhere\.txt does not exist"):
        plan(PromptMaker("chat"), prompts="nowhere.txt")


def test_a_length_without_room_for_text_is_an_error(tokenizer: LocalTokenizer) -> None:
    with pytest.raises(PromptError, match="1 tokens leave no room for text beside 1 special tokens"):
        plan(PromptMaker("text", tokenizer), isl=1)
