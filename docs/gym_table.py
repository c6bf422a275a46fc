"""`python docs/gym_table.py FOLDER [GGUF]`: write the table of docs/reasoning-gym.md.

Tokens are those of the tokenizer in the folder.
"""

import sys
from pathlib import Path

from settings_reference import table
from transformers import AutoTokenizer

from dopsd.pipeline.task_check.library import note_of
from dopsd.tasks.reasoning_gym.task import listed

PAGE = Path(__file__).with_name("reasoning-gym.md")
HEAD = ["dataset", "the question ends with", "answer", "tokens", "note"]


def shown(text: str | None, start: int | None, end: int | None) -> str:
    """Return a part of a text as code in a cell."""
    words = " ".join((text or "").split())
    cut = words[start:end].replace("`", "'").replace("|", "\\|").strip()
    mark = "…" if len(words) > len(words[start:end]) else ""
    return f"`{mark if start else ''}{cut}{'' if start else mark}`" if cut else ""


def main(folder: str, file: str | None = None) -> None:
    """Write the table between the page's marks."""
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    rows = []
    for row in listed():
        question, answer = row["question"], row["answer"]
        counts = [str(len(tokenizer.encode(text or ""))) for text in (question, answer)]
        cells = [f"`{row['dataset']}`", shown(question, -50, None)]
        cells += [shown(answer, None, 30), " + ".join(counts)]
        rows.append([*cells, note_of(row["dataset"])])
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition("<!-- datasets -->\n")
    after = rest.partition("<!-- end -->")[2]
    made = f"{before}<!-- datasets -->\n{table(HEAD, rows)}\n<!-- end -->{after}"
    PAGE.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
