"""diffu-GRPO: group-relative policy gradient."""
