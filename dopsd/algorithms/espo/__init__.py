"""ESPO: policy gradient with a ratio of likelihood bounds; also GDSD and coupled-GRPO."""
