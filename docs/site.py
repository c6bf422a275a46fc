"""mkdocs hook: pages from outside docs/, links between them, formulas as MathML, no other host."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

import nbclient
import nbformat
from latex2mathml import converter
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {  # files of the repository that are pages of the site too
    "benchmarks/RESULTS.md": "benchmarks.md",
    "infra/compose/README.md": "infra/compose.md",
    "infra/k8s/README.md": "infra/kubernetes.md",
    "infra/slurm/README.md": "infra/slurm.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Put a page for each algorithm into the navigation: the files in docs/algorithms."""
    pages = sorted(path.name for path in (ROOT / "docs/algorithms").glob("[!i]*.md"))
    section = next(item for item in config.nav if "Algorithms" in item)
    section["Algorithms"] += [f"algorithms/{page}" for page in pages]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are elsewhere in the repository, and notebooks as pages."""
    for source, page in PAGES.items():
        if page != "index.md":
            files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for notebook in sorted((ROOT / "docs/notebooks").glob("*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=_markdown_of(notebook)))
    return files


def _markdown_of(notebook: Path) -> str:
    """Run a notebook, which is committed without outputs, and return it with them."""
    content = nbformat.read(notebook, as_version=4)
    options = {"resources": {"metadata": {"path": str(ROOT)}}, "timeout": 600}
    nbclient.NotebookClient(content, **options).execute()
    parts = [f"[Download this notebook]({notebook.name})"]
    for cell in content.cells:
        is_text = cell.cell_type == "markdown"
        parts.append(cell.source if is_text else f"```python\n{cell.source}\n```")
        texts = [
            output.text if output.output_type == "stream" else output.data["text/plain"]
            for output in cell.get("outputs", [])
            if output.get("name") != "stderr"
        ]
        parts += [f"```text\n{text.rstrip()}\n```" for text in texts if text.strip()]
    return "\n\n".join(parts)


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Point links to files of the repository to their pages; other files become plain names."""
    source = _repository_path(page.file)
    return LINK.sub(lambda link: _rewritten(link, source, page.file.src_uri), markdown)


def _repository_path(file: File) -> str:
    """Path of a page's source, from the root of the repository."""
    elsewhere = {page: source for source, page in PAGES.items() if page != "index.md"}
    return elsewhere.get(file.src_uri, f"docs/{file.src_uri}")


def _rewritten(link: re.Match[str], source: str, page: str) -> str:
    image, text, target, anchor = link.groups()
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path in PAGES:
        site_path = PAGES[path]
    elif path.startswith("docs/"):
        site_path = path.removeprefix("docs/")
    elif (ROOT / path).exists():
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"
    else:
        return link[0]  # mkdocs names the broken link
    site_link = posixpath.relpath(site_path, posixpath.dirname(page) or ".")
    return f"{image}[{text}]({site_link}{anchor or ''})"


def on_page_content(html: str, **_: object) -> str:
    """Turn formulas into MathML, which browsers draw without scripts."""

    def mathml(formula: re.Match[str]) -> str:
        latex = formula[3].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        return converter.convert(latex, display="inline" if formula[2] == "(" else "block")

    return FORMULA.sub(mathml, html)
