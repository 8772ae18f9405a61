"""Before the run: is anybody there, who, which model, how long a context? Asked over a few GETs; nothing is generated.

What stops a run here is an error with a remedy; what only needs to be known is a finding. The requests that are really sent
ahead, to see how long prompts and answers get, are in `rehearsal.py`.

Also here, since it is the same conversation: the server's own tokenizer (`ServerTokenizer`), handed to whoever makes prompts,
and what the embedded engine says of itself.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from longbench_sched.engine import ENGINES, facts
from longbench_sched.engine.error_body import clean, read_error_body
from longbench_sched.errors import TargetError
from longbench_sched.load.request_head import common_lines, one_line, os_words, ssl_context, tls_advice
from longbench_sched.target import Target, mask_url

MAX_ANSWER_BYTES = 32 << 20  # a /metrics page of a large deployment has some MB
MODELS, INFO = "/v1/models", "/longbench/info"
MAX_TIME_SCALE = 1000.0
ANSWER_TIMES = 6  # a whole answer may take so many times as long as its first byte
MAX_LATENESS_MS = 1e9  # eleven days: beyond it is no lateness of a server that still answers

# Engines behind one front end say another name, and any server may be spoken to as plain `openai`.
_COMPATIBLE = {"dynamo": frozenset({"vllm", "sglang", "trtllm", "openai"})}


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """How the server is asked."""

    ca_file: Path | None = None
    insecure: bool = False
    proxy: str | None = None  # its URL; None goes directly, whatever the environment says
    connect_s: float = 10.0
    answer_s: float = 10.0


_ANNOUNCED = ("gpu", "options", "calibration", "drafter", "speculator")


@dataclass(frozen=True, slots=True)
class Preflight:
    """What is known before the first measured request. Findings are {"id", "text", "cause", "next_step"}."""

    model: str
    models: tuple[str, ...] = ()  # as listed
    facts: Mapping[str, object] = field(default_factory=dict)  # keys of engine.facts.FACTS
    findings: tuple[Mapping[str, str], ...] = ()
    time_scale: float = 1.0  # engine time over wall time
    is_simulated: bool = False
    announcement: Mapping[str, object] = field(default_factory=dict)  # of the embedded engine: `_ANNOUNCED`
    template_overhead: int | None = None  # tokens that the chat template adds, as measured
    capability: Mapping[str, object] = field(default_factory=dict)  # what the server's streams hold (rehearsal.py)

    @property
    def max_model_len(self) -> int | None:
        """Tokens that prompt and output may have together, if the server says."""
        length = self.facts.get("max_model_len")
        return length if isinstance(length, int) else None


def probe(target: Target, options: ProbeOptions = ProbeOptions()) -> Preflight:
    """Ask the server who it is. Raises TargetError (unreachable, no such model) and UsageError (headers, TLS files)."""
    with _Session(target, options) as session:
        cards = _list_models(session, target)
        card = _choose(cards, target)
        info = _json(session.get(INFO))
        found = _read_facts(session, card)
    is_simulated = info.get("simulated") is True
    if is_simulated:
        found = facts.read_announcement(info) | found | {"simulated": True, "time_scale": _time_scale(info)}
    return Preflight(
        model=card.id,
        models=tuple(known.id for known in cards),
        facts=found,
        findings=tuple(_findings(target, cards, found)),
        time_scale=_time_scale(info) if is_simulated else 1.0,
        is_simulated=is_simulated,
        announcement={key: info[key] for key in _ANNOUNCED if is_simulated and key in info},
    )


def check_context(preflight: Preflight, engine: str, isl: int, osl: int) -> None:
    """Raises TargetError if the longest request of a plan does not fit into the model's context."""
    limit, overhead = preflight.max_model_len, preflight.template_overhead or 0
    needed = isl + osl + overhead
    if limit is None or needed <= limit:
        return
    template = f" + {overhead} of the chat template" if overhead else ""
    sent = "No measured request" if preflight.capability else "No request"  # after a rehearsal, or before
    raise TargetError(
        f"the model accepts {limit} tokens; the workload needs {needed} ({isl} + {osl}{template}).\n"
        f"Serve with a larger {_CONTEXT_FLAGS.get(engine, 'context')}, or lower isl/osl. {sent} was sent."
    )


_CONTEXT_FLAGS = {"vllm": "--max-model-len", "sglang": "--context-length", "trtllm": "--max_seq_len", "triton": "max_seq_len"}


def read_server_lateness_ms(target: Target, options: ProbeOptions = ProbeOptions()) -> float | None:
    """How late the embedded engine was, p99 in ms of wall time; None if it is another engine, or gone."""
    with _Session(target, options) as session:
        lateness = _json(session.get(INFO)).get("lateness")
    late = lateness.get("p99_ms") if isinstance(lateness, dict) else None
    return float(late) if isinstance(late, int | float) and 0 <= late < MAX_LATENESS_MS else None


def read_prefix_hits(target: Target, options: ProbeOptions = ProbeOptions()) -> int | None:
    """The server's own count of prompt tokens from its prefix cache, up to now; None if it has none, or is gone."""
    with _Session(target, options) as session:
        metrics = session.get("/metrics")
    return facts.read_prefix_hits(metrics.body.decode("utf-8", "replace")) if metrics.is_ok else None


# The models.


def _list_models(session: _Session, target: Target) -> list[facts.ModelCard]:
    """The models that the server lists. Raises TargetError if it cannot be reached at all, or lets nobody in."""
    path = "/v2" if target.engine == "triton" else MODELS
    answer = session.first(path)
    url = target.endpoint.url
    if answer.status in (401, 403):
        raise TargetError(
            f"{url} answers {answer.status} to GET {path}: the key is missing or wrong.\n"
            "Put it into OPENAI_API_KEY, or name its variable with --api-key-env. No request was sent."
        )
    if answer.status >= 500 or 300 <= answer.status < 400:
        raise TargetError(
            f"{url} answers {answer.status} to GET {path}: {read_error_body(answer.body) or 'no reason given'}.\n"
            "Wait until the engine is ready, or check --base-url. No request was sent."
        )
    return facts.read_models(answer.body) if answer.status == 200 else []


def _choose(cards: Sequence[facts.ModelCard], target: Target) -> facts.ModelCard:
    """The model to measure: the one asked for, else the first listed."""
    asked = target.model
    if asked is None:
        if cards:
            return cards[0]
        raise TargetError(f"{target.endpoint.url} lists no models. Say with --model which one to ask for. No request was sent.")
    # SGLang serves adapters as base:adapter, and lists the base.
    names = (asked, asked.partition(":")[0]) if target.engine == "sglang" else (asked,)
    for card in cards:
        if card.id in names:
            return facts.ModelCard(asked, card.max_model_len, card.root, card.owned_by)
    if not cards:
        return facts.ModelCard(asked)
    known = [clean(card.id, 80) for card in cards]
    close = difflib.get_close_matches(asked, known, n=1)
    listed = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
    raise TargetError(
        f"{target.endpoint.url} serves no model {asked!r}. Known: {listed}.\n"
        + (f"Did you mean {close[0]}? " if close else "")
        + "No request was sent."
    )


# Facts and findings.


def _read_facts(session: _Session, card: facts.ModelCard) -> dict[str, object]:
    """What the server's information routes say; those that it does not have are passed over."""
    found: dict[str, object] = {}
    if (metrics := session.get("/metrics")).is_ok:
        found |= facts.read_metrics(metrics.body.decode("utf-8", "replace"))
    if (server_info := session.get("/server_info?config_format=json")).is_ok:
        found |= facts.read_server_info(server_info.body)
    found |= facts.model_facts(card)
    for path in ("/version", "/v2"):
        if "version" not in found and (version := facts.read_version(session.get(path).body)) is not None:
            found["version"] = version
    return found


def _findings(target: Target, cards: Sequence[facts.ModelCard], found: Mapping[str, object]) -> list[Mapping[str, str]]:
    said = found.get("engine")
    findings: list[Mapping[str, str]] = []
    if not cards and target.engine != "triton":
        findings.append(
            {
                "id": "NO-MODEL-LIST",
                "text": f"{target.endpoint.url} lists no models; {target.model!r} is asked for untested.",
                "cause": f"It has no {MODELS}, or a gateway hides it.",
                "next_step": "Check the model's name if requests fail.",
            }
        )
    is_other = isinstance(said, str) and said != target.engine and target.engine not in ("openai", "triton")
    if is_other and target.engine not in _COMPATIBLE.get(str(said), ()):
        titles = [ENGINES[name].title if name in ENGINES else name for name in (target.engine, str(said))]
        findings.append(
            {
                "id": "OTHER-ENGINE",
                "text": f"--engine {target.engine} was given, but {target.endpoint.url} says it is {titles[1]}.",
                "cause": f"Its streams may differ from those of {titles[0]} in where tokens and counts sit.",
                "next_step": f"Use --engine {said if said in ENGINES else 'openai'}, or make sure that this is meant.",
            }
        )
    return findings


def _time_scale(info: Mapping[str, object]) -> float:
    scale = info.get("time_scale")
    return float(scale) if isinstance(scale, int | float) and 0 < scale <= MAX_TIME_SCALE else 1.0


def _json(answer: _Answer) -> dict[str, Any]:
    if not answer.is_ok:
        return {}
    try:
        value = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


# The server's tokenizer.


class ServerTokenizer:
    """The tokenizer behind a server's `/tokenize` and `/detokenize`. Raises TargetError when it stops answering.

    vLLM and SGLang take `prompt` and `add_special_tokens`, llama.cpp `content` and `add_special`; a server passes over the
    fields of the other kind, so which one it is shows only in the answer.
    """

    def __init__(self, target: Target, model: str, options: ProbeOptions = ProbeOptions()) -> None:
        self._session = _Session(target, options)
        self._model = model
        self._is_llama_cpp = False

    @property
    def name(self) -> str:
        """The model's, and where its tokenizer is."""
        return f"{clean(self._model, 80)} /tokenize"

    @property
    def vocab_size(self) -> int | None:
        """Not told by any of these servers."""
        return None

    def encode(self, text: str, special: bool) -> list[int]:
        """The ids of a text; with `special`, those that the server adds to a plain prompt (BOS) too."""
        if self._is_llama_cpp:
            body: dict[str, object] = {"content": text, "add_special": special}
        else:
            body = {"model": self._model, "prompt": text, "add_special_tokens": special}
        answer = self._session.post("/tokenize", body)
        tokens = facts.read_tokens(answer.body) if answer.is_ok else None
        if tokens is None:
            raise self._failure("/tokenize", answer)
        return tokens

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens kept."""
        answer = self._session.post("/detokenize", {"model": self._model, "tokens": list(ids), "skip_special_tokens": False})
        text = facts.read_text(answer.body) if answer.is_ok else None
        if text is None:
            raise self._failure("/detokenize", answer)
        return text

    def close(self) -> None:
        """Close the connection."""
        self._session.close()

    def find_kind(self) -> bool:
        """Whether the server has a tokenizer to use; learns which fields it takes."""
        for self._is_llama_cpp in (False, True):
            try:
                ids = self.encode("Hello world", False)
                if ids and self.decode(ids).strip():
                    return True
            except TargetError:
                continue
        return False

    def _failure(self, path: str, answer: _Answer) -> TargetError:
        words = f"answers {answer.status}: {read_error_body(answer.body)}" if answer.status else answer.failure
        return TargetError(f"{self._session.url}{path} cannot be used ({words}).\nGive a local tokenizer with --tokenizer.")


def open_server_tokenizer(
    target: Target,
    model: str,
    options: ProbeOptions = ProbeOptions(),
) -> ServerTokenizer | None:
    """The server's own tokenizer, or None if it offers none. Close it after use."""
    tokenizer = ServerTokenizer(target, model, options)
    if tokenizer.find_kind():
        return tokenizer
    tokenizer.close()
    return None


# The conversation.


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a server said. Status 0: nothing, `failure` says why."""

    status: int
    body: bytes = b""
    failure: str = ""

    @property
    def is_ok(self) -> bool:
        return self.status == 200


# The last two: names that the system's resolver would look up and httpx refuses.
_FAILURES = (httpx.HTTPError, OSError, httpx.InvalidURL, UnicodeError)


class _Endless(httpx.ReadTimeout):
    """An answer goes on and on."""


class _Session:
    """A few requests to one server, none of them timed."""

    def __init__(self, target: Target, options: ProbeOptions) -> None:
        self._target = target
        self._options = options
        self.url = target.endpoint.url
        lines = [(n, v) for n, v in common_lines(target) if n.lower() not in ("accept", "host")]
        self._client = httpx.Client(
            verify=ssl_context(options.ca_file, options.insecure) if target.endpoint.scheme == "https" else False,
            proxy=options.proxy,
            trust_env=False,
            follow_redirects=False,
            timeout=httpx.Timeout(options.answer_s, connect=options.connect_s),
            headers=[*lines, *((n, v) for n, v in target.headers if n.lower() == "host"), ("Accept", "*/*")],
        )
        self._socket: socket.socket | None = None  # that of the newest connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def first(self, path: str) -> _Answer:
        """GET from a server that has not answered yet. Raises TargetError saying why it cannot be reached."""
        try:
            return self._ask("GET", path, None)
        except _FAILURES as error:
            raise self._unreachable(error, path) from None

    def get(self, path: str) -> _Answer:
        """GET; a failure is an answer of status 0."""
        return self._try("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> _Answer:
        """POST as JSON; a failure is an answer of status 0."""
        return self._try("POST", path, body)

    def _try(self, method: str, path: str, body: Mapping[str, object] | None) -> _Answer:
        try:
            return self._ask(method, path, body)
        except _FAILURES as error:
            return _Answer(0, b"", os_words(_root(error)))

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None) -> _Answer:
        # The limits of httpx are for each read: a byte now and then would pass them for ever, in the headers too.
        has_passed = threading.Event()
        limit = threading.Timer(ANSWER_TIMES * self._options.answer_s, self._cut, (has_passed,))
        limit.daemon = True
        limit.start()
        answer: _Answer | None = None
        try:
            answer = self._read_answer(method, path, body)
        except httpx.HTTPError:
            if not has_passed.is_set():
                raise
        finally:
            limit.cancel()
        if answer is None or has_passed.is_set():  # a body that lasts until the connection ends looks complete
            raise _Endless("the answer does not end")
        return answer

    def _read_answer(self, method: str, path: str, body: Mapping[str, object] | None) -> _Answer:
        extensions = {"trace": self._note_connection}
        with self._client.stream(method, self.url + path, json=body, extensions=extensions) as response:
            data = bytearray()
            for piece in response.iter_raw():
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    return _Answer(0, b"", f"an answer of more than {MAX_ANSWER_BYTES >> 20} MiB")
            return _Answer(response.status_code, bytes(data))

    def _note_connection(self, event: str, known: Mapping[str, Any]) -> None:
        if event.endswith((".connect_tcp.complete", ".start_tls.complete")):
            self._socket = known["return_value"].get_extra_info("socket")

    def _cut(self, has_passed: threading.Event) -> None:
        """End the reading of an answer, from another thread."""
        has_passed.set()
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed meanwhile
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # not TLS's own, which forgets its state under a read

    def _unreachable(self, error: Exception, path: str) -> TargetError:
        engine, root = self._target.engine, _root(error)
        why = os_words(root)
        remedy = "Start the engine, or check --base-url. No request was sent."
        if isinstance(root, ssl.SSLError):
            return TargetError(f"cannot reach {engine} at {self.url}: {tls_advice(one_line(str(root)))}.\nNo request was sent.")
        if self._options.proxy is not None and isinstance(error, httpx.ConnectError | httpx.ProxyError | httpx.ConnectTimeout):
            return TargetError(
                f"cannot reach the proxy {mask_url(self._options.proxy)} on the way to {self.url} ({why}).\n"
                "Check the proxy, or leave it out. No request was sent."
            )
        match error:
            case httpx.ConnectTimeout() if self._target.endpoint.scheme == "https":
                why = f"no TLS connection within {self._options.connect_s:g} s; is it http://?"
            case httpx.ConnectTimeout():
                why = f"no connection within {self._options.connect_s:g} s"
            case _Endless():
                limit = f"{ANSWER_TIMES * self._options.answer_s:g} s"
                return TargetError(f"{self.url} does not come to the end of its answer to GET {path} in {limit}.\n{remedy}")
            case httpx.TimeoutException():
                limit = f"{self._options.answer_s:g} s"
                return TargetError(f"{self.url} takes connections but does not answer GET {path} within {limit}.\n{remedy}")
            case httpx.ProtocolError():
                return TargetError(f"what listens at {self.url} does not speak HTTP ({one_line(str(error))}).\n{remedy}")
            case _:
                pass
        return TargetError(f"cannot reach {engine} at {self.url} ({why}).\n{remedy}")


def _root(error: BaseException) -> BaseException:
    """The error of the system or of TLS that lies behind one of httpx's."""
    inner: BaseException | None = error
    found = error
    while inner is not None:
        if isinstance(inner, OSError):
            found = inner
        inner = inner.__cause__ or inner.__context__
    return found
