"""Rows from files and the hub, and how they become splits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow
import pytest
from pyarrow import parquet

from dopsd.core.errors import Code, DopsdError
from dopsd.tasks.common.config import Source
from dopsd.tasks.common.sources import read_rows
from dopsd.tasks.custom.rows import as_text
from dopsd.tasks.gsm8k.config import Gsm8kConfig
from dopsd.tasks.gsm8k.task import Gsm8k

KEY = "data.gsm8k.train.path"
DIGITS = b"12345" * 1000


def values(path: Path) -> list[dict]:
    return [row.values for row in read_rows(Source(path=str(path)), KEY)]


def jsonl(path: Path, rows: list[object]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_csv_keeps_leading_zeros_and_quoted_lines(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeffPuzzle,Note\n0012,"two\nlines"\n\n0300,x\n')
    rows = list(read_rows(Source(path=str(path)), KEY))
    assert rows[0].values == {"Puzzle": "0012", "Note": "two\nlines"}
    assert rows[1].values == {"Puzzle": "0300", "Note": "x"} and len(rows) == 2
    assert rows[-1].place == f"{path}:5"


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("frage;antwort", "1,5+1=;2,5"),
        ("frage\tantwort", "1,5+1=\t2,5"),
        ('"frage";"antwort"', '"1,5+1=";"2,5"'),
        ("frage,antwort", '"1,5+1=","2,5"'),
    ],
)
def test_a_csv_of_a_spreadsheet_may_have_other_separators(tmp_path: Path, header: str, row: str):
    path = tmp_path / "a.csv"
    path.write_bytes(f"\ufeff{header}\r\n{row}\r\n".encode())
    assert values(path) == [{"frage": "1,5+1=", "antwort": "2,5"}]


def test_marks_in_the_quotes_of_a_header_do_not_separate(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_text('"a, b, or c";d\n1;2\n')
    assert values(path) == [{"a, b, or c": "1", "d": "2"}]
    path.write_text(f'"a, b\nor, c, d";e\n1;2\n3;{"x" * 200_000}\n')
    first, second = read_rows(Source(path=str(path)), KEY)
    assert (first.values, first.number) == ({"a, b\nor, c, d": "1", "e": "2"}, 3)
    assert (len(second.values["e"]), second.number) == (200_000, 4)


def test_numbers_are_the_text_that_the_file_has(tmp_path: Path):
    texts = ["0.00001", "1.10", "123456789012345678.12", "-1E-7", "1e400", "2.0"]
    lines = [f'{{"n": {t}, "l": [{t}]}}' for t in texts]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "a.json").write_text(f"[{', '.join(lines)}]")
    for name in ("a.jsonl", "a.json"):
        found = [(as_text(v["n"]), as_text(v["l"])) for v in values(tmp_path / name)]
        assert found == [(t, f"[{t}]") for t in texts]
    for kind, texts in (
        (pyarrow.float16(), ["0.1", "1.0"]),
        (pyarrow.float32(), ["0.1", "0.00001", "16777216"]),
        (pyarrow.float64(), ["0.1", "0.00001", "12345678901234567000"]),
    ):
        column = pyarrow.array([*map(float, texts), None], pyarrow.float64()).cast(kind)
        lists = pyarrow.array([[x] for x in column.to_pylist()], pyarrow.list_(kind))
        parquet.write_table(pyarrow.table({"n": column, "l": lists}), tmp_path / "a.parquet")
        *found, last = [(as_text(v["n"]), as_text(v["l"])) for v in values(tmp_path / "a.parquet")]
        assert found == [(t, f"[{t}]") for t in texts] and last == (None, "[null]")
    kind = pyarrow.map_(pyarrow.string(), pyarrow.float32())
    table = pyarrow.table({"m": pyarrow.array([[("a", 0.1)]], kind)})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert as_text(values(tmp_path / "a.parquet")[0]["m"]) == '[["a", 0.1]]'


def test_two_columns_of_one_name_in_parquet_are_refused(tmp_path: Path):
    twice = pyarrow.table([[1], [2]], names=["a", "a"])
    inner = pyarrow.StructArray.from_arrays([[1], [2]], names=["b", "b"])
    for table, name in ((twice, "a"), (pyarrow.table({"c": inner}), "b")):
        parquet.write_table(table, tmp_path / "a.parquet")
        with pytest.raises(DopsdError, match=rf"a\.parquet: column '{name}' occurs twice"):
            values(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": \n', r"a\.jsonl:3: expected one JSON object per line"),
        ("a.jsonl", b'{"a": 1}\n[1]\n', r"a\.jsonl:2: expected one JSON object per line"),
        ("a.jsonl", b"[" * 100000, r"a\.jsonl:1: expected one JSON object"),
        ("a.json", b'[{"a": 1}, 2]', r"a\.json: row 2: expected one JSON object"),
        ("a.json", b'[{"a": 1}', r"a\.json: not a JSON array"),
        ("a.jsonl", b'{"a": "\xff"}', r"a\.jsonl: not UTF-8 text"),
        ("a.csv", b"", r"a\.csv:1: expected a header"),
        ("a.csv", b"a,b\n1,2\n3\n", r"a\.csv:3: expected 2 columns .*',' .* line 1, found 1"),
        ("a.csv", b"\n\na;b\n1;2;3\n", r"a\.csv:4: expected 2 columns .*';' .* line 3, found 3"),
        ("a.csv", b"\na\tb\tb\n1\t2\t3\n", r"a\.csv:2: column 'b' occurs twice .*'\\t'; rename"),
        ("a.csv", b'a\n"' + b"x" * 200000, r"a\.csv:2: no csv row begins here"),
        ("a.csv", b'q,a\nA?,1\n"B?,2\n"C?",3\n', r"a\.csv:3: no csv row begins here .*close its"),
        ("a.csv", b'q,a\nA?,1\nB?,"2\nC?,3\n', r"a\.csv:3: no csv row begins here"),
        ("a.csv", b'q,a\n"say \\"x\\"",1\n', r"a\.csv:2: no csv row begins here"),
        ("a.csv", b'q,a\nA?, "1"\n', r"a\.csv:2: a space before a quotation mark"),
        ("a.csv", b"q,a,a\nA?,1,6\n", r"a\.csv:1: column 'a' occurs twice"),
        ("a.csv", b"sep=;\nq;a\nA?;1\n", r"a\.csv:1: 'sep=;' is Excel's, .*remove it"),
        ("a.jsonl", b'{"a": 1}\n{"a": 1, "a": 2}\n', r"a\.jsonl:2: .*key 'a' occurs twice"),
        ("a.jsonl", b'{"a": {"b": 1, "b": 2}}\n', r"a\.jsonl:1: .*key 'b' occurs twice"),
        ("a.json", b'[{"a": 1},\n{"a": 1, "a": 2}]', r"a\.json: row 2: .*key 'a' occurs twice"),
        ("a.json", b'{"q": {"0": "A?"}, "a": {"0": 1}}', r"a\.json: one object of q, a.*'records'"),
        ("a.json", b'{"data": [\n{"q": "A?"}]}', r"a\.json: one object of data"),
        ("a.jsonl", b'{"q": ["A?"], "a": [1]}\n', r"a\.jsonl: one object of q, a"),
        ("a.json", b'[{"a": 1}, {"a": -%b}]' % DIGITS, r"a\.json: row 2: .*of 5000 digits"),
        ("a.json", b'{\n"a": %b\n}' % DIGITS, r"a\.json: .*an integer of 5000 digits, 1234512345"),
        ("a.jsonl", b'{"a": [%b]}\n' % DIGITS, r"a\.jsonl:1: .*of 5000 digits.*; write it as text"),
        ("a.parquet", b"PAR1", r"a\.parquet: not a readable parquet file"),
        ("a.parquet", None, r"a\.parquet: is a folder; name one file, and merge"),
        ("a.txt", b"x", r"data\.gsm8k\.train\.path: .*a\.txt: expected a file that ends in"),
    ],
)
def test_a_malformed_file_is_named_by_place(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content) if content is not None else (tmp_path / name).mkdir()
    with pytest.raises(DopsdError, match=expected) as caught:
        values(tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "path",
    ["none.jsonl", "data/external/none.tsv", "/tmp/none", "./none", "../none.txt", "~/none"],
)
def test_what_no_name_on_the_hub_can_be_is_a_missing_file(path: str):
    with pytest.raises(DopsdError, match=rf"{KEY}: .*none.*: no such file; ") as caught:
        list(read_rows(Source(path=path), KEY))
    assert caught.value.code == Code.SOURCE_MISSING and caught.value.exit_code == 2


def test_the_hub_is_asked_by_name_split_and_revision(monkeypatch: pytest.MonkeyPatch):
    import datasets

    asked = []

    def load_dataset(*where: object, **how: object) -> datasets.Dataset:
        asked.append((where, how))
        columns = datasets.Features(n=datasets.Value("float32"))
        return datasets.Dataset.from_list([{"n": 0.1}], columns)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    (row,) = read_rows(Source(path="openai/gsm8k", name="main", revision="abc"), KEY)
    assert asked == [(("openai/gsm8k", "main"), {"split": "train", "revision": "abc"})]
    assert row.place == "openai/gsm8k[train]:1" and as_text(row.values["n"]) == "0.1"


def test_an_unreachable_hub_is_one_line_with_the_key_and_the_way_out(monkeypatch):
    def load_dataset(*where: object, **how: object) -> None:
        raise ConnectionError("no route\nto host")

    module = SimpleNamespace(load_dataset=load_dataset, __spec__="found")
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(DopsdError) as caught:
        list(read_rows(Source(path="openai/gsm8k"), KEY))
    line = str(caught.value)
    assert line.startswith(f"{KEY}: could not read openai/gsm8k, split train")
    assert "local file" in line and "\n" not in line


def row(question: str, answer: int = 1) -> dict:
    return {"question": question, "answer": f"so #### {answer}"}


def config(tmp_path: Path, train: list[dict], test: list[dict], **more: object) -> Gsm8kConfig:
    sources = {
        name: Source(path=jsonl(tmp_path / f"{name}.jsonl", rows))
        for name, rows in (("train", train), ("test", test))
    }
    return Gsm8kConfig(**sources, **more)


def test_train_loses_what_is_in_test_and_what_is_repeated(tmp_path: Path, capsys):
    train = [row("a"), row("b"), row(" a  "), row("in  test"), row("c"), row("d")]
    splits = Gsm8k(config(tmp_path, train, [row("in test"), row("in test")], validation=1)).build()
    assert sorted(p.prompt for p in splits["train"] + splits["validation"]) == ["a", "b", "c", "d"]
    assert len({p.id for p in splits["test"]}) == 2  # test rows all count
    said = "dropped from train 1 rows that are also in test and 1 repeated ones"
    assert said in capsys.readouterr().err


def test_validation_is_drawn_by_seed_and_limit_takes_the_first_of_each_split(tmp_path: Path):
    rows = [row(f"q{i}") for i in range(30)]
    whole, other, cut = (
        Gsm8k(config(tmp_path, rows, [row("t"), row("u")], validation=10, **more)).build()
        for more in ({}, {"seed": 1}, {"limit": 1})
    )
    held = {p.prompt for p in whole["validation"]}
    others = [f"q{i}" for i in range(30) if f"q{i}" not in held]
    assert len(held) == 10 and [p.prompt for p in whole["train"]] == others
    assert held != {p.prompt for p in other["validation"]}
    assert cut == {name: problems[:1] for name, problems in whole.items()}


def test_too_few_rows_name_the_key(tmp_path: Path):
    said = r"data\.gsm8k\.validation: 2 problems cannot be held out of 2"
    with pytest.raises(DopsdError, match=said):
        Gsm8k(config(tmp_path, [row("a"), row("b")], [row("t")], validation=2)).build()
    with pytest.raises(DopsdError, match=r"data\.gsm8k\.test\.path: .* no usable row"):
        Gsm8k(config(tmp_path, [row("a"), row("b")], [], validation=1)).build()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("Solve.\n", "Solve.\n\n\nhow {x}?"), ("Q: {question}\nA {y}:", "Q: how {x}?\nA {y}:")],
)
def test_a_prompt_file_replaces_the_instructions_to_the_byte(tmp_path, text, wanted):
    (tmp_path / "p.txt").write_text(text)
    task = Gsm8k(Gsm8kConfig(prompt_file=str(tmp_path / "p.txt")))
    messages = task.messages(task.ask("how {x}?"), "instructions")
    assert messages == [{"role": "user", "content": wanted}]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "No such file"), (b" \n", "is empty"), (b"\xff", "not UTF-8 text")],
)
def test_a_prompt_file_without_a_prompt_names_the_key(tmp_path, content, expected):
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    with pytest.raises(DopsdError, match=rf"data\.gsm8k\.prompt_file: .*{expected}"):
        Gsm8k(Gsm8kConfig(prompt_file=str(tmp_path / "p.txt")))
