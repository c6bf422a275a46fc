"""The steps of full_size.py that are no command of dopsd; each prints its figures as JSON.

python benchmarks/full_size_steps.py load /tmp/full-size/base
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerFast

    from dopsd.models.denoiser import DenoiserConfig

SHARD = "3GB"  # six files of LLaDA-8B, as on the hub
NAMED = {  # special tokens by id
    "llada-8b": {
        126080: "<|startoftext|>",
        126081: "<|endoftext|>",
        126336: "<|mdm_mask|>",
        126346: "<|start_header_id|>",
        126347: "<|end_header_id|>",
        126348: "<|eot_id|>",
    },
    "a2d-0.6b": {151643: "<|endoftext|>", 151644: "<|im_start|>", 151645: "<|im_end|>"},
}
ENDS = {"llada-8b": 126081, "a2d-0.6b": 151645}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


def shape(base: str, layers: int | None, is_toy: bool) -> DenoiserConfig:
    """Return the config of the base's profiles, or of one with fewer layers, or a toy."""
    from dopsd.config.profiles.layers import families
    from dopsd.models.registry import config_class, published

    row = next(row for row in published() if row.name == families()[base].base)
    kind = config_class(row.architecture)
    fewer = {kind.attribute_map.get("n_layers", "n_layers"): layers} if layers else {}
    config = kind(**(row.shape or {}) | fewer | {"eos_token_id": ENDS[base]})
    if is_toy:
        config = config.toy()
    config.dtype = torch.bfloat16
    return config


def weights(folder: Path, base: str, layers: int | None, is_toy: bool) -> dict[str, Any]:
    """Write random weights of a base's shape as the hub has them, one file at a time."""
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    from dopsd.models.checkpoint_files import INDEX, expected_shapes

    config = shape(base, layers, is_toy)
    shapes = expected_shapes(config)
    tensors = {n: torch.empty(s, dtype=torch.bfloat16, device="meta") for n, s in shapes.items()}
    numbers = {name: number for number, name in enumerate(sorted(tensors))}
    plan = split_torch_state_dict_into_shards(
        tensors,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size="8MB" if is_toy else SHARD,
    )
    folder.mkdir(exist_ok=True)
    for file, names in plan.filename_to_tensors.items():
        shard = {name: random(shapes[name], numbers[name]) for name in names}
        save_file(shard, folder / file, metadata={"format": "pt"})
        del shard
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    config.save_pretrained(folder)
    tokenizer(base, config).save_pretrained(folder)
    files = len(plan.filename_to_tensors)
    return {"parameters": sum(t.numel() for t in tensors.values()), "files": files}


def random(shape: tuple[int, ...], seed: int) -> Tensor:
    """Return weights in bfloat16: norms near one, matrices of unit gain."""
    generator = torch.Generator().manual_seed(seed)
    tensor = torch.empty(shape, dtype=torch.bfloat16)
    if len(shape) == 1:
        return tensor.normal_(1.0, 0.1, generator=generator)
    return tensor.normal_(0.0, shape[-1] ** -0.5, generator=generator)


def tokenizer(base: str, config: DenoiserConfig) -> PreTrainedTokenizerFast:
    """Return a tokenizer with a word for each id: characters, and the base's special tokens.

    That of a2d-0.6b lacks the mask, as the published one.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from dopsd.models.text import CHARACTERS

    named = NAMED[base]
    words = dict(enumerate(CHARACTERS)) | named
    size = config.vocab_size if base == "llada-8b" else config.mask_token_id
    vocabulary = {words.get(i, f"<{i}>"): i for i in range(size)}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens(list(named.values()))
    end = named[ENDS[base]]
    made = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=end, pad_token=end)
    if base == "llada-8b":
        made.bos_token = named[126080]
    else:
        made.chat_template = TEMPLATE
    return made


def load(folder: Path) -> dict[str, Any]:
    """Load the base as every command does."""
    from dopsd import load_policy

    started = time.monotonic()
    policy = load_policy(folder, dtype="bfloat16")
    size = sum(p.numel() * p.element_size() for p in policy.core.parameters())
    return {"load_seconds": round(time.monotonic() - started, 1), "weights_gb": size / 1e9}


def sample(params_file: Path) -> dict[str, Any]:
    """Sample the answers to two problems with the settings of the run."""
    import dopsd

    run = dopsd.run_settings(params_file)
    policy = dopsd.load_policy(run.model.path, dtype=run.model.dtype)
    started = time.monotonic()
    rollouts = dopsd.sample(policy, ["0410020420430020", "1030300201404001"], run, temperature=0.9)
    tokens = [rollout.completion_ids.tolist() for rollout in rollouts]
    digest = hashlib.sha256(json.dumps(tokens).encode()).hexdigest()
    seconds = round(time.monotonic() - started, 1)
    return {"sample_seconds": seconds, "steps": run.sampling.steps, "tokens": digest}


@torch.no_grad()
def logits_digest(model: Any, vocabulary: int) -> dict[str, Any]:
    """Return the digest of the logits of 24 tokens."""
    ids = torch.randint(0, vocabulary, (1, 24), generator=torch.Generator().manual_seed(3))
    logits = model(ids).logits
    assert logits.isfinite().all()
    values = logits.contiguous().view(torch.int16).numpy().tobytes()
    return {"logits": hashlib.sha256(values).hexdigest(), "spread": logits.float().std().item()}


def merged_logits(folder: Path) -> dict[str, Any]:
    """Load the export with transformers alone, after the import that registers the class."""
    from transformers import AutoModelForMaskedLM

    from dopsd.models.registry import read_config

    read_config(folder)  # it registers the architecture
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    return logits_digest(model, model.config.vocab_size)


def adapted_logits(folder: Path, adapter: Path) -> dict[str, Any]:
    """Add the adapter to the base in memory, in float32 and rounded once."""
    from dopsd import load_policy
    from dopsd.models.lora import require_adapter
    from dopsd.models.merged_files import adapted_layers

    policy = load_policy(folder, adapter, dtype="bfloat16")
    model, moved, count = require_adapter(policy.adapted, adapter), 0, 0
    for layer, change in adapted_layers(model):
        new = (layer.weight.data.float() + change).bfloat16()
        moved += int((new != layer.weight.data).sum())
        count += new.numel()
        layer.weight.data = new
    with model.disable_adapter():
        return {"moved": moved / count} | logits_digest(policy.core, policy.vocabulary)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step")
    parser.add_argument("folder", type=Path)
    parser.add_argument("adapter", type=Path, nargs="?")
    parser.add_argument("--base", choices=NAMED, default="llada-8b")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--toy", action="store_true")
    a = parser.parse_args()
    figures: dict[str, Any]
    if a.step == "weights":
        figures = weights(a.folder, a.base, a.layers, a.toy)
    elif a.adapter:
        figures = adapted_logits(a.folder, a.adapter)
    else:
        steps = {"load": load, "sample": sample, "merged_logits": merged_logits}
        figures = steps[a.step](a.folder)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
