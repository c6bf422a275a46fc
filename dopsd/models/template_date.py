"""The date in prompts: a fixed one, also where a chat template writes today's."""

import re
from datetime import UTC, datetime
from pathlib import Path

CLOCK = "strftime_now"  # by which a template writes the date
DAY = datetime(2024, 7, 26, tzinfo=UTC)  # which it gets: that of Llama 3.2's without a clock
NOTE = f"the chat template writes the date; prompts get {DAY:%d %b %Y} on every day"


def fixed_date(form: str) -> str:
    """Return the date that prompts have, in the form of strftime."""
    return DAY.strftime(form)


def without_clock(template: str) -> str:
    """Return a chat template with the fixed date in place of today's."""
    call = re.compile(rf"{CLOCK}\(\s*(['\"])(.*?)\1\s*\)")
    template = call.sub(lambda found: repr(fixed_date(found[2])), template)
    macro = f"{{%- macro {CLOCK}(form) -%}}{fixed_date('%d %b %Y')}{{%- endmacro -%}}"
    return f"{macro}{template}" if f"{CLOCK}(" in template else template


def is_dated(folder: Path) -> bool:
    """Return whether a checkpoint's chat template writes the date, without loading a library."""
    files = [folder / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    return any(CLOCK.encode() in path.read_bytes() for path in files if path.is_file())
