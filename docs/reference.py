"""Pages of the docs that come from the code: `make reference` writes them.

They are committed, so that GitHub shows them; tests/unit/package/test_reference.py makes them again
and compares.
"""

from __future__ import annotations

from pathlib import Path

from settings_reference import configuration_page

DOCS = Path(__file__).parent
NOTE = "<!-- Made by `make reference` from the code; change the code. -->\n\n"
PAGES = {"configuration.md": configuration_page}


def page_text(name: str) -> str:
    """Return a page as it has to be committed."""
    return NOTE + PAGES[name]()


def main() -> None:
    for name in PAGES:
        (DOCS / name).write_text(page_text(name))


if __name__ == "__main__":
    main()
