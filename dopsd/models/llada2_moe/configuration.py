"""Check config.json of a LLaDA2.0 checkpoint: required fields, and values that are computed."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from dopsd.core.error_codes import Code
from dopsd.core.errors import DopsdError
from dopsd.models.common.decoder_config import DecoderConfig
from dopsd.models.common.fields import check_numbers

RANKED = 2  # experts whose scores rank a group
ROTATED = 0.5  # share of a head that the published class rotates where a file does not say it
TOY = {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
TOY |= {"moe_intermediate_size": 32, "rotary_dim": 8}


def is_share(value: object) -> bool:
    """Return whether a field of a file is a number above 0 and at most 1."""
    return type(value) in (int, float) and 0 < value <= 1  # type: ignore[operator]


class Llada2MoeConfig(DecoderConfig):
    """Shape of a LLaDA2.0 model; the published files name neither mask nor end nor block."""

    model_type = "llada2_moe"
    attention_patterns = ("block_causal",)
    mask_token = "<|mask|>"
    end_of_turn = "<|role_end|>"
    required: ClassVar[tuple[str, ...]] = (
        *("head_dim", "num_experts", "num_experts_per_tok", "num_shared_experts", "n_group"),
        *("topk_group", "moe_intermediate_size", "first_k_dense_replace", "routed_scaling_factor"),
        "rotary_dim",
    )
    whole: ClassVar[tuple[str, ...]] = (
        *("num_experts", "num_experts_per_tok", "n_group", "topk_group", "moe_intermediate_size"),
        "rotary_dim",
    )
    allowed: ClassVar[dict[str, tuple[object, ...]]] = {
        "score_function": ("sigmoid",),
        "norm_topk_prob": (True,),
        "moe_router_enable_expert_bias": (True,),
        "use_qk_norm": (True,),
        "use_qkv_bias": (False,),
        "use_bias": (False,),
        "use_rmsnorm": (True,),
        "norm_head": (False,),
        "norm_softmax": (False,),
        "router_dtype": ("fp32", None),
    }
    vocab_size: int = 157184
    hidden_size: int = 2048
    intermediate_size: int = 5120
    num_hidden_layers: int = 20
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 128
    rotary_dim: int = 64
    max_position_embeddings: int = 16384
    rms_norm_eps: float = 1e-6
    rope_theta: float = 600000.0
    num_experts: int = 256
    num_experts_per_tok: int = 8
    num_shared_experts: int = 1
    n_group: int = 8
    topk_group: int = 4
    moe_intermediate_size: int = 512
    first_k_dense_replace: int = 1
    routed_scaling_factor: float = 2.5
    tie_word_embeddings: bool = False
    eos_token_id: int = 156892
    pad_token_id: int = 156892
    mask_token_id: int = 156895
    block_size: int = 32
    # as in the published sampler and training
    block_alignment: str = "sequence"  # type: ignore[assignment]

    @property
    def idle_parameters(self) -> int:
        """Weights of the experts that one token does not use."""
        idle = self.num_experts - self.num_experts_per_tok
        layers = self.num_hidden_layers - self.first_k_dense_replace
        return int(layers * idle * 3 * self.hidden_size * self.moe_intermediate_size)

    def linear_shapes(self) -> dict[str, tuple[int, int]]:
        """Return (inputs, outputs) of a block's linear layers; of experts, what a token uses."""
        width, head = self.hidden_size, self.head_dim
        wide = head * self.num_attention_heads
        used = self.moe_intermediate_size * (self.num_experts_per_tok + self.num_shared_experts)
        return {
            "query_key_value": (width, wide + 2 * head * self.num_key_value_heads),
            "dense": (wide, width),
            "gate_proj": (width, used),
            "up_proj": (width, used),
            "down_proj": (used, width),
        }

    def toy(self) -> Self:
        """Return a tiny model of the same kind with the same tokens, for rehearsals in seconds."""
        return self._toy(TOY)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:  # noqa: ANN401
        """Return the config; the width that is rotated may be given as a share of a head's."""
        given = config_dict.get("rope_parameters")
        raw = config_dict | (given if isinstance(given, dict) else {})
        raw.pop("rope_parameters", None)
        share, width = raw.get("partial_rotary_factor", ROTATED), raw.get("head_dim")
        if type(width) is int and is_share(share):
            raw = {"rotary_dim": int(width * share)} | raw
        if raw.get("eos_token_id", 0) is None:
            del raw["eos_token_id"]
        return super().from_dict(raw, **kwargs)

    @classmethod
    def check(cls, raw: dict[str, Any]) -> None:
        """Refuse fields of config.json that the classes do not compute, as `from_dict` does."""
        super().check(raw | {"partial_rotary_factor": None})
        check_numbers(raw, (), ("routed_scaling_factor",))
        width, turned, shared = raw["head_dim"], raw["rotary_dim"], raw["num_shared_experts"]
        experts, groups, kept = raw["num_experts"], raw["n_group"], raw["topk_group"]
        dense, layers, used = (
            raw[name]
            for name in ("first_k_dense_replace", "num_hidden_layers", "num_experts_per_tok")
        )
        share = raw.get("partial_rotary_factor")
        share = ROTATED if share is None else share
        problem = ""
        if type(dense) is not int or not 0 <= dense <= layers:
            problem = f"first_k_dense_replace {dense} must be at most num_hidden_layers {layers}"
        elif type(shared) is not int or shared < 1:
            problem = f"num_shared_experts {shared} must be a whole number above 0"
        elif turned % 2 or turned > width:
            problem = f"rotary_dim {turned} must be even, and at most head_dim {width}"
        elif not is_share(share) or int(width * share) != turned:
            problem = (
                f"rotary_dim {turned} is not partial_rotary_factor {share!r} (published default"
                f" {ROTATED}) of head_dim {width}, as the published class rotates"
            )
        elif experts % groups or experts // groups < RANKED or kept > groups:
            problem = (
                f"num_experts {experts} must be n_group {groups} times {RANKED} or more, and"
                f" topk_group {kept} at most n_group"
            )
        elif used > kept * (experts // groups):
            problem = f"num_experts_per_tok {used} are more than topk_group {kept} groups have"
        if problem:
            raise DopsdError(f"config.json: {problem}", code=Code.MODEL_CONFIG)
