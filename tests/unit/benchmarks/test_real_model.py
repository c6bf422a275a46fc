"""benchmarks/gpu: the small real model's file is read right, and its run survives what it meets."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import ROOT
from tokenizers.pre_tokenizers import ByteLevel

from dopsd.core.interrupts import handling

GPU = ROOT / "benchmarks/gpu"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<r{i}>" for i in range(13))]
SPECIAL += ["<empty_output>"]
HEADS, KV_HEADS, WIDTH = 4, 2, 4
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(GPU)
    return __import__(name)


def write_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a tiny Llama as llama.cpp has it; return its tensors by their names there."""
    gguf = pytest.importorskip("gguf")
    words = [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "Ġhe"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(512)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(24)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_token_list(words)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(words) - len(SPECIAL)))
    writer.add_token_merges(["h e", "Ġ he"])
    for name, i in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{name}_token_id")(i)
    writer.add_chat_template(TEMPLATE)
    shapes = {"token_embd": (len(words), 16), "output_norm": (16,)}
    shapes |= {f"blk.0.{name}_norm": (16,) for name in ("attn", "ffn")}
    shapes |= {"blk.0.attn_q": (16, 16), "blk.0.attn_k": (8, 16), "blk.0.attn_v": (8, 16)}
    shapes |= {"blk.0.attn_output": (16, 16), "blk.0.ffn_down": (16, 24)}
    shapes |= {"blk.0.ffn_gate": (24, 16), "blk.0.ffn_up": (24, 16)}
    rng = np.random.default_rng(0)
    tensors = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    for name, values in tensors.items():
        writer.add_tensor(f"{name}.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_gguf_file_becomes_a_base_of_the_same_weights_and_tokens(tmp_path, monkeypatch):
    import torch

    from dopsd.models.config import ModelConfig
    from dopsd.models.llm_policy import load_policy

    tensors = write_gguf(tmp_path / "toy.gguf")
    smollm2 = module("smollm2", monkeypatch)
    base = tmp_path / "base"
    count = smollm2.convert(tmp_path / "toy.gguf", base, torch.float32)
    assert count == sum(values.size for values in tensors.values())
    policy = load_policy(ModelConfig(path=str(base)), None, 0)
    found = {name: p.numpy() for name, p in policy.core.named_parameters()}
    embedding, layer = tensors["token_embd"], "model.layers.0."
    assert np.allclose(found["model.embed_tokens.weight"][16], embedding.mean(0), atol=1e-6)
    assert (found["model.embed_tokens.weight"][17:] == embedding[17:]).all()
    assert (found[f"{layer}mlp.down_proj.weight"] == tensors["blk.0.ffn_down"]).all()
    # of a head of width 4 the rows that turn together are 0 and 1, 2 and 3; there 0 and 2, 1 and 3
    rows = np.arange(8).reshape(2, 4)[:, [0, 2, 1, 3]].reshape(-1)
    assert (found[f"{layer}self_attn.k_proj.weight"] == tensors["blk.0.attn_k"][rows]).all()
    assert (found[f"{layer}self_attn.v_proj.weight"] == tensors["blk.0.attn_v"]).all()
    assert (policy.mask_id, policy.eos_id) == (16, 2)
    names = policy.tokenizer.tokenize("he 12<|im_end|>")
    assert names == ["he", "Ġ", "1", "2", "<|im_end|>"]


def test_a_row_of_gsm8k_is_taught_in_the_layout_that_the_prompt_asks_for(monkeypatch):
    row = {"question": " How many? ", "answer": "2 * 3 = <<2*3=6>>6\nSo 1,006.\n#### 1,006"}
    found = module("projects", monkeypatch).trace(**row)
    assert found["question"].endswith("</answer>\n\nHow many?")
    assert found["response"] == (
        "<reasoning>\n2 * 3 = 6\nSo 1,006.\n</reasoning>\n<answer>\n\\boxed{1006}\n</answer>"
    )


def test_stages_that_fail_or_no_longer_fit_leave_a_line(tmp_path: Path, monkeypatch):
    run = module("stages", monkeypatch).Stages(tmp_path, 100)

    def fails() -> None:
        raise ValueError("no such kernel")

    assert run.run("good", lambda: 0) == 0
    assert run.run("bad", fails) is None
    assert not run.command("usage", ["no-such-command"])
    assert run.run("late", lambda: 0, least=101) is None
    lines = [json.loads(line) for line in (tmp_path / "real_model.jsonl").read_text().splitlines()]
    assert [line["stage"] for line in lines] == ["good", "bad", "usage", "late"]
    assert lines[1]["error"] == "ValueError: no such kernel" and "error" in lines[2]
    assert "it needs 101" in lines[3]["skipped"] and list(run.took) == ["good"]


def test_the_time_of_a_training_waits_for_its_handler(monkeypatch):
    stages, caught = module("stages", monkeypatch), []
    monkeypatch.setattr(stages, "REPEAT", 0.05)
    early: list[int] = []  # of a handler of others, as coverage has one that ends the process
    with handling(lambda *_: early.append(1)):
        before = signal.getsignal(signal.SIGTERM)
        with stages.stopped_after(0.05):
            time.sleep(0.2)
            signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
            time.sleep(0.2)
        time.sleep(0.1)
        assert caught and not early and signal.getsignal(signal.SIGTERM) == before


def test_the_model_travels_in_two_parts(tmp_path: Path, monkeypatch):
    pack = module("pack", monkeypatch)
    monkeypatch.setattr(pack, "GGUF", tmp_path / "model.gguf")
    monkeypatch.setattr(pack, "PARTS", [tmp_path / "model.1", tmp_path / "model.2"])
    monkeypatch.setattr(pack, "ROWS", tmp_path / "rows")
    content = os.urandom(1001)
    pack.GGUF.write_bytes(content)
    pack.split_model()
    assert not pack.GGUF.exists()  # --unpack makes it again
    pack.unpack()
    assert pack.GGUF.read_bytes() == content
    pack.GGUF.unlink()
    (tmp_path / "model.1/1.xz").unlink()
    with pytest.raises(SystemExit, match=r"only .*2.xz is here"):
        pack.unpack()


@pytest.mark.full
def test_every_stage_of_the_real_model_runs_on_a_toy(tmp_path: Path):
    write_gguf(tmp_path / "toy.gguf")
    out, words = tmp_path / "out", ["--toy", "--gguf", str(tmp_path / "toy.gguf")]
    words += ["--folder", str(tmp_path / "work"), "--out", str(out), "--seconds", "1000"]
    subprocess.run([sys.executable, GPU / "real_model.py", *words], check=True)
    last = (out / "real_model.jsonl").read_text().splitlines()[-1]
    assert json.loads(last)["missing"] == []
    files = {"adapt.jsonl", "d_opsd.jsonl", "real_model.jsonl", "curve.csv", "test.json"}
    files |= {"adapter_model.safetensors", "adapter_config.json"}
    assert {path.name for path in out.iterdir()} == files
