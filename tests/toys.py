"""Small random LLaDAs, and a tokenizer with LLaDA's special tokens, saved as checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.text import CHARACTERS, build_tokenizer

SHAPE = {"d_model": 32, "n_heads": 4, "n_layers": 2, "mlp_hidden_size": 48}
SHAPE |= {"vocab_size": 106, "embedding_size": 112}
IDS = {"max_sequence_length": 64, "rope_theta": 500.0, "rms_norm_eps": 1e-5}
IDS |= {"mask_token_id": 1, "eos_token_id": 0}


def toy(kv_heads: int = 4, is_tied: bool = False) -> LladaForMaskedLM:
    """Weights of unit gain, so that logits are of order one; norms that are not all ones."""
    torch.manual_seed(0)
    model = LladaForMaskedLM(LladaConfig(**SHAPE, **IDS, n_kv_heads=kv_heads, weight_tying=is_tied))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=module.in_features**-0.5)
            elif not list(module.children()):
                module.weight.normal_(mean=1.0, std=0.1)
        model.get_input_embeddings().weight.normal_(
            std=SHAPE["d_model"] ** -0.5 if is_tied else 1.0
        )
    return model.eval()


def save_toy(folder: Path, dtype: torch.dtype = torch.float32) -> LladaForMaskedLM:
    """A toy with the embedded model's tokenizer in a folder, in several shards."""
    model = toy().to(dtype)
    model.save_pretrained(folder, max_shard_size="16KB" if dtype == torch.bfloat16 else "32KB")
    build_tokenizer().save_pretrained(folder)
    return model


def llada_tokenizer() -> PreTrainedTokenizerFast:
    """Characters, and special tokens as LLaDA-8B-Instruct declares them: the mask only as an added
    one, no template.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    core = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(CHARACTERS)}, unk_token="?")
    )
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    added = ["<|startoftext|>", "<|endoftext|>", "[CLS]", "[gMASK]", "<|reserved_token_0|>"]
    added += ["<role>", "</role>", "<|arithmetic_start|>", "<|mdm_mask|>"]
    added += ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    core.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in added])
    names = {"bos_token": "<|startoftext|>", "cls_token": "[CLS]"}
    names |= dict.fromkeys(["eos_token", "pad_token"], "<|endoftext|>")
    return PreTrainedTokenizerFast(tokenizer_object=core, **names)


def rewrite(path: Path, **changes: object) -> None:
    """Change fields of a JSON file; None removes one."""
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in raw.items() if value is not None}))
