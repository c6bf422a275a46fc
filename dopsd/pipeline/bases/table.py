"""`dopsd models`: which bases there are, and what each architecture supports.

Needs neither torch nor transformers: what classes compute is read from checkpoints.yaml.
"""

from dopsd.algorithms.registry import ALGORITHMS, blocks_fault
from dopsd.analysis.tables import head, line, print_markdown
from dopsd.models.registry import ARCHITECTURES, published, traits

GIGA = 1e9
NOTE = (
    "None of the published weights was run by this project: the classes are compared with forward"
    " passes written out by hand. Licences are those of the weights; read the model card before you"
    " use one. `dopsd inspect NAME` looks at one on the hub, and prints the command that downloads"
    " it."
)


def checkpoints_table() -> list[str]:
    """Return the checkpoints that can be a base, as a table."""
    columns = ("checkpoint", "parameters", "architecture", "GB in bfloat16", "needs", "licence")
    lines = head(*columns, "blocks counted from")
    for row in published():
        size = "not known" if row.parameters is None else f"{row.parameters / GIGA:.2g} B"
        weight = "not known" if row.gigabytes is None else f"{row.gigabytes:g}"
        needs = f"`{row.settings}`" if row.settings else ""
        needs = f"not published: `{row.made_by}` makes it" if row.made_by else needs
        lines.append(line(row.name, size, row.architecture, weight, needs, row.licence, row.blocks))
    return lines


def architectures_table() -> list[str]:
    """Return what each architecture supports, as a table."""
    columns = ("architecture", "a token sees", "predicts", "cache", "flash attention")
    more = ("fused kernels", "shard, compile, 4-bit", "methods")
    return [*head(*columns, *more), *map(_supports, ARCHITECTURES.names)]


def list_bases() -> None:
    """Print the checkpoints that can be a base, and what each architecture supports."""
    print_markdown("\n".join([*checkpoints_table(), "", *architectures_table(), "", NOTE, ""]))


def _supports(name: str) -> str:
    computed = traits(name)
    sees = {"bidirectional": "every token", "block_causal": "its block and earlier ones"}
    predicts = {0: "its own token", 1: "the next token", None: "its own token or the next"}
    cache = {"bidirectional": "approximate", "block_causal": "exact"}
    patterns = computed.attention_patterns
    return line(
        name,
        " or ".join(sees[pattern] for pattern in patterns),
        predicts[computed.output_shift],
        " or ".join(cache[pattern] for pattern in patterns),
        "yes" if "bidirectional" in patterns else "no",
        "yes" if computed.has_fused_kernels else "no",
        "yes",  # of every architecture
        "all" if "bidirectional" in patterns else f"all; {_with_settings()}",
    )


def _with_settings() -> str:
    """Return which methods need other settings than their defaults under block-causal attention."""
    configs = {name: ALGORITHMS.config_class(name)() for name in ALGORITHMS.names}
    names = [name for name, config in configs.items() if blocks_fault(name, config)]
    return f"other settings for {', '.join(names)}"
