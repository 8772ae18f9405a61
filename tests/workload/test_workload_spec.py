from pathlib import Path

import pytest

from longbench_sched.errors import WorkloadError
from longbench_sched.plan import Sampling
from longbench_sched.slo import Slo
from longbench_sched.workload.arrivals import Burst, Constant, Gamma, Poisson, RateStage
from longbench_sched.workload.lengths import Fixed, Uniform
from longbench_sched.workload.shape import ClosedLoad, ConcurrencyStage, LaneSpec, Load, OpenLoad, Workload
from longbench_sched.workload.spec import load_workload, read_workload

SIZES = "isl = 1000\nosl = 10\n"


def read(text: str, folder: Path = Path("somewhere")) -> Workload:
    return read_workload(text, "mine", "mine.toml", folder)


def refusal(text: str) -> str:
    with pytest.raises(WorkloadError) as caught:
        read(text)
    return str(caught.value)


def test_a_flat_file_is_one_closed_lane() -> None:
    workload = read('title = "Mine"\n' + SIZES + 'concurrency = "64"\nrequests = 256\n')
    assert workload.title == "Mine"
    assert workload.lanes == (LaneSpec("main", Fixed(1000), Fixed(10), ClosedLoad((ConcurrencyStage(64),)), 256, None),)
    assert workload.text.startswith('title = "Mine"')


@pytest.mark.parametrize(
    ("text", "load"),
    [
        pytest.param('rate = "1/s"', OpenLoad(Poisson(), (RateStage(1.0),)), id="a rate alone is Poisson"),
        pytest.param('rate = 2.5\narrivals = "constant"', OpenLoad(Constant(), (RateStage(2.5),)), id="constant"),
        pytest.param('rate = "30/min"\nmax_in_flight = 8', OpenLoad(Poisson(), (RateStage(0.5),), 8), id="capped"),
        pytest.param('rate = 1\narrivals = "gamma"\ncv = 3', OpenLoad(Gamma(3.0), (RateStage(1.0),)), id="gamma"),
        pytest.param("rate = 1\ncv = 3", OpenLoad(Gamma(3.0), (RateStage(1.0),)), id="a cv makes it gamma"),
        pytest.param('every = "4s"', OpenLoad(Constant(), (RateStage(0.25),)), id="every is constant"),
        pytest.param('every = "4s"\narrivals = "poisson"', OpenLoad(Poisson(), (RateStage(0.25),)), id="every at random"),
        pytest.param('arrivals = "burst"', OpenLoad(Burst(), ()), id="all at once"),
        pytest.param('burst_size = 8\nevery = "16s"', OpenLoad(Burst(8), (RateStage(0.5),)), id="bursts"),
        pytest.param(
            '[[stage]]\nrate = 1\nduration = "10s"\n[[stage]]\nrate = 2',
            OpenLoad(Poisson(), (RateStage(1.0, 10.0), RateStage(2.0))),
            id="open ramp",
        ),
        pytest.param(
            '[[stage]]\nconcurrency = 4\nduration = "10s"\n[[stage]]\nconcurrency = 8',
            ClosedLoad((ConcurrencyStage(4, 10.0), ConcurrencyStage(8))),
            id="closed ramp",
        ),
    ],
)
def test_c14_loads_are_read_and_named(text: str, load: Load) -> None:
    """C-14: closed loop, open loop and burst are separate modes, each with its name."""
    lane = read(SIZES + "requests = 9\n" + text).lanes[0]
    assert lane.load == load
    assert lane.load.describe().startswith(("closed loop, ", "open loop, ", "burst, "))


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (ClosedLoad((ConcurrencyStage(64),)), "closed loop, 64 in flight"),
        (ClosedLoad((ConcurrencyStage(4, 9.0), ConcurrencyStage(8))), "closed loop, ramp 4 > 8 in flight"),
        (OpenLoad(Poisson(), (RateStage(1.0),)), "open loop, poisson, 1/s"),
        (OpenLoad(Gamma(3.0), (RateStage(0.25),), 8), "open loop, gamma, CV 3, 0.25/s, at most 8 in flight"),
        (OpenLoad(Constant(), (RateStage(1.0, 9.0), RateStage(2.0))), "open loop, constant, 1 > 2/s"),
        (OpenLoad(Burst(), ()), "burst, all at once"),
        (OpenLoad(Burst(8), (RateStage(0.5),)), "burst, 8 every 16 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_c14_a_load_names_its_mode(load: Load, words: str) -> None:
    assert load.describe() == words


def test_lanes_have_loads_of_their_own() -> None:
    workload = read(
        'duration = "60s"\n[[lane]]\nname = "decode"\nisl = 512\nosl = { min = 1, max = 9 }\nconcurrency = 16\n'
        "max_requests = 99\n"
        '[[lane]]\nname = "prefill"\nisl = "30k"\nosl = 8\nevery = "4s"\nduration = "30s"\n'
    )
    decode, prefill = workload.lanes
    assert (decode.osl, decode.duration_s, decode.max_requests) == (Uniform(1, 9), 60.0, 99)
    assert (prefill.isl, prefill.duration_s, prefill.requests) == (Fixed(30000), 30.0, None)


def test_a_ramp_lasts_as_long_as_its_stages() -> None:
    text = SIZES + '[[stage]]\nrate = 1\nduration = "10s"\n[[stage]]\nrate = 2\nduration = "20s"\n'
    assert read(text).lanes[0].duration_s == 30.0
    assert read("requests = 5\n" + text).lanes[0].duration_s is None


def test_limits_are_milliseconds_or_have_a_unit() -> None:
    workload = read(SIZES + 'concurrency = 1\nrequests = 1\n[slo]\nttft = "15s"\ntpot = 50\n')
    assert workload.slo == Slo(ttft_s=15.0, tpot_s=0.05)


def test_sampling_is_stated() -> None:
    workload = read(SIZES + "concurrency = 1\nrequests = 1\n[sampling]\ntemperature = 0.7\nignore_eos = false\nseed = 3\n")
    assert workload.sampling == Sampling(temperature=0.7, top_p=1.0, ignore_eos=False, seed=3)


@pytest.mark.parametrize(
    ("text", "prompts", "id_range"),
    [
        pytest.param("", "synthetic", (1000, 8000), id="default"),
        pytest.param('prompts = "stdlib"', "stdlib", (1000, 8000), id="word"),
        pytest.param('prompts = "book.txt"', str(Path("somewhere") / "book.txt"), (1000, 8000), id="a path starts at the file"),
        pytest.param("[prompts]\nmin_id = 5\nmax_id = 499", "ids", (5, 500), id="range of ids"),
    ],
)
def test_prompt_sources_are_read(text: str, prompts: str, id_range: tuple[int, int]) -> None:
    workload = read(SIZES + "concurrency = 1\nrequests = 1\n" + text)
    assert (workload.prompts, workload.id_range) == (prompts, id_range)


CLOSED = SIZES + "concurrency = 8\nrequests = 9\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(CLOSED + "concurency = 4", "mine.toml: concurency: unknown key. Did you mean concurrency?", id="misspelt"),
        pytest.param(CLOSED + "isl2 = 4", "Known here: arrivals, burst_size, concurrency, cv, duration", id="unknown"),
        pytest.param(CLOSED + "[slo]\nttfb = 4", "mine.toml: slo.ttfb: unknown key. Did you mean ttft?", id="unknown limit"),
        pytest.param("osl = 1\nconcurrency = 1\nrequests = 1", "mine.toml: isl: missing: how many tokens go in", id="no isl"),
        pytest.param(
            "isl = 1\nconcurrency = 1\nrequests = 1", "mine.toml: osl: missing: how many tokens come out", id="no osl"
        ),
        pytest.param(
            SIZES + "concurency = 4", "mine.toml: concurency: unknown key. Did you mean concurrency?", id="misspelt load"
        ),
        pytest.param(SIZES + "requests = 1", "mine.toml: concurrency: missing: say how load is offered", id="no load"),
        pytest.param(SIZES + "concurrency = 1", "mine.toml: requests: missing: nothing says when to stop", id="no end"),
        pytest.param(SIZES + "concurrency = 0\nrequests = 1", "concurrency: 0 is too small. Give 1 or more.", id="zero"),
        pytest.param(SIZES + "concurrency = 1\nrequests = 0", "requests: 0 is too small", id="0 requests"),
        pytest.param(SIZES + "concurrency = true\nrequests = 1", "concurrency: True is not a whole number", id="true"),
        pytest.param(SIZES + 'concurrency = 1\nduration = "soon"', "duration: 'soon' is not a duration", id="word for a time"),
        pytest.param(SIZES + "concurrency = 1\nduration = 0", "duration: 0 is not a finite number above 0", id="no time"),
        pytest.param(SIZES + "concurrency = 1\nduration = inf", "duration: inf is not a finite number", id="forever"),
        pytest.param(CLOSED + "rate = 1", "rate: concurrency makes a closed loop and this key an open one", id="both loops"),
        pytest.param(CLOSED + "max_in_flight = 1", "max_in_flight: concurrency makes a closed loop", id="cap in a closed loop"),
        pytest.param(
            CLOSED + "[[stage]]\nconcurrency = 1", "concurrency: the stages say how many", id="stages and concurrency"
        ),
        pytest.param(SIZES + "requests = 1\nrate = -1", "rate: -1 is not a finite number above 0", id="negative rate"),
        pytest.param(SIZES + 'requests = 1\nrate = "1/week"', "rate: '1/week' is not a rate", id="rate a week"),
        pytest.param(SIZES + 'requests = 1\narrivals = "poison"\nrate = 1', "Did you mean poisson?", id="misspelt process"),
        pytest.param(SIZES + 'requests = 1\narrivals = "poisson"', "rate: missing: poisson arrivals need a rate", id="no rate"),
        pytest.param(
            SIZES + 'requests = 1\narrivals = "gamma"\nrate = 1', "cv: missing: gamma arrivals need", id="gamma without cv"
        ),
        pytest.param(
            SIZES + 'requests = 1\narrivals = "constant"\nrate = 1\ncv = 2', "cv: constant arrivals have no cv", id="cv"
        ),
        pytest.param(SIZES + "requests = 1\nrate = 1\ncv = 11", "cv: 11 is more than 10", id="absurd cv"),
        pytest.param(
            SIZES + 'requests = 1\nrate = 1\nevery = "1s"', "every: a rate (or stages) and a gap are both", id="rate twice"
        ),
        pytest.param(SIZES + "requests = 1\nburst_size = 4", "every: missing: repeated bursts need", id="bursts without a gap"),
        pytest.param(
            SIZES + 'requests = 1\narrivals = "burst"\nrate = 4', "rate: bursts are set by burst_size", id="burst at a rate"
        ),
        pytest.param(
            SIZES + 'duration = "9s"\narrivals = "burst"', "requests: missing: a burst of all", id="burst of no number"
        ),
        pytest.param(
            SIZES + "requests = 1\n[[stage]]\nrate = 1\n[[stage]]\nrate = 2",
            "stage 1.duration: missing",
            id="stage without end",
        ),
        pytest.param(
            SIZES + "[[stage]]\nrate = 1", "requests: missing: nothing says when to stop", id="last stage without end"
        ),
        pytest.param(
            SIZES + "requests = 1\n[[stage]]\nconcurrency = 1\nduration = 1\n[[stage]]\nrate = 2",
            "stage.rate: concurrency makes a closed loop",
            id="mixed stages",
        ),
        pytest.param(
            SIZES + "stage = 3\nconcurrency = 1\nrequests = 1", "stage: 3 is not an array of tables", id="stage is no table"
        ),
        pytest.param(
            CLOSED + "max_requests = 3", "max_requests: this bounds a closed loop that is limited by duration", id="both bounds"
        ),
        pytest.param("isl = 3\n[[lane]]\nname = 'a'\n", "isl: this workload has lanes; move the key", id="key above the lanes"),
        pytest.param("[[lane]]\n" + CLOSED, "lane 1.name: a lane needs a name", id="nameless lane"),
        pytest.param(
            "[[lane]]\nname = 'a'\ntitle = 'b'\n" + CLOSED, "lane 1.title: this belongs to the workload", id="title in a lane"
        ),
        pytest.param(f"[[lane]]\nname='a'\n{CLOSED}[[lane]]\nname='a'\n{CLOSED}", "lane: two lanes are named 'a'", id="twins"),
        pytest.param("title = 3\n" + CLOSED, "title: 3 is not a text", id="title"),
        pytest.param('title = "\\u001b[31m"\n' + CLOSED, "title: '\\x1b[31m' has line breaks or control", id="escape"),
        pytest.param('"\\u001b[31m" = 1\n' + CLOSED, "mine.toml: '\\x1b[31m': unknown key", id="escape in a key"),
        pytest.param(CLOSED + "[sampling]\ntop_p = 2", "sampling.top_p: 2 is above 1", id="top_p"),
        pytest.param(CLOSED + "[sampling]\nignore_eos = 1", "sampling.ignore_eos: 1 is neither true nor false", id="flag"),
        pytest.param(CLOSED + "[prompts]\nmin_id = 5\nmax_id = 9", "prompts.max_id: ids 5..9 are too few", id="few ids"),
        pytest.param("slo = 3\n" + CLOSED, "slo: 3 is not a table", id="slo"),
        pytest.param("warmups = -1\n" + CLOSED, "warmups: -1 is too small", id="negative warm-ups"),
        pytest.param("isl = ", "mine.toml: this is not TOML", id="no TOML"),
        pytest.param(CLOSED + "isl = 3", "mine.toml: this is not TOML", id="a key twice"),
        pytest.param(f"title = {'9' * 5000}", "mine.toml: this is not TOML", id="thousands of digits"),
        pytest.param(f"title = 0x{'f' * 5000}", "mine.toml: title: the number has more than 64 bits", id="thousands in hex"),
        pytest.param(f"[slo]\nttft = [{2**63}]", "mine.toml: slo.ttft: the number has more than 64 bits", id="65 bits"),
        pytest.param(f"a = {'[' * 2000}", "mine.toml: tables or lists are nested too deep", id="nested lists"),
        pytest.param("a." * 2000 + "b = 1", "mine.toml: tables or lists are nested too deep", id="nested keys"),
        pytest.param(SIZES + 'concurrency = 1\nrequests = "1e999"', "requests: '1e999' is not a whole number", id="infinite"),
        pytest.param(SIZES + 'concurrency = 1\nrequests = "1e30"', "requests: '1e30' is too large", id="over 64 bits"),
        pytest.param('isl = ","\nosl = 1', "mine.toml: isl: the list of lengths is empty", id="a comma alone"),
        pytest.param(
            "osl = 1\nisl = {mean = 9, sd = 1e308}", "isl.sd: 1e+308 is too large. Give 1.67772e+07 or less.", id="absurd sd"
        ),
        pytest.param(SIZES + "concurrency = 1\nduration = 1e300", "duration: 1e+300 is not between 1 ns and", id="an age"),
        pytest.param(SIZES + "requests = 1\nrate = 1e-300", "rate: 1e-300 is not between one in 1e+09 s and", id="rate of nil"),
        pytest.param(SIZES + "requests = 1\nrate = 1\ncv = 1e-200", "cv: 1e-200 is next to none", id="no spread"),
        pytest.param(CLOSED + f"[prompts]\nmax_id = {2**40}", f"prompts.max_id: {2**40} is no token id", id="huge ids"),
        pytest.param(CLOSED + "model = 'm'", "model: a workload says what is sent, not where or how. Give --model", id="model"),
        pytest.param(CLOSED + "base_url = 'http://h'", "Give --base-url on the command line", id="address"),
    ],
)
def test_a_bad_file_is_refused_with_file_key_and_remedy(text: str, message: str) -> None:
    assert message in refusal(text)


@pytest.mark.parametrize(
    "key",
    [
        "api_key",
        "apikey",
        "API-KEY",
        "token",
        "hf_token",
        "auth_token",
        "authorization",
        "password",
        "client_secret",
        "headers",
        "key",
    ],
)
def test_keys_that_hold_secrets_are_refused_without_repeating_them(key: str) -> None:
    text = refusal(CLOSED + f'{key} = "hush"')
    assert f"mine.toml: {key}: keys, tokens and headers do not belong in a workload" in text
    assert "--api-key-env" in text
    assert "hush" not in text


@pytest.mark.parametrize(
    "value",
    ["Bearer abcdef", "sk-proj-abcdefgh1234", "hf_abcdefghijkl", "http://user:pass@host/", "-----BEGIN PRIVATE KEY-----"],
)
@pytest.mark.parametrize("place", ['title = "%s"', '[slo]\nttft = "%s"', 'isl = ["%s"]'], ids=["title", "table", "list"])
def test_values_that_look_like_secrets_are_refused_without_repeating_them(value: str, place: str) -> None:
    text = refusal(place % value)
    assert "looks like a secret" in text
    assert value not in text


def test_a_file_is_read_by_its_path_also_as_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(CLOSED.replace("\n", "\r\n").encode("utf-8-sig"))
    workload = load_workload(str(path))
    assert workload.name == "mine"
    assert workload.text == CLOSED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"\xff\xfe", "this is not UTF-8 text", id="other coding"),
        pytest.param(b"#" * (1 << 20) + b"\n", "are no workload file", id="huge"),
    ],
)
def test_a_file_that_is_no_workload_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(content)
    with pytest.raises(WorkloadError, match=message):
        load_workload(str(path))
