"""lm-evaluation-harness runs the model `dopsd`, and scores GSM8K's generations beside us."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import ROOT, write_params
from texts import golden, needs_golden

from dopsd.core.errors import DopsdError
from dopsd.tasks.registry import TASKS, load_task

pytest.importorskip("lm_eval", reason="needs the extra lm-eval")

TASK_FILES = ROOT / "examples/lm_eval"
CHAT = [{"role": "user", "content": "0410020420430020"}]


def model(base: str = "base/sudoku", **options: object):
    from dopsd.serving.lm_eval import HarnessModel

    lengths = {"gen_length": 40, "block_length": 8, "steps": 20}
    return HarnessModel(str(ROOT / base), **lengths | options)


def asked(*arguments: object) -> SimpleNamespace:
    return SimpleNamespace(args=arguments)


def test_answers_are_those_of_our_sampler_up_to_the_stop_text():
    import dopsd

    harness = model()
    context = harness.apply_chat_template(CHAT)
    greedy = {"until": [], "do_sample": False, "temperature": 1.0}  # as HF models read it
    whole, cut = harness.generate_until(
        [asked(context, greedy), asked(context, {"until": ["</answer>", "x"]})]
    )
    (rollout,) = dopsd.sample(harness.policy, [CHAT[0]["content"]], dopsd.run_settings("embedded"))
    assert whole == harness.policy.text.decode(rollout.completion_ids)
    assert cut == whole.partition("</answer>")[0] != whole
    harness.text.end_of_turn = "</answer>"  # as <|eot_id|> of LLaDA
    assert harness.generate_until([asked(context, {"until": "x"})]) == [cut]


def test_the_likelihood_of_one_token_is_exact_and_of_two_the_mean_over_all_masks():
    harness = model(draws=400)
    policy, context = harness.policy, harness.apply_chat_template(CHAT)
    prompt = harness._ids(context)

    def logps(shown: list[int], targets: list[int]) -> torch.Tensor:
        """ln p of each target, where the tokens `shown` (or masks) stand. [len(targets)]."""
        ids = torch.cat([prompt, torch.tensor(shown)])[None]
        hidden = policy.hidden(ids, None)[0, -len(targets) :]
        return policy.head(hidden).log_softmax(-1)[range(len(targets)), targets]

    a, b = harness._ids("<reasoning>").item(), harness._ids("1").item()
    mask = policy.mask_id
    with torch.no_grad():
        one, two = logps([mask], [a]), logps([mask, mask], [a, b])
        alone = [logps([mask, b], [a, b])[0], logps([a, mask], [a, b])[1]]
    (found, is_greedy), (both, _) = harness.loglikelihood(
        [asked(context, "<reasoning>"), asked(context, "<reasoning>1")]
    )
    assert found == pytest.approx(one.item(), abs=1e-5)
    with torch.no_grad():
        hidden = policy.hidden(torch.cat([prompt, torch.tensor([mask])])[None], None)[0, -1]
        assert is_greedy == (policy.head(hidden).argmax().item() == a)
    # one of the two masked (twice its ln p, each with probability 1/4), or both (1/2)
    expected = (alone[0] + alone[1]) / 2 + two.sum() / 2
    assert both == pytest.approx(expected.item(), abs=0.15 * abs(expected.item()) + 0.05)
    (rolling,) = harness.loglikelihood_rolling([asked("1")])
    with torch.no_grad():  # of one token, with nothing before it
        hidden = policy.hidden(torch.tensor([[mask]]), None)[0, 0]
        assert rolling == pytest.approx(policy.head(hidden).log_softmax(-1)[b].item(), abs=1e-5)
    assert harness.loglikelihood_rolling([asked("")]) == [0.0]
    assert harness.loglikelihood([asked(context, "")]) == [(0.0, True)]
    (spaced,) = harness.loglikelihood([asked("a ", "b")])
    assert spaced == harness.loglikelihood([asked("a", " b")])[0]  # as LLaDA splits them


def test_a_block_causal_base_scores_continuations_of_any_length():
    harness = model("base/sudoku_blocks")
    context = harness.apply_chat_template(CHAT)
    found = harness.loglikelihood([asked(context, "<reasoning>12"), asked(context, "1" * 11)])
    assert all(-torch.inf < bound < 0 for bound, _ in found)


def test_a_protocol_runs_as_it_is_and_the_harness_may_begin_an_answer(project):
    from dopsd.serving.lm_eval import HarnessModel

    changes = {"gen_length": 40, "block_length": 8, "steps": 20, "batch_size": 32}
    write_params(evaluate__protocols={"greedy": changes | {"prefill": "<reasoning>"}})
    harness = model(protocol="greedy", batch_size=1)  # 1 is what the harness assumes
    assert harness.protocol.batch_size == 32 and model(batch_size=4).protocol.batch_size == 4
    words = {"path": str(ROOT / "base/sudoku"), "protocol": "greedy", "batch_size": 4}
    created = HarnessModel.create_from_arg_obj(words, {"batch_size": 1, "device": None})
    assert created.protocol.batch_size == 4
    begun = harness.apply_chat_template(CHAT) + "<reasoning>"
    turns = [*CHAT, {"role": "assistant", "content": "<reasoning>"}]
    assert harness.apply_chat_template(turns, add_generation_prompt=False) == begun
    asks = [asked(harness.apply_chat_template(CHAT), {})]
    plain = model().generate_until([asked(begun, {})])
    assert harness.generate_until(asks) == plain != model().generate_until(asks)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("pretrained=base/sudoku", "model_args: pretrained: unknown; did you mean path?"),
        ("path=x,peft=y", "model_args: peft: unknown; did you mean adapter?"),
        ("paht=base/sudoku", "did you mean path?"),
        ("trust_remote_code=True", "model_args: trust_remote_code: unknown; there is path,"),
        ("gen_length=40", "model_args: path is missing"),
        ("", "model_args: path is missing"),
        ("path=", "model_args: path is missing"),
        ("path=5", "no config.json in 5"),
        ("path=base/sudoku,adapter=5", "5: no such folder"),
        ("path=base/sudoku,dtype=16", "dtype 16: unknown"),
        ("path=base/sudoku,draws=many", "model_args: draws: expected a whole number from 1 on"),
        ("path=base/sudoku,draws=0", "model_args: draws: expected a whole number from 1 on"),
        ("path=base/sudoku,seed=1.5", "model_args: seed: expected a whole number"),
        ("path=base/sudoku,block_size=x", "block_size x: expected a whole number"),
        ("path=base/sudoku,device=nowhere", "device nowhere"),
        ("path=base/sudoku,protocol=gredy", "did you mean greedy"),
        ("path=base/sudoku,step=20", "did you mean steps"),
        ("path=base/sudoku,gen_length=100,block_length=32", "multiple of block_length 32"),
        ("path=base/sudoku,gen_length=abc,steps=20", "gen_length Input should be a valid"),
        ("path=base/sudoku,autocast=float16", "for `dopsd evaluate --protocol`"),
    ],
)
def test_words_of_the_command_line_are_refused_in_one_line(words: str, said: str, monkeypatch):
    from lm_eval.utils import simple_parse_args_string

    from dopsd.serving import lm_eval as command

    monkeypatch.chdir(ROOT)
    given = {"batch_size": 1, "device": None}  # as the harness adds them
    for make, argument in (
        (command.HarnessModel.create_from_arg_obj, simple_parse_args_string(words)),
        (command.HarnessModel.create_from_arg_string, f"{words},batch_size=2"),
    ):
        with pytest.raises(DopsdError) as found:
            make(argument, given)
        assert said in str(found.value) and found.value.exit_code == 2
        assert len(str(found.value).splitlines()) == 1


@pytest.mark.full
def test_the_harness_itself_runs_the_model_and_a_refusal_is_one_line(tmp_path, monkeypatch, capsys):
    from dopsd.serving import lm_eval as command

    rows = [{"prompt": f"{n}" + "0" * 14, "answer": "1234341221434321"} for n in (12, 34, 41)]
    data = tmp_path / "data/sudoku/test.jsonl"
    data.parent.mkdir(parents=True)
    data.write_text(
        "".join(json.dumps(row | {"prompt": row["prompt"][:16]}) + "\n" for row in rows)
    )
    words = ["-m", "dopsd.serving.lm_eval", "run", "--model", "dopsd", "--tasks", "sudoku_local"]
    words += ["--include_path", str(TASK_FILES), "--apply_chat_template", "--output_path", "out"]
    path = f"path={ROOT / 'base/sudoku'},gen_length=40,block_length=8,steps=20"
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    env = {**os.environ, **offline, "PYTHONPATH": str(ROOT)}
    command_line = [sys.executable, *words, "--model_args", path]
    ran = subprocess.run(command_line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (results,) = tmp_path.glob("out/*/results_*.json")
    found = json.loads(results.read_text())["results"]["sudoku_local"]
    assert found["sample_len"] == 3 and "exact_match,last-grid" in found
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["lm_eval", *words[2:], "--model_args", "path=nowhere"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "nowhere" in capsys.readouterr().err.splitlines()[-1]


@needs_golden
@pytest.mark.full
def test_every_difference_to_the_harness_on_gsm8k_is_the_one_that_the_docs_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from lm_eval import simple_evaluate
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

    rows = list(golden("gsm8k"))
    texts = {row["question"]: row["generation"] for row in rows}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    Path("data/gsm8k").mkdir(parents=True)
    answers = ["" if (v := row["ground_truth"]) is None else f"{v:.10g}" for row in rows]
    lines = [
        json.dumps({"prompt": row["question"], "answer": answer}) + "\n"
        for row, answer in zip(rows, answers, strict=True)
    ]
    Path("data/gsm8k/test.jsonl").write_text("".join(lines))

    class Replay(LM):
        """Answers each problem with its published generation."""

        def generate_until(self, requests):
            return [texts[request.doc["prompt"]] for request in requests]

        def loglikelihood(self, requests):
            raise NotImplementedError

        loglikelihood_rolling = loglikelihood

    tasks = TaskManager(include_path=str(TASK_FILES))
    found = simple_evaluate(
        Replay(), tasks=["gsm8k_local"], task_manager=tasks, log_samples=True, bootstrap_iters=0
    )
    samples = found["samples"]["gsm8k_local"]
    theirs = {(sample["filter"], sample["doc"]["prompt"]): sample for sample in samples}
    task = load_task("gsm8k", TASKS.config_class("gsm8k")())
    pairs, why = Counter(), Counter()
    for row in rows:
        problem = task.of_generation(row["question"], row["ground_truth"])
        ours = task.verify(problem, row["generation"])
        sample = theirs["flexible-extract", row["question"]]
        assert theirs["strict-match", row["question"]]["exact_match"] == 0  # nobody wrote ####
        pairs[ours.score == 1, sample["exact_match"] == 1] += 1
        (taken,) = sample["filtered_resps"]
        if ours.score == 1 and sample["exact_match"] != 1:
            text, right = row["generation"].replace(",", ""), f"{row['ground_truth']:.10g}"
            later = text.rfind(taken.replace(",", "")) > text.rfind(right) >= 0
            number = "a later number" if later else "another"
            why["3.0 is not 3" if float(taken) == row["ground_truth"] else number] += 1
        if ours.score != 1 and sample["exact_match"] == 1:
            why["no answer in the format" if ours.answer is None else "another"] += 1
    assert pairs == {(True, True): 853, (True, False): 20, (False, True): 19, (False, False): 238}
    assert why == {"3.0 is not 3": 15, "a later number": 5, "no answer in the format": 19}
