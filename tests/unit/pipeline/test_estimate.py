"""The cost model against figures by hand for LLaDA-8B, at a prompt of 200 and 256 tokens."""

import json
import re
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from conftest import write_params
from forward_counts import forwards
from torch import Tensor
from toy_project import methods_with
from toys import IDS

from dopsd.algorithms.common.config import (
    CROSS_ENTROPY_BYTES,
    DISTILLATION_BYTES,
    AlgorithmConfig,
    GroupConfig,
)
from dopsd.algorithms.common.groups import RewardedGroups
from dopsd.algorithms.spg.config import SpgConfig
from dopsd.cli.main import main
from dopsd.config import profiles
from dopsd.config.loading import checked, load_params
from dopsd.config.params import Params
from dopsd.config.params_file import with_changes
from dopsd.core.errors import DopsdError
from dopsd.models.config import AdapterConfig, ModelConfig
from dopsd.models.llada.configuration import LladaConfig
from dopsd.models.llada.modeling import LladaForMaskedLM
from dopsd.models.lora import attach
from dopsd.pipeline.estimate.command import facts_of, lines
from dopsd.pipeline.estimate.cost import Cost, Facts, estimate, fails, rounds, utilisation
from dopsd.pipeline.estimate.memory import KERNEL_BYTES
from dopsd.pipeline.shape import Shape, lora_parameters, size_of
from dopsd.training.trainer import Trainer

TOKENS = 400


FACTS = Facts(attempts=1.8, test=1319)


def params(*changes: str, preset: str = "reference", hardware: str = "1x80gb") -> Params:
    raw = with_changes(profiles.resolve("llada-8b-gsm8k", preset, hardware), list(changes))
    return checked(raw, Path("p"))


def cost(*changes: str, facts: Facts = FACTS, **profile: str) -> Cost:
    return estimate(params(*changes, **profile), LladaConfig(), facts)


def test_flops_and_parameters_are_those_of_the_shape():
    shape = Shape(LladaConfig(), lora_parameters(LladaConfig(), params()))
    assert shape.parameters == 8_015_581_184
    assert shape.lora_parameters == 32 * 128 * (3 * 8192 + 16384)  # q, k, v and up: 168M
    assert shape.block_parameters == 32 * (4 * 4096**2 + 3 * 4096 * 12288)
    assert shape.forward(456) / 1e12 == pytest.approx(6.47, abs=0.01)
    assert shape.state(456, False) / 1e12 == pytest.approx(20.0, abs=0.1)
    # again the student's 6.63, without the last layers' 2 x 456 x 32 x 4096 x 12288 = 1.47
    assert shape.state(456, True) / 1e12 == pytest.approx(20.0 + 5.16, abs=0.1)


def shape_of(profile: str) -> Shape:
    """The shape of a profile's base, whose files are not here."""
    settings = checked(profiles.resolve(profile), Path("p"))
    config = size_of(settings.model)
    return Shape(config, lora_parameters(config, settings))


def test_a_base_that_is_not_here_has_the_size_of_the_published_one():
    """Qwen3-0.6B's heads are together twice as wide as its states."""
    shape = shape_of("a2d-0.6b-gsm8k")
    layer = 1024 * (2048 + 1024 + 1024) + 2048 * 1024 + 3 * 1024 * 3072
    assert shape.block_parameters == 28 * layer
    assert shape.parameters == pytest.approx(596_049_920, rel=1e-4)  # without the norms of heads
    assert shape.attention(10, 10) == 4 * 10 * 10 * 2048 * 28
    adapted = (1024 + 2048) + 2 * (1024 + 1024) + (1024 + 3072)  # q, k, v, up
    assert shape.lora_parameters == 28 * 128 * adapted
    with pytest.raises(DopsdError, match="models/Other: is not here, and its size is not known"):
        size_of(ModelConfig(path="models/Other"))


def test_blocks_are_sampled_from_a_cache_and_scored_with_a_copy_of_the_answer():
    """SDAR: 64 blocks of 4 tokens in 2 steps each; 200 tokens of prompt, on average 328 seen."""
    shape = shape_of("sdar-1.7b-gsm8k")
    layer = 2048 * (2048 + 1024 + 1024) + 2048 * 2048 + 3 * 2048 * 6144
    attention = 4 * 328 * 2048 * 28  # of a token
    adapter = 2 * 28 * 128 * ((2048 + 2048) + 2 * (2048 + 1024) + (2048 + 6144))
    head = 2 * 2048 * 151936
    once = 2 * 456 * 28 * layer + 4 * 200 * 200 * 2048 * 28 + 256 * attention
    step = 4 * (2 * 28 * layer + attention + adapter) + 3 * head  # 4 masks, then 2
    answer = shape.answer(200, checked(profiles.resolve("sdar-1.7b-gsm8k"), Path("p")).sampling)
    assert answer == pytest.approx(once + 128 * step)
    assert shape.scored_length(200, 256) == 200 + 2 * 256
    assert shape_of("llada-8b-gsm8k").scored_length(200, 256) == 456


def test_idle_experts_take_memory_and_no_time():
    """LLaDA2.0-mini: 16.3e9 weights, of which a token uses 1.4e9."""
    settings = checked(profiles.resolve("llada2-mini-gsm8k"), Path("p"))
    shape = shape_of("llada2-mini-gsm8k")
    assert shape.parameters / 1e9 == pytest.approx(16.3, abs=0.1)
    assert (shape.parameters - shape.config.idle_parameters) / 1e9 == pytest.approx(1.4, abs=0.1)
    found = estimate(settings, shape.config, Facts(attempts=8.0, test=1319))
    assert found.memory["weights"] == pytest.approx(32.5, abs=0.2)


def test_a_cpu_computes_in_float32_and_has_no_hours(capsys):
    words = ["estimate", "--profile", "a2d-0.6b-gsm8k", "--preset", "small", "--hardware", "cpu"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "(weights 2.4," in out and "TFLOP/s" not in out


def test_a_denoising_step_also_computes_the_adapter_and_the_head_at_its_masks():
    shape = Shape(LladaConfig(), lora_parameters(LladaConfig(), params()))
    adapter, head = 2 * 456 * 167.8e6, 2 * 4096 * 126464  # 0.153 TFLOP, and 0.001 a position
    step = shape.denoising_step(456, masked=32)
    assert step - shape.forward(456) == pytest.approx(adapter + 32 * head, rel=0.001)
    # two tokens a step: 32, 30, ... 2 masks, on average 17
    answer = shape.answer(200, params().sampling)
    assert answer == pytest.approx(128 * shape.denoising_step(456, masked=17))


def test_a_run_is_its_rollouts_states_and_evaluations():
    found = cost()
    step, plain = 6.645e12, 6.492e12  # of one row, with the adapter and without
    trajectories = 500 / 4 * 4  # 125 collects of 4 prompts feed 4 updates each
    assert found.rollouts == pytest.approx(trajectories * 1.8 * 128 * step / 1e15, rel=0.01)
    assert found.training == pytest.approx(trajectories * 112 * 19.98e12 / 1e15, rel=0.01)
    at_512 = Shape(LladaConfig(), 0).answer(200, params().evaluate.protocols["512"])
    adapters = 256 * 2 * 712 * 167.8e6
    tests = 1319 * (128 * (step + plain) + 2 * at_512 + adapters)
    selection = 256 * 128 * (20 * step + plain)  # 20 checkpoints and the base
    assert found.selection == pytest.approx(selection / 1e15, rel=0.01)
    assert found.test == pytest.approx(tests / 1e15, rel=0.01)
    on_test = cost("select.split=test")
    assert on_test.selection == pytest.approx(found.selection * 1319 / 256)
    assert on_test.test == pytest.approx(found.test - 1319 * 128 * (step + plain) / 1e15, rel=0.01)
    one_update_a_trajectory = cost(preset="paper")
    assert one_update_a_trajectory.rollouts == pytest.approx(4 * found.rollouts)
    raced = cost(preset="fast")  # 1664 answers at half of the steps, then base, 2 leaders and last
    scored = 128 * (1664 / 2 * step + 256 * (3 * step + plain))
    assert raced.selection == pytest.approx(scored / 1e15, rel=0.01)
    assert raced.test == pytest.approx(1319 * 128 * (step + plain) / 1e15, rel=0.01)
    assert (raced.rollouts, raced.training) == (found.rollouts, found.training)


def test_recordings_are_the_bases_answers_to_all_training_problems_one_token_a_step():
    settings = params("matrix.methods=[d3llm]")
    found = estimate(settings, LladaConfig(), FACTS)
    wrong = 0.4453  # 1 + 0.4453 + ... + 0.4453^7 = 1.8 attempts; five tries take 1.771
    sampling = settings.sampling.model_copy(update={"steps": 256})
    answer = Shape(LladaConfig(), 0).answer(200, sampling)
    assert fails(1.8, 8) == pytest.approx(wrong, abs=0.001)
    assert found.recording == pytest.approx((7473 - 256) * 1.771 * answer / 1e15, rel=0.001)
    assert found.total == found.run + found.recording


def test_processes_with_few_problems_wait_for_each_other():
    """Two problems, two attempts of which half are right: a wave of 2, then one of 2, 1 or 0."""
    assert rounds(2, 2, 0.5, 1) == pytest.approx(3)  # two attempts, each again with 0.5
    assert rounds(2, 2, 0.5, 2) == pytest.approx(1 + 0.25 + 0.5)
    assert rounds(1, 8, 0.9, 8) == 1  # attempts ahead: all at once
    four = cost(hardware="4x80gb")
    assert 0.3 < four.rollout_share < 0.34
    assert four.longest(4) > four.total / 4
    assert cost("train.prompts_per_collect=1100", hardware="4x80gb").rollout_share == 0.25


def test_a_matrix_has_sums_and_no_run_without_solutions(capsys):
    words = ["--profile", "llada-8b-countdown", "--hardware", "8x80gb", "--set"]
    words += ["matrix.methods=[sft, d_opsd]", "--set", "matrix.seeds=[0,1]"]
    assert main(["estimate", *words]) == 0
    said = capsys.readouterr().out
    each = re.search(r"1 x h100-80gb: about ([0-9.]+) hours", said)[1]
    total = re.search(
        r"2 runs on 1 x h100-80gb, .*: about ([0-9.]+) hours; 2 at a time: about (.*) h", said
    )
    assert float(total[1]) == pytest.approx(2 * float(each), abs=0.11) and total[2] == each
    assert "sft on one" not in said and "note: countdown/sft: no run, since sft needs" in said
    assert "`dopsd launch --at-once 2 repro`" in said


def test_more_micro_batch_states_need_more_memory_and_nf4_less():
    plain = cost().memory
    assert plain["weights"] == pytest.approx(16.03, abs=0.01)
    assert plain["adapter and optimizer"] == pytest.approx(16 * 0.1678, abs=0.01)
    # GB: activations of 28 x 32 x 4096 bytes a token, the adapter in bfloat16, logits
    assert plain["work"] == pytest.approx(8 * 456 * 3.67e-3 + 0.34 + 0.32, rel=0.01)
    # 38, and 8 for the inputs and masks of adapters with dropout
    eager = cost("model.kernels=torch").memory
    assert eager["work"] - plain["work"] == pytest.approx(8 * 456 * 18 * 32 * 4096 / 1e9)
    small = cost("model.quantization=nf4").memory
    assert small["weights"] < 0.4 * plain["weights"]


def test_all_weights_have_copies_gradients_and_moments_of_their_own():
    """8.016e9 weights: 2 bytes to compute with, 4 + 4 + 8 for copy, gradient and moments."""
    off = "train.weights=all", "method.d_opsd.teacher_dropout=false"
    memory, gigabytes = cost(*off, "method.d_opsd.teacher=base").memory, 8.015581184
    assert memory["weights"] == pytest.approx(2 * gigabytes, rel=1e-3)
    assert memory["all weights and optimizer"] == pytest.approx(16 * gigabytes)
    assert memory["frozen copy"] == pytest.approx(2 * gigabytes)
    average = cost(*off, "method.d_opsd.teacher=ema").memory
    assert average["moving average"] == pytest.approx(4 * gigabytes)
    assert "frozen copy" not in average
    alone = cost(*off, "matrix.methods=[just_grpo]").memory
    assert alone.keys() == {"weights", "all weights and optimizer", "work"}
    blocks = 2 * 456 * 32 * (4 * 4096**2 + 3 * 4096 * 12288)  # of a forward's products
    shape, adapted = (Shape(LladaConfig(), n) for n in (0, 1))
    assert shape.state(456, False) - adapted.state(456, False) == pytest.approx(blocks, rel=1e-6)
    said = lines(cost(*off), 1, ["h100-80gb"], Facts(8.0, 1))
    assert "DOES NOT FIT 80 GB: train.weights: lora" in said[-1]


@pytest.mark.parametrize(
    ("trains_all", "kernels"), [(False, "torch"), (True, "torch"), (True, "liger")]
)
def test_bytes_of_a_layer_are_those_that_autograd_keeps(trains_all: bool, kernels: str):
    def kept(layers: int) -> int:
        shape = {"d_model": 512, "n_heads": 4, "n_kv_heads": 4, "mlp_hidden_size": 1536}
        model = LladaForMaskedLM(
            LladaConfig(**IDS, embedding_size=32, n_layers=layers, **shape)
        ).bfloat16()
        if not trains_all:
            attach(model, AdapterConfig(r=4, dropout=0.0), 0)
        if kernels == "liger":
            model.fuse()
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        found: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> Tensor:
            found[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = model.train().model(torch.zeros(1, TOKENS, dtype=torch.long))
        assert out.requires_grad
        return sum(t.untyped_storage().nbytes() for place, t in found.items() if place not in own)

    bytes_of_layer = (kept(3) - kept(1)) / 2 / TOKENS / 512
    block = KERNEL_BYTES[kernels]
    expected = block.kept + (block.whole if trains_all else 0)
    assert bytes_of_layer == pytest.approx(expected, abs=0.5)


def test_many_rollouts_need_the_memory_of_their_blocks_and_few_that_of_their_logits():
    def work(rows: int) -> float:
        small = "train.micro_batch_states=1", "train.gradient_checkpointing=true"
        return cost(f"sampling.batch_size={rows}", *small).memory["work"]

    assert work(64) == pytest.approx(64 * 456 * 4096 * 24 / 1e9)
    assert work(128) == pytest.approx(2 * work(64))
    assert work(32) == pytest.approx(2**26 * 23 / 1e9 + 32 * 456 * 4096 * 2 / 1e9, rel=0.01)


def test_recordings_work_in_memory_of_their_own():
    plain, graphs = cost().memory, cost("model.cuda_graphs=true").memory
    forwards = 24 * 16 * 712 * 4096 / 1e9  # 512 tokens
    assert graphs == plain | {"graphs": pytest.approx(forwards)}  # an update with dropout has none
    exact = "train.lora.dropout=0.0", "sampling.batch_size=1"  # the work is that of an update
    plain, graphs = cost(*exact).memory, cost("model.cuda_graphs=true", *exact).memory
    gradients = plain["adapter and optimizer"] / 4  # 4 of 16 bytes
    assert graphs["graphs"] == pytest.approx(forwards + plain["work"] + gradients)


def test_what_does_not_fit_is_reported():
    cost = Cost(1.0, 1.0, 1.0, 1.0, {"weights": 90.0}, rollout_share=0.5)
    said = lines(cost, 2, ["h100-80gb", "h200"], Facts(8.0, 1))
    assert "DOES NOT FIT 80 GB" in said[3] and "; fits" in said[4]
    assert "2 x h200: about 0 minutes at 50%" in said[4]


def test_small_costs_have_two_digits():
    cost = Cost(0.0042, 0.001, 0.0, 0.002, {"weights": 0.0421, "work": 0.1})
    said = lines(cost, 1, [], Facts(8.0, 1))
    assert said[0].startswith("0.0072 PFLOP = 0.0042 rollouts + 0.001 training + 0 checkpoints")
    assert said[2] == "memory of each process: about 0.14 GB (weights 0.042, work 0.1)"


def test_a_base_between_two_measured_sizes_uses_a_share_between_theirs():
    sizes, shares = (1e8, 0.135e9, 0.6e9, 8e9, 1e11), (0.12, 0.12, 0.14, 0.5, 0.5)
    assert [utilisation(size) for size in sizes] == pytest.approx(shares)
    assert utilisation((0.6e9 * 8e9) ** 0.5) == pytest.approx((0.14 + 0.5) / 2)


def test_a_loss_over_whole_completions_has_more_logits_than_one_over_a_block():
    def work(method: str) -> float:
        settings = f"matrix.methods=[{method}]", f"method.{method}.train.lora=null"
        return cost(*settings).memory["work"]

    entries = 8 * 126_464 / 1e9  # of 8 sequences
    for method, size in {"espo": 256 * 12, "spg": 256 * 12, "wd1": 256 * 12}.items():
        assert work(method) - work("d_opsd") == pytest.approx(entries * (size - 32 * 10))
    # 8 steps of 2 tokens; one position
    assert work("trace_rl") - work("just_grpo") == pytest.approx(entries * (16 - 1) * 12)


def test_rollouts_and_updates_of_a_method_are_its_own_forwards():
    """For 64 updates: 256 tokens, 128 steps; operations of one sequence from the shape."""

    def of(method: str) -> Cost:
        settings = params(f"matrix.methods=[{method}]", f"method.{method}.train.updates=64")
        assert vars(settings.method)[method].train.lora is None
        return estimate(settings, LladaConfig(), FACTS)

    shape = Shape(LladaConfig(), lora_parameters(LladaConfig(), params()))
    trained, plain = shape.trained(456, False) / 1e15, shape.forward(456) / 1e15
    found = of("spg")  # 16 collects of 16 problems, 6 rollouts, 2 masks in each of 4 updates
    answer = 128 * shape.denoising_step(456, masked=17) / 1e15
    assert found.rollouts == pytest.approx(16 * 16 * 6 * answer)
    assert found.training == pytest.approx(16 * 16 * 6 * 4 * 2 * trained)
    found = of("just_grpo")  # 64 collects of 64 problems, 16 rollouts of 256 steps and positions
    answer = 256 * shape.denoising_step(456, masked=1) / 1e15
    assert found.rollouts == pytest.approx(64 * 64 * 16 * answer)
    assert found.training == pytest.approx(64 * 64 * 16 * 256 * trained)
    found = of("trace_rl")  # 8 collects of 32 problems, 8 rollouts of 16 states
    assert found.training == pytest.approx(8 * 32 * 8 * 16 * (trained + plain))


@pytest.mark.parametrize("method", [*methods_with(GroupConfig), "d_opsd"])
def test_forwards_and_logits_of_a_method_are_those_that_it_says(project, monkeypatch, method: str):
    """Texts without an end, and rewards with advantages: nothing is left out."""
    values = {"just_grpo": {"after_end": True}, "temporal": {"weight": "none"}}.get(method, {})
    values |= {"record": "all", "keep": "all"} if method == "d_opsd" else {"group_size": 2}
    write_params(**{f"method__{method}__{key}": value for key, value in values.items()})
    run = load_params().run("sudoku", method, 0)
    loop, problems = Trainer(run, Accelerator(cpu=True)), run.train.prompts_per_collect
    loop.policy.suppress_tokens = [*loop.policy.suppress_tokens, loop.policy.eos_id]
    monkeypatch.setattr(RewardedGroups, "_rewards", lambda *_: ([0.0, 1.0], [False, True]))
    said = run.algorithm.forwards(run.sampling)
    steps = run.algorithm.sampling_of(run.sampling).steps
    sampled = problems * said.rollouts * steps
    heads, head = [], loop.policy.head
    with torch.no_grad():
        collects = forwards(loop.policy, lambda: loop.collect())
    monkeypatch.setattr(
        loop.policy, "head", lambda h: heads.append(h.shape[:-1].numel()) or head(h)
    )
    updates = [part for update in loop.waiting for batch in update for part in batch.split(1)]
    trained = sum(
        forwards(loop.policy, lambda p=part: loop.algorithm.loss(loop.policy, p))
        for part in updates
    )
    teacher = said.scored if method == "d_opsd" else 0  # inside the loss
    assert collects == sampled + problems * (said.scored - teacher)
    assert trained == problems * (said.trained + teacher)
    assert len(loop.waiting) == run.algorithm.updates_of_collect
    bytes_each = DISTILLATION_BYTES if method == "d_opsd" else CROSS_ENTROPY_BYTES
    most = run.algorithm.logit_bytes(run.sampling) / bytes_each
    sequences = max(part.forwards for part in updates)
    assert max(heads) <= most * sequences
    if method in {"just_grpo", "trace_rl", "diffu_grpo", "wd1"}:
        assert max(heads) == most * sequences


def test_every_method_of_the_matrix_has_an_estimate_if_it_counts_its_forwards(capsys, monkeypatch):
    command = ["estimate", "--profile", "llada-8b-gsm8k", "--set", "matrix.methods=[wd1, spg]"]
    assert main(command) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if "at full size" in line]
    assert [head.split()[3] for head in heads] == ["wd1", "spg"]
    monkeypatch.setattr(SpgConfig, "forwards", AlgorithmConfig.forwards)
    assert main(command) == 0
    assert capsys.readouterr().out.count("without its updates: spg does not count") == 1


def test_what_a_race_saves_is_said_where_it_does_and_what_that_rests_on(capsys):
    def said(*words: str) -> list[str]:
        assert main(["estimate", "--profile", "llada-8b-gsm8k", *words]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if "race" in line]

    (offered,) = said()
    assert "36% of these PFLOP" in offered and "50% of their steps" in offered
    (assumed,) = said("--preset", "fast")
    assert assumed.startswith("assumes: ") and "50% of their steps" in assumed
    assert not said("--preset", "small", "--set", "train.updates=36")  # of three checkpoints


def test_answers_that_end_early_cost_what_they_take():
    every, ended = cost(), cost(facts=Facts(attempts=1.8, test=1319, used=64))
    assert ended.selection / every.selection == pytest.approx(64 / 256)  # of the protocol 256
    assert ended.test < every.test / 4  # that of 512 tokens takes 64 of them too
    assert ended.rollouts == every.rollouts  # sampling.stop_after_eos is off


def test_the_length_of_answers_is_that_of_the_base_that_was_evaluated(here):
    assert facts_of(params(), "gsm8k").used is None
    Path("runs/gsm8k").mkdir(parents=True)
    Path("runs/gsm8k/base.json").write_text(json.dumps({"256": {"steps": 96.0}}))
    assert facts_of(params(), "gsm8k").used is None  # of another base: this one is not here
    Path(params().model.path).mkdir(parents=True)
    assert facts_of(params(), "gsm8k").used == 192.0  # of 256 tokens in 128 steps


def test_making_the_base_of_an_autoregressive_model_is_counted():
    """All weights: 2 operations forward, 4 backward; attention 4 each way; 64 texts an update."""
    changes = ["adapt.tasks=[gsm8k]", "adapt.source=models/x", "adapt.learn={train: {updates: 10}}"]
    shape = Shape(LladaConfig(), 0)
    text = 6 * 456 * shape.block_parameters + 3 * shape.attention(456, 456)
    found = cost(*changes)
    sampled = shape.answer(200, params().sampling)
    look = 32 * 3 * text / 3 + sampled  # forwards alone, and an answer; before, and at the last
    assert found.adapting * 1e15 == pytest.approx(640 * text + 2 * look)
    both = cost(*changes, "adapt.distill={train: {updates: 5}}")
    # an answer, and a state of it, seen twice
    distilled = 320 * (sampled + text + shape.forward(456))
    assert (both.adapting - found.adapting) * 1e15 == pytest.approx(distilled)
