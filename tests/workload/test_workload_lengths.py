import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longbench_sched.errors import UsageError
from longbench_sched.workload import exact
from longbench_sched.workload.lengths import (
    Fixed,
    Lengths,
    Listed,
    LogNormal,
    Normal,
    Uniform,
    mean_of,
    parse_lengths,
    read_lengths,
)


@pytest.mark.parametrize(
    ("value", "lengths"),
    [
        pytest.param(30000, Fixed(30000), id="number"),
        pytest.param("128Ki", Fixed(131072), id="Ki is 1024"),
        pytest.param("30k", Fixed(30000), id="k is 1000"),
        pytest.param("512..1024", Uniform(512, 1024), id="range"),
        pytest.param({"min": 512, "max": "1Ki"}, Uniform(512, 1024), id="min and max"),
        pytest.param({"min": 6554, "max": 8192, "nominal": 8192}, Uniform(6554, 8192, 8192), id="range known by its end"),
        pytest.param({"mean": 1000, "sd": 200, "min": 16, "max": 2000}, Normal(1000.0, 200.0, 16, 2000), id="mean and sd"),
        pytest.param({"mean": 1000, "sd": 100}, Normal(1000.0, 100.0, 1, 1800), id="normal without clips ends at 8 sd"),
        pytest.param(
            {"distribution": "lognormal", "mean": 1000, "sd": 800, "max": 8000},
            LogNormal(1000.0, 800.0, 1, 8000),
            id="lognormal",
        ),
        pytest.param(["4Ki", "8Ki"], Listed((4096, 8192)), id="list"),
        pytest.param("4Ki,8Ki", Listed((4096, 8192)), id="list as text"),
        pytest.param({"values": [1, 2], "order": "sample"}, Listed((1, 2), "sample"), id="sampled list"),
    ],
)
def test_lengths_are_read(value: object, lengths: Lengths) -> None:
    assert read_lengths(value, "isl") == lengths


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(0, "isl: 0 is too small. Give 1 or more.", id="zero"),
        pytest.param(-5, "isl: -5 is too small", id="negative"),
        pytest.param(True, "isl: True is not a whole number", id="true is no number"),
        pytest.param(1.5, "isl: 1.5 is not a whole number", id="fraction"),
        pytest.param("many", "isl: 'many' is not a whole number", id="word"),
        pytest.param(10**9, "isl: 1000000000 tokens are more than", id="slip of the pen"),
        pytest.param({"min": 9, "max": 3}, "isl: min 9 is above max 3. Swap them.", id="ends swapped"),
        pytest.param({"min": 9}, "isl: a range needs min and max", id="half a range"),
        pytest.param({"mean": 9}, "isl: normal lengths need mean and sd", id="no spread"),
        pytest.param({"mean": 9, "sd": 1, "min": 10}, "isl: the mean 9 lies outside min..max", id="clip beyond the mean"),
        pytest.param({"mean": 9, "sd": float("nan")}, "isl.sd: nan is not a finite number", id="nan"),
        pytest.param({"min": 1, "max": 2, "ratio": 0.8}, "isl.ratio: unknown key", id="A-17: no ratio"),
        pytest.param(
            {"distribution": "zipf"}, "isl.distribution: 'zipf' is not one of uniform, normal, lognormal, list", id="kind"
        ),
        pytest.param({"mn": 1, "max": 2}, "Did you mean", id="misspelt"),
        pytest.param([], "isl: the list of lengths is empty", id="empty list"),
        pytest.param([1, "x"], "isl: 'x' is not a whole number", id="word in a list"),
        pytest.param({"values": 3}, "isl.values: 3 is not a list", id="values is no list"),
        pytest.param(None, "isl: None is not a whole number", id="nothing"),
    ],
)
def test_bad_lengths_are_refused_with_key_and_remedy(value: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_lengths(value, "isl")
    assert message in str(caught.value)


def test_a_flag_says_what_it_takes() -> None:
    assert parse_lengths("--isl", "4Ki,8Ki") == Listed((4096, 8192))
    with pytest.raises(UsageError, match=r"--isl: 'lots' .* --isl takes 30000, 128Ki, 512\.\.1024 or 4Ki,8Ki"):
        parse_lengths("--isl", "lots")


def test_a17_a_range_of_512_to_1024_has_its_middle_as_mean() -> None:
    """A-17: 1000 prompts, seed 1: all within the range, mean 768 +- 10."""
    drawn = Uniform(512, 1024).draw(exact.rng(1, "isl"), 1000)
    assert min(drawn) >= 512
    assert max(drawn) <= 1024
    assert abs(mean_of(drawn) - 768) < 10
    assert len(set(drawn)) > 300  # a spread, not two or three values


def test_normal_lengths_have_the_mean_and_sd_asked_for() -> None:
    drawn = Normal(1000, 200, 1, 5000).draw(exact.rng(0, "isl"), 2000)
    mean = mean_of(drawn)
    assert abs(mean - 1000) < 2
    assert abs(math.sqrt(math.fsum((x - mean) ** 2 for x in drawn) / len(drawn)) / 200 - 1) < 0.02


def test_lognormal_mean_and_sd_are_those_of_the_lengths_themselves() -> None:
    drawn = LogNormal(1000, 800, 1, 1 << 24).draw(exact.rng(0, "isl"), 5000)
    mean = mean_of(drawn)
    assert abs(mean / 1000 - 1) < 0.01
    assert abs(math.sqrt(math.fsum((x - mean) ** 2 for x in drawn) / len(drawn)) / 800 - 1) < 0.1


def test_a_clip_sets_what_is_outside_to_the_nearer_end() -> None:
    drawn = Normal(100, 50, 90, 110).draw(exact.rng(0, "isl"), 1000)
    # P(x < 90) = P(z < -0.2) = 0.4207, and the same above 110
    assert abs(drawn.count(90) / 1000 - 0.42) < 0.02
    assert abs(drawn.count(110) / 1000 - 0.42) < 0.02


def test_a_list_is_taken_in_turn() -> None:
    assert Listed((4, 8, 16)).draw(exact.rng(0, "isl"), 7) == [4, 8, 16, 4, 8, 16, 4]


def test_a_sampled_list_uses_each_value_alike() -> None:
    drawn = Listed((4, 8, 16), "sample").draw(exact.rng(0, "isl"), 300)
    assert [drawn.count(v) for v in (4, 8, 16)] == [100, 100, 100]
    assert drawn[:9] != [4, 8, 16] * 3


ANY_LENGTHS = st.one_of(
    st.builds(Fixed, st.integers(1, 10**6)),
    st.builds(lambda a, b: Uniform(min(a, b), max(a, b)), st.integers(1, 10**6), st.integers(1, 10**6)),
    st.builds(lambda m, s: Normal(m, s, 1, round(m) + 10), st.floats(1, 10**5), st.floats(0, 10**5)),
    st.builds(lambda m, s: LogNormal(m, s, 1, round(m) + 10), st.floats(1, 10**5), st.floats(0, 10**5)),
    st.builds(lambda v: Listed(tuple(v), "sample"), st.lists(st.integers(1, 10**6), min_size=1, max_size=9)),
)


@given(ANY_LENGTHS, st.integers(0, 1000), st.integers(1, 40))
def test_every_draw_is_at_least_one_token_and_at_most_the_largest(lengths: Lengths, seed: int, n: int) -> None:
    drawn = lengths.draw(exact.rng(seed, "isl"), n)
    assert len(drawn) == n
    assert all(1 <= length <= lengths.largest for length in drawn)
    assert drawn == lengths.draw(exact.rng(seed, "isl"), n)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        (Fixed(7), "7"),
        (Uniform(5, 9), "5..9"),
        (Listed((1, 2, 3, 4, 5)), "1, 2, ..., 5 in turn"),
        (Listed((1, 2), "sample"), "1, 2 sampled"),
        (Normal(10, 2, 1, 20), "normal, mean 10, sd 2, clipped to 1..20"),
        (LogNormal(10, 2, 1, 20), "lognormal, mean 10, sd 2, clipped to 1..20"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_distribution_is_said_in_a_few_words(lengths: Lengths, words: str) -> None:
    assert lengths.describe() == words
