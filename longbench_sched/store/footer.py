"""RunMeta as JSON and back: the footer of a run file and the first frame of a journal.

Secrets are kept out where metadata is made (names of headers, never values); this is the second lock: user and password in any
URL are masked, values under names that hold credentials are dropped. Infinity and NaN become null: no file may hold them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from longbench_sched.errors import StoreError
from longbench_sched.run import SCHEMA_VERSION, ClientHealth, RunMeta
from longbench_sched.store.json_types import in_words, is_of

_USERINFO = re.compile(r"(://)[^/\s@]+@")
# What readers rely on inside those mappings. A field that is not there is not known; one that is there is of its type.
_NESTED: Mapping[str, str] = {
    "plan.requests": "int",
    "plan.lanes": "tuple[Mapping[str, Any], ...]",
    "plan.isl": "Mapping[str, float | None]",
    "plan.osl": "Mapping[str, float | None]",
    "plan.shared_prefix_tokens": "int",
    "plan.notes": "tuple[str, ...]",
    "plan.extra": "Mapping[str, str]",
    "target.cell": "Mapping[str, Any]",
    "target.trace": "str",
    "experiment.id": "str",
    "experiment.target_place": "int",
    "experiment.params": "Mapping[str, Any]",
    "origin.unknown": "tuple[str, ...]",
}
_LANE: Mapping[str, str] = {
    "name": "str",
    "requests": "int",
    "duration_s": "float | None",
    "loop": "str",
    "concurrency": "int",
    "steps": "tuple[tuple[float, ...], ...]",
    "process": "str",
    "rate_per_s": "float | None",
    "max_in_flight": "int | None",
}
_SECRET_NAMES = frozenset(
    {"api_key", "apikey", "authorization", "password", "secret", "token", "userinfo", "proxy_authorization"}
)


def encode_meta(meta: RunMeta) -> bytes:
    """JSON of the metadata, without secrets and without non-finite numbers."""
    import orjson

    return orjson.dumps(_without_secrets(dataclasses.asdict(meta)), option=orjson.OPT_SORT_KEYS)


def decode_meta(data: bytes, where: str) -> RunMeta:
    """Read metadata back; `where` names the file in errors. Raises StoreError if it is newer or damaged."""
    import orjson

    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError:
        fields = None
    if not isinstance(fields, dict):
        raise StoreError(f"{where} is damaged: its metadata is not a JSON object. Restore it from a copy.")
    refuse_newer(fields.get("schema_version"), where)
    try:
        client = ClientHealth(**_known(ClientHealth, fields.pop("client", {}), where))
        known = _known(RunMeta, fields, where)
        _check_nested(known, where)
        return RunMeta(client=client, **{name: _frozen(name, value) for name, value in known.items()})
    except TypeError as error:
        raise StoreError(f"{where} is damaged: its metadata lacks a field ({error}). Restore it from a copy.") from None


def refuse_newer(version: object, where: str) -> None:
    """Raise StoreError unless this version of the tool can read that schema version."""
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise StoreError(f"{where} is damaged: it does not state a schema version. Restore it from a copy.")
    if version > SCHEMA_VERSION:
        raise StoreError(
            f"{where} was written by a newer longbench-sched (schema {version}; this one reads up to {SCHEMA_VERSION}). "
            "Install a newer one to read it."
        )


def _known(kind: type, fields: object, where: str) -> dict[str, Any]:
    """The fields that this version knows; a later version may have added some. Raises StoreError for one of another type."""
    types = {field.name: str(field.type) for field in dataclasses.fields(kind)}
    known = {name: value for name, value in fields.items() if name in types} if isinstance(fields, dict) else {}
    for name, value in known.items():
        if not is_of(value, types[name]) or (name == "time_scale" and value <= 0):
            raise _damaged(where, name, types[name])
    return known


def _check_nested(fields: Mapping[str, Any], where: str) -> None:
    """Raise StoreError for a field within a mapping that is of another type than its readers expect."""
    for path, annotation in _NESTED.items():
        outer, _, name = path.partition(".")
        holder = fields.get(outer, {})
        if name in holder and not is_of(holder[name], annotation):
            raise _damaged(where, path, annotation)
    for place, lane in enumerate(fields.get("plan", {}).get("lanes", ())):
        for name, annotation in _LANE.items():
            if name in lane and not is_of(lane[name], annotation):
                raise _damaged(where, f"plan.lanes[{place}].{name}", annotation)


def _damaged(where: str, name: str, annotation: str) -> StoreError:
    return StoreError(f"{where} is damaged: {name} in its metadata is no {in_words(annotation)}. Restore it from a copy.")


def _frozen(name: str, value: Any) -> Any:
    return tuple(value) if name in ("marks", "preflight") else value


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        # A server may send half of a surrogate pair, which is no Unicode and which JSON cannot hold.
        return _USERINFO.sub(r"\1***@", value.encode("utf-8", "replace").decode())
    if isinstance(value, Mapping):
        return {str(key): "***" if _is_secret(str(key), item) else _without_secrets(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_without_secrets(item) for item in value]
    return value


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and name.lower().replace("-", "_") in _SECRET_NAMES
