"""The date in prompts: a fixed one, also where a chat template writes today's."""

from datetime import UTC, datetime
from pathlib import Path

CLOCK = "strftime_now"  # the function by which a template writes the date
DAY = datetime(2024, 7, 26, tzinfo=UTC)  # which it gets: that of Llama 3.2's without a clock
NOTE = f"the chat template writes the date; prompts get {DAY:%d %b %Y} on every day"
PARTS = [f"%{letter}" for letter in "aAbBcdDeFfHIjmMpSTuUwWxXyYzZ"]
PARTS += [f"%-{letter}" for letter in "dmHIMSjy"]
FILTERS = "".join(f" | replace('{part}', '{DAY.strftime(part)}')" for part in PARTS)
MACRO = f"{{% macro {CLOCK}(format) -%}}{{{{ format{FILTERS} }}}}{{%- endmacro %}}{{{{ '' }}}}"


def without_clock(template: str) -> str:
    """Return a chat template with a macro of the fixed date in place of the clock."""
    return MACRO + template if _reads_clock(template) else template


def _reads_clock(text: str) -> bool:
    return CLOCK in text and f"macro {CLOCK}" not in text


def is_dated(folder: Path) -> bool:
    """Return whether a checkpoint's chat template reads the clock, without loading a library."""
    files = [folder / "chat_template.jinja", *folder.glob("additional_chat_templates/*.jinja")]
    files += [folder / "tokenizer_config.json"]
    texts = [p.read_text(encoding="utf-8", errors="replace") for p in files if p.is_file()]
    return any(map(_reads_clock, texts))
