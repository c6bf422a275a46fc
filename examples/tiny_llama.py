"""Write a random Llama of under a million weights, which `dopsd adapt` takes as its source.

    python ../examples/tiny_llama.py data/NAME/train.jsonl ../tiny-llama

Its tokens are bytes, and the fixed phrases of the questions in the file, so that prompts are short.
"""

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dopsd.training.pretraining.pretrain import initialise

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{{ eos_token }}{% endfor %}"
SHARE, SHORTEST = 0.01, 12  # of the questions that have a phrase, and its characters


def phrases(questions: Sequence[str]) -> list[str]:
    """Return the runs of words, each of them common, that stand in many questions."""
    split = [re.findall(r"\S+\s*", question) for question in questions]
    fewest = SHARE * len(questions)
    common = Counter(word for words in split for word in {*words})
    common = Counter({word: n for word, n in common.items() if re.search("[a-z](?!,)", word)})
    runs = Counter(
        "".join(run)
        for words in split
        for is_common, run in groupby(words, lambda word: common[word] >= fewest)
        if is_common
    )
    return sorted(run for run, n in runs.items() if n >= fewest and len(run) >= SHORTEST)


def tokenizer_of(questions: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes, of the answer's tags and of the questions' phrases."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    added = ["<answer>", "</answer>", *phrases(questions)]
    core.add_tokens([AddedToken(text, normalized=False) for text in added])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def main() -> None:
    """Write the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("questions", type=Path, help="prepared problems, a .jsonl file")
    parser.add_argument("out", type=Path, help="the folder to write")
    args = parser.parse_args()
    rows = [json.loads(row) for row in args.questions.read_text(encoding="utf-8").splitlines()]
    tokenizer = tokenizer_of([row["prompt"] for row in rows])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=512,
        rope_theta=100.0,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    initialise(model)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    lengths = sorted(len(tokenizer(row["prompt"])["input_ids"]) for row in rows)
    print(f"{args.out}: {model.num_parameters()} weights, {len(tokenizer)} tokens;")
    print(f"questions have {lengths[len(rows) // 2]} tokens, the longest {lengths[-1]}")


if __name__ == "__main__":
    main()
