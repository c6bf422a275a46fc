"""Settings of GSM8K."""

from typing import Any, ClassVar, Literal

from dopsd.tasks.common.config import RowTaskConfig, Source


class Gsm8kConfig(RowTaskConfig):
    """Settings of GSM8K."""

    train: Source = Source(path="openai/gsm8k", name="main")  # rows to train on
    test: Source = Source(path="openai/gsm8k", name="main", split="test")  # rows to test on

    reward_layout: Literal["any_lines", "one_line"] = (
        "any_lines"  # one_line: reasoning and answer of several lines earn less (published)
    )
    has_gold_answers: ClassVar[bool] = True

    @property
    def rewarding(self) -> dict[str, Any]:
        """Settings on which rewards depend, where they are not as they always were."""
        return {"reward_layout": self.reward_layout} if self.reward_layout != "any_lines" else {}
