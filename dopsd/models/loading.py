"""Weights and tokenizer of a folder: on this process's device, in the asked precision, without remote code."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dopsd.errors import DopsdError
from dopsd.models.folder import check_finite, check_folder

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from dopsd.config import Model

END_OF_TURN = "<|eot_id|>"  # LLaDA closes its answers with it; special, and yet sampled
LLADA_TEMPLATE = (
    "{% for message in messages %}{% if loop.first %}<|startoftext|>{% endif %}"
    "<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"  # quoted: a template's own last line break is dropped
)


def device() -> torch.device:
    """This process's GPU, by LOCAL_RANK, or the CPU."""
    import torch

    local = int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")


def load_model(model: Model) -> PreTrainedModel:
    """The base in eval mode with frozen weights; the folder is checked tensor by tensor first."""
    from transformers import AutoConfig, AutoModelForMaskedLM

    from dopsd.models import llada  # noqa: F401  (registers model_type "llada")

    folder = Path(model.path)
    if not (folder / "config.json").is_file():
        raise DopsdError(f"model.path: no config.json in {model.path}; run `dopsd pretrain` or name a checkpoint folder")
    needs_gpu(model)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    check_folder(folder, config)
    weights = AutoModelForMaskedLM.from_pretrained(
        folder, config=config, local_files_only=True, use_safetensors=True, **_how(model)
    )
    check_finite(model.path, weights.named_parameters())
    return weights.eval().requires_grad_(False)


def needs_gpu(model: Model) -> None:
    """Raise DopsdError where the asked kernels need a package or a GPU that is not here."""
    import torch

    wanted = {
        "quantization: nf4": ("bitsandbytes", "nf4", model.quantization == "nf4"),
        "attention: flash_attention_2": ("flash_attn", "gpu", model.attention == "flash_attention_2"),
    }
    for key, (package, extra, is_asked) in wanted.items():
        if is_asked and find_spec(package) is None:
            raise DopsdError(f"model.{key} needs {package}, which is not installed: pip install 'dopsd[{extra}]'")
        if is_asked and not torch.cuda.is_available():
            raise DopsdError(f"model.{key} needs an NVIDIA GPU, and there is none; use the default instead")


def _how(model: Model) -> dict[str, Any]:
    """Precision, attention and place, as from_pretrained takes them; on a GPU weights go there shard by shard."""
    import torch
    from transformers import BitsAndBytesConfig

    how: dict[str, Any] = {"dtype": getattr(torch, model.dtype), "attn_implementation": model.attention}
    if device().type == "cuda":
        how["device_map"] = {"": device()}
    if model.quantization == "nf4":
        how["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_compute_dtype=torch.bfloat16,
            bnb_4bit_use_double_quant=True,
            llm_int8_skip_modules=["model.transformer.ff_out"],  # the head; blocks have a layer of this name as well
        )
    return how


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The folder's tokenizer, padding on the left; without a chat template of its own it gets LLaDA's."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokenizer.padding_side = "left"
    if tokenizer.chat_template is None:
        tokenizer.chat_template = LLADA_TEMPLATE
    return tokenizer


def banned_ids(tokenizer: PreTrainedTokenizerFast, mask_id: int, eos_id: int, vocabulary: int) -> list[int]:
    """Ids that must never be sampled: the mask, every special token but the two that end an answer, and unused rows."""
    special = {*tokenizer.all_special_ids, *(i for i, token in tokenizer.added_tokens_decoder.items() if token.special)}
    ends = {eos_id, tokenizer.get_vocab().get(END_OF_TURN, eos_id)}
    return sorted((special | {mask_id} | set(range(len(tokenizer), vocabulary))) - ends)
