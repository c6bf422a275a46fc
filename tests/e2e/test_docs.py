"""Commands in README and docs: executed here, by a test that the page names, or marked with the
reason why not.

The line before a block of commands says which: `<!-- run -->`, `<!-- see tests/FILE.py -->`, or
`<!-- not run: REASON -->`.
"""

import json
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from conftest import ROOT
from markdown_it import MarkdownIt
from small_settings import SHORT_RUN
from workspace import Workspace

from dopsd.config import profiles

PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*/README.md", "infra/*/README.md")
    for path in ROOT.glob(pattern)
    if path.name != "CHANGELOG.md"
)
BLOCK = re.compile(
    r"(?:<!-- (?P<mark>run|see|not run)(?P<words>[^\n]*) -->\n)?"
    r"```(?P<language>\w*)\n(?P<text>.*?)\n```",
    re.DOTALL,
)
COMMANDS = {"bash", "python"}  # the other languages are no commands
LANGUAGES = {"text", "toml", "yaml", "json", "bibtex"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    mark: str | None
    words: str
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text.splitlines()[0]}"


def blocks() -> list[Block]:
    return [
        Block(page, block["mark"], (block["words"] or "").strip(), block["language"], block["text"])
        for page in PAGES
        for block in BLOCK.finditer(page.read_text())
    ]


def test_every_block_of_commands_is_run_somewhere_or_says_why_not():
    assert blocks()
    for page in PAGES:
        one_of_ablations(commands_of_table(page))  # their tables exist
    for block in blocks():
        assert block.language in COMMANDS | LANGUAGES, f"{block.name}: name its language"
        if block.language in COMMANDS:
            assert block.mark, f"{block.name}: add <!-- run -->, see or not run before the block"
        if block.mark == "not run":
            assert len(block.words) > 10, f"{block.name}: say why"
        for test in re.findall(r"tests/[\w./]+", block.words):
            assert (ROOT / test.rstrip(".")).exists(), f"{block.name}: {test} does not exist"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, as on GitHub and on the site, and its own."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", h) for h in re.findall(r"(?m)^#+ (.*)$", text))
    slugs = {re.sub(r"[^\w\- ]", "", h.strip().lower()).replace(" ", "-") for h in plain}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_lead_to_files_and_headings_that_exist():
    broken = []
    for page in [*PAGES, *ROOT.glob("benchmarks/**/*.md")]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", text):
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            known = target.exists() and (
                not anchor or target.suffix != ".md" or anchor in anchors(target)
            )
            broken += [] if known else [f"{page.relative_to(ROOT)}: {link}"]
    assert broken == []


@dataclass
class Reading:
    """What a page is to read: lines (a row of a table is one), cells, paragraphs, all rendered."""

    lines: list[str]
    cells: list[str]
    paragraphs: list[str]
    before_commands: str  # the text before the first block

    @property
    def long_sentences(self) -> list[str]:
        ends = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[A-Z`\"(\[0-9])")
        sentences = [s for text in (*self.paragraphs, *self.cells) for s in ends.split(text)]
        return [sentence for sentence in sentences if len(sentence.split()) > 40]


def dedented(admonition: re.Match[str]) -> str:
    return re.sub(r"(?m)^ {4}|^(?:!!!|\?\?\?) \w+", "", admonition[0])


def reading(page: Path) -> Reading:
    text = page.read_text()
    text = text.split("---\n", 2)[2] if text.startswith("---\n") else text
    text = re.sub(r"(?m)^(?:!!!|\?\?\?).*\n(?:(?: {4}.*)?\n)+", dedented, text)
    found, row, inside, before = Reading([], [], [], ""), [], "", None
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type == "fence" and before is None:
            before = " ".join(found.lines)
        if token.type in {"tr_open", "paragraph_open", "heading_open"}:
            row, inside = [], token.type
        elif token.type == "inline":
            parts = (c.content if c.content and c.type != "image" else "\n" for c in token.children)
            read = re.sub(r"<[^>]+>", "", "".join(parts)).strip()
            row.append(read)
            if inside == "paragraph_open":
                found.paragraphs.append(" ".join(read.split()))
            if inside != "tr_open":
                found.lines += read.splitlines()
        elif token.type in {"html_block", "code_block"}:
            read = re.sub(r"<!--.*?-->|<[^>]+>", "", token.content, flags=re.DOTALL)
            found.lines += read.splitlines()
            found.paragraphs.append(" ".join(read.split()))
        elif token.type == "tr_close":
            found.lines.append(" ".join(row))
            found.cells += row
    return replace(found, before_commands=before or "")


def words(text: str) -> int:
    return len(re.findall(r"[A-Za-z0-9][\w'.%/+-]*", text))


def numbers(text: str) -> int:
    return len(re.findall(r"(?<![\w.])[-+]?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?%?", text))


def test_the_readme_can_be_read_in_three_minutes():
    page = reading(ROOT / "README.md")
    text = " ".join(page.lines)
    assert words(text) <= 950
    assert words(page.before_commands) <= 120
    assert numbers(text) <= 6 * words(text) / 100
    heavy = [line for line in page.lines if numbers(line) > 3]
    assert len(heavy) <= 0.08 * len(page.lines), heavy
    assert [cell for cell in page.cells if len(cell) > 110] == []


def test_the_changelog_says_what_a_user_needs():
    assert words(" ".join(reading(ROOT / "CHANGELOG.md").lines)) <= 2000


@pytest.mark.parametrize("page", sorted((ROOT / "docs/results").glob("*.md")), ids=lambda p: p.stem)
def test_a_page_of_results_answers_one_question(page: Path):
    assert words(" ".join(reading(page).lines)) <= 900


GENERATED = {"configuration.md", "errors.md", "metrics.md", "verification.md"}
OTHERS = (ROOT / "CHANGELOG.md", ROOT / "benchmarks/RESULTS.md")
DOCS = [page for page in (*PAGES, *OTHERS) if page.name not in GENERATED]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_has_more_than_40_words_and_no_paragraph_more_than_8_lines(page: Path):
    found = reading(page)
    assert found.long_sentences == []
    on_github = 105  # characters of a rendered line, in a window of 1280 pixels
    assert [text for text in found.paragraphs if len(text) > 8 * on_github] == []


def commands_of_table(page: Path) -> list[str]:
    """Commands in the second column of tables that say that they are run."""
    tables = re.findall(r"<!-- run the commands of this table -->\n((?:\|.*\n)+)", page.read_text())
    rows = [row.split(" | ")[1] for part in tables for row in part.splitlines()[2:]]
    return [" && ".join(re.findall(r"`([^`]+)`", row)) for row in rows]


def one_of_ablations(commands: list[str]) -> list[str]:
    """Each command once, of those that make tables of ablations the first: all must exist."""
    ablations = [text for text in dict.fromkeys(commands) if text.startswith("dopsd ablate ")]
    tables = {name for text in ablations for name in text.split()[2:]}
    assert tables <= profiles.embedded()["ablate"]["tables"].keys()
    return [text for text in dict.fromkeys(commands) if text not in ablations[1:]]


@pytest.mark.parametrize(
    "where",
    [
        pytest.param("blocks", marks=pytest.mark.full),
        pytest.param("tables", marks=pytest.mark.nightly),
    ],
)
def test_the_commands_of_each_page_run(where: str, tmp_path: Path):
    workspace = Workspace(tmp_path, is_shipped=True, is_warm=True)
    short = SHORT_RUN | {"verify_teacher.problems": 12, "verify_teacher.attempts": 2}
    changes = [f"--set={key}={json.dumps(value)}" for key, value in short.items()]
    workspace.run(sys.executable, "-m", "dopsd", "params", *changes)
    workspace.repro()
    workspace.commit()
    for page in PAGES:
        is_block = where == "blocks"
        marked = [b for b in blocks() if is_block and b.page == page and b.mark == "run"]
        bash = ["bash", "-euo", "pipefail", "-c"]
        scripts = [[*bash, block.text] for block in marked if block.language == "bash"]
        listed = [] if is_block else one_of_ablations(commands_of_table(page))
        scripts += [["bash", "-euc", text] for text in listed]
        if python := "\n".join(b.text for b in marked if b.language == "python"):
            scripts.append([sys.executable, "-c", python])
        for words in scripts:
            here = {"cwd": tmp_path, "env": workspace.env}
            ran = subprocess.run(words, capture_output=True, text=True, **here)
            output = ran.stdout[-2000:] + ran.stderr[-2000:]
            assert ran.returncode == 0, f"{page}\n{words[-1]}\n{output}"
            has_new_results = workspace.run("git", "status", "--porcelain", "dvc.lock")
            workspace.run("git", "checkout", "-q", "params.yaml", "dvc.lock")
            if has_new_results:
                workspace.dvc("checkout", "--quiet", "--force")
