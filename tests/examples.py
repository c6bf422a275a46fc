"""Sound examples of what the parsers read, and names and settings that are garbage."""

PUZZLE, GRID = "0234341221434320", "1234341221434321"


def generation(question: str, truth: object, answer: str) -> dict[str, object]:
    text = f"<answer>{answer}</answer>"
    return {"question": question, "ground_truth": truth, "generation": text}


ROWS = {  # a generation of each task, where the published ones are not at hand
    "sudoku": generation(f"Solve: {PUZZLE}", GRID, GRID),
    "gsm8k": generation("2 + 2?", 4.0, r"\boxed{4}"),
    "math500": generation("Half?", r"\frac12", r"\boxed{\frac{1}{2}}"),
    "countdown": generation("", [[49, 55, 53], 51], r"\boxed{49+55-53}"),
    "chains": generation("3 *4 -1", "1", "1"),
}
SOURCES = {  # rows as the datasets have them
    "sudoku": {"Puzzle": PUZZLE, "Solution": GRID},
    "gsm8k": {"question": "2 + 2?", "answer": "It is 4.\n#### 4"},
    "math500": {"problem": "Half?", "solution": r"It is \boxed{\frac12}", "answer": r"\frac12"},
    "countdown": {"nums": [49, 55, 53], "target": 51},
    "traces": {"question": "2 + 2?", "response": "4"},
}
FEWEST = "evaluate: {protocols: {greedy: {gen_length: 40, block_length: 4, steps: 40}}}\n"
FEWEST += "ablate: {tables: {few: []}}\n"
SETTINGS = """\
matrix: {tasks: [sudoku], methods: [d_opsd, sft], seeds: [0, 1]}
data:
  sudoku: {train: 64, test_file: null, seed: 0}
  gsm8k: {train: {path: data/external/a.jsonl, name: main, split: train, revision: null}, limit: 5}
  mine: {type: custom, train: {path: data/external/rows.csv}, test: 5, verifier: {type: number}}
train: {updates: 10, learning_rate: 3.0e-3, betas: [0.9, 0.99], lora: {r: 8, targets: [q_proj]}}
method:
  d_opsd: {clip: 0.05, train: {updates: 5}}
evaluate:
  protocols:
    greedy: {gen_length: 40, block_length: 4, steps: 40}
  bootstrap: 100
ablate:
  variants: {default: {}, live_teacher: {teacher: live}}
  tables: {teachers: [default, live_teacher]}
tracking: {enabled: false, uri: null, experiment: dopsd, registered_model: dopsd}
"""
KEYS = [
    *("train.updates", "matrix.seeds", "evaluate.protocols.greedy.steps"),
    *("ablate.variants.x.teacher", "tracking.experiment", "data.gsm8k.train.path"),
    *("method.d_opsd.clip", "train", "x", "", ".", "a..b", "evaluate.protocols.../x"),
    *("train.lora.r", "matrix.methods", "ablate.tables.../x", "train.betas", "sampling.gen_length"),
    *("data.sudoku.test_file", "\ud800", "a\nb"),
]
VALUES = [
    *(None, -1, 0.5, float("nan"), 10**400, "x" * 1000, "\ud800", "../x", [], {}, [[]]),
    *({"a": {"b": 1}}, "null", "2001-01-01"),
]
STATE = {"update": 4, "counters": {"rollouts": 8}, "waiting": 0, "empty_in_a_row": 0, "spent": 1.5}
STATE |= {"cpu_spent": 1.0, "memory": {"micro_batch_states": 8, "gradient_checkpointing": False}}
STATE |= {"ranks": 1, "scores": [0.5], "squares": [0.1], "gathered": {"loss": [1.0, 2.0]}}
COMMANDS = [  # words of commands, a name in place of @
    *("compare @", "compare sudoku/d_opsd/@", "compare sudoku/@/0", "compare @/d_opsd/0"),
    *(
        f"{stage} --task=@"
        for stage in ("prepare", "pretrain", "evaluate-base", "verify-teacher", "record", "sample")
    ),
    *(f"{stage} --method=@" for stage in ("train", "evaluate", "select", "test", "report")),
    *(f"{stage} --seed=@" for stage in ("select", "test", "report")),
    *(
        f"evaluate --{key}=@"
        for key in ("protocol", "adapter", "model", "prompt-file", "split", "update", "attempts")
    ),
    *("ablate -- @", "score --task @ x.jsonl", "score --task=gsm8k @", "sample -- @"),
    *("push @ --dry-run", "push a/b --dry-run --revision=@", "push a/b --dry-run --adapter=@"),
    *("export --merged --adapter=@ --out=exported", "sample --adapter=@", "sample --temperature=@"),
    *("params --profile=@", "params --preset=@ --profile=llada-8b-gsm8k", "check --params=@"),
]
DOCUMENTS = [
    *("? [a]\n: b", "? {a: b}\n: c", "train: {updates: 1, updates: 2}", "a: 1\n\tb: 2", "- a", "5"),
    *("", "train: !!timestamp x", "train: !!binary x", "train: !!set {a}", "train: !!omap [a: 1]"),
    *("%YAML 99.9\n---\n{}", "%YAML 1.1\n---\na: 1:2", "evaluate: {protocols: {../x: {}}}"),
    *("evaluate: {protocols: {'a/b': {}}}", "evaluate: {protocols: {'a\n': {}}}", "1: 2"),
    *("null: null", "~", "=: =", "ablate: {tables: {../x: []}}"),
    *("ablate: {variants: {default: {}, ../x: {}}}", "tracking: {registered_model: ../x}"),
    *("\n".join(f"k{n}: 1" for n in range(400)), "- " * 4000),
]
NAMES = [
    *("../outside", "../../outside", "/{root}/outside", "a/../../outside", "..", ".", "", " ", "~"),
    *("~root", "con\0", "a\nb", "\n", "\t", "a/b", "-", "--", "-x", "*", "?", "a" * 300, "\u0663"),
    *("\u00b2", "\u00b2\u00b2\u00b2", "9" * 5000, "\udcff", "\ud800", "[/b]", "%s", "{0}", "$(id)"),
    *("sudoku/../x", "sudoku", "d_opsd", "0", "d_opsd-default", "d_opsd-../x", "greedy"),
    *("./greedy", "sudoku/d_opsd/0", "NaN", "nul", "C:\\x", "\\\\host\\x", "file:///x"),
]
