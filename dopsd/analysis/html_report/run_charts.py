"""Charts of one run: accuracy against cost, training curves, overlap of student and teacher."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dopsd.analysis.figures import AGREEMENT, LABELS, METHODS, blocks_of, grouped, trailing_means
from dopsd.core.palette import NEUTRAL, PALETTE, colour_of, run_colour

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource
    from bokeh.models.renderers import GlyphRenderer
    from bokeh.plotting import figure as Figure

    from dopsd.analysis.html_report.facts import RunFacts

BASE, CHOSEN = NEUTRAL, "#e08700"
NO_CURVES = ("update", "collapsed")  # columns of train.csv that are no curves
TITLES = LABELS | {  # plain names of metrics that the figures do not have
    "best_score": "score of the best attempt",
    "kl": "distance from the initial policy",
    "logp": "log-probability",
}
MORE = {  # what else a reader has to know of a metric; the loss: of methods with a teacher
    "loss": (
        "The loss need not fall while accuracy rises. Each update compares the student with a"
        " teacher that sees other answers. The mean depends on how hard the current states are. "
    ),
    "grad_norm": "Clipped gradients are usual. The clip is a limit on a step, and no fault. ",
}
UNITS = {"share": "in %", "1": "no unit", "by algorithm": "unit of the method's loss"}


def accuracy_chart(facts: RunFacts) -> Chart:
    """Return accuracy on the selection split, against every cost that is known."""
    chosen, colour = facts.selected, run_colour(METHODS, facts.key.method)
    rows = [
        row
        for row in facts.curve
        if row["protocol"] == chosen["protocol"] and row["update"] in facts.costs
    ]
    costs = [
        cost
        for cost in ("sampled_tokens", "seconds")
        if all(cost in facts.costs[row["update"]] for row in rows)
        and any(facts.costs[row["update"]][cost] for row in rows)  # some methods sample nothing
    ]
    costs = ["updates", *costs]  # the base alone has cost nothing yet
    columns = {name: [row[name] for row in rows] for name in ("accuracy", "low", "high", "update")}
    columns |= {cost: [facts.costs[row["update"]][cost] for row in rows] for cost in costs}
    columns["base"] = [chosen["base_accuracy"]] * len(rows)
    drawing = figure_of(AXES[costs[0]], f"accuracy on {chosen['split']}, in %", True, 340)
    source = source_of(columns, costs)
    drawing.varea("x", "low", "high", source=source, fill_alpha=0.18, fill_color=colour)
    drawing.line("x", "base", source=source, line_dash="dashed", line_color=BASE, line_width=2)
    drawing.line("x", "accuracy", source=source, line_width=2.5, line_color=colour)
    dots = drawing.scatter("x", "accuracy", source=source, size=8, color=colour)
    hover(
        drawing,
        dots,
        [
            ("update", "@update"),
            ("accuracy", "@accuracy{0.0%}"),
            ("95% interval", "@low{0.0%} to @high{0.0%}"),
        ],
    )
    at = [i for i, row in enumerate(rows) if row["update"] == chosen["update"]]
    ring = {name: [values[i] for i in at] for name, values in columns.items()}
    drawing.scatter(
        "x",
        "accuracy",
        source=source_of(ring, costs),
        size=17,
        fill_color=None,
        line_color=CHOSEN,
        line_width=3,
    )
    return Chart(
        "Accuracy against cost",
        f"{'The leaders of a race, and the last' if 'raced' in chosen else 'Every'} checkpoint on"
        f" {chosen['n']} {chosen['split']} problems. The ring is the selected"
        " checkpoint, which alone was tested. It was selected by its value here, so that value is a"
        f" little too high.{_start_note(facts)}",
        drawing,
        [
            ("accuracy of the checkpoints", colour, "line"),
            ("95% interval", colour, "band"),
            ("base", BASE, "dashed"),
            ("selected checkpoint", CHOSEN, "ring"),
        ],
        costs,
    )


def _start_note(facts: RunFacts) -> str:
    """Return where the curve of a run that started from a checkpoint begins; empty: the base."""
    start = facts.description.start
    if not start:
        return ""
    if any(row["update"] == 0 for row in facts.curve):
        return f" Update 0 is the checkpoint that training started from, `{start}`, not the base."
    return f" Training began at `{start}`, whose accuracy was not measured here."


def training_charts(facts: RunFacts) -> list[Chart]:
    """Return a chart for every metric of training that changes."""
    return [_training_chart(facts, name) for name, values in _curves(facts) if len(values) > 1]


def constant_metrics(facts: RunFacts) -> list[tuple[str, str]]:
    """Return plain name and value of every metric of training that has one value, other than 0."""
    return [
        (_title(name), f"{value:.4g}")
        for name, values in _curves(facts)
        if len(values) == 1
        for value in values
        if value
    ]


def _curves(facts: RunFacts) -> list[tuple[str, set[float]]]:
    """Return the metrics of training with their distinct values."""
    values: dict[str, set[float]] = {}
    for row in facts.training:
        for name, value in row.items():
            values.setdefault(name, set()).add(value)
    return [
        (name, values[name])
        for name in facts.metrics
        if name in values and name not in NO_CURVES and "/" not in name
    ]


def _title(metric: str) -> str:
    return TITLES.get(metric, metric.replace("_", " "))


def _training_chart(facts: RunFacts, name: str) -> Chart:
    unit, meaning = facts.metrics[name]
    points = [(row["update"], row[name]) for row in facts.training if name in row]
    updates, values = (list(column) for column in zip(*points, strict=True))
    is_share = unit == "share"
    drawing = figure_of("update", UNITS.get(unit, unit), is_share, 210)
    # the moving mean of a moving mean would show changes too late
    is_mean = name == "rolling_score"
    means = values if is_mean else trailing_means(points)
    if not is_mean:
        drawing.line(updates, values, line_width=1, line_alpha=0.55, line_color=PALETTE[0])
    mean = drawing.line(updates, means, line_width=2.5, line_color=PALETTE[0])
    legend = []
    if name == "grad_norm" and "train.grad_clip" in facts.settings.values:
        clip = [float(facts.settings.values["train.grad_clip"])] * len(updates)
        drawing.line(updates, clip, line_dash="dashed", line_width=2, line_color=BASE)
        legend = [("`train.grad_clip`: larger gradients are scaled down to it", BASE, "dashed")]
    hover(drawing, mean, [("update", "@x"), ("mean", "@y{0.0%}" if is_share else "@y{0.000}")])
    more = "" if name == "loss" and facts.of_method("teacher") is None else MORE.get(name, "")
    note = f"{in_sentences(meaning)}. {more}Column `{name}` of train.csv."
    return Chart(in_sentences(_title(name)), note, drawing, legend, [])


def overlap_charts(facts: RunFacts) -> list[Chart]:
    """Return how student and teacher agree in each block; nothing without a teacher."""
    blocks = blocks_of(facts.training)
    names = reversed(AGREEMENT) if blocks else ()  # the shared probability first
    return [_overlap_chart(facts, blocks, name) for name in names]


def _overlap_chart(facts: RunFacts, blocks: list[int], name: str) -> Chart:
    drawing = figure_of("update", "in %", True, 260)
    legend = []
    for block in blocks:
        column = f"block_{block}/{name}"
        points = grouped([(row["update"], row[column]) for row in facts.training if column in row])
        updates, values = (list(values) for values in zip(*points, strict=True))
        shade = colour_of(block)
        drawing.line(updates, values, line_width=2, line_color=shade)
        dots = drawing.scatter(updates, values, size=6, color=shade)
        label = f"block {block + 1}"
        hover(drawing, dots, [(label, "@y{0.0%}"), ("update", "@x{0}")])
        legend.append((label, shade, "line"))
    note = f"{in_sentences(facts.metrics[name][1])}."
    return Chart(in_sentences(TITLES[name]), note, drawing, legend, [])


def in_sentences(text: str) -> str:
    """Return the text with its first letter large, and a sentence for each semicolon."""
    return ". ".join(f"{part[:1].upper()}{part[1:]}" for part in text.split("; "))


AXES = {  # cost: title of its axis
    "updates": "updates",
    "rollouts": "rollouts",
    "sampled_tokens": "sampled tokens",
    "seconds": "seconds",
}
SWITCHED = "switched"  # tag of sources whose column x the page's script replaces
PERCENT, NUMBER = "0.[0]%", "0.[00]a"


@dataclass(frozen=True)
class Chart:
    """A chart with its texts."""

    title: str  # the heading
    note: str  # what it shows, in a sentence; may have `code`
    figure: Figure  # the drawing
    # label, colour and style (line, thin, dashed, band, ring) of what is drawn
    legend: list[tuple[str, str, str]]
    costs: list[str]  # what its x axis can show, as keys of AXES; empty: only one thing


def figure_of(x_title: str, y_title: str, is_share: bool, height: int = 300) -> Figure:
    """Return an empty chart of the page's width, whose background is that of the page.

    Args:
        x_title: title of the x axis, with its unit.
        y_title: title of the y axis, with its unit.
    """
    from bokeh.models import BasicTicker, DataRange1d, NumeralTickFormatter
    from bokeh.plotting import figure

    drawing = figure(
        y_range=DataRange1d(default_span=0.2 if is_share else 2.0),  # around equal values
        height=height,
        min_width=200,
        sizing_mode="stretch_width",
        tools="",
        toolbar_location=None,
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    drawing.xaxis.axis_label, drawing.yaxis.axis_label = x_title, y_title
    drawing.xaxis.ticker = BasicTicker(min_interval=1, desired_num_ticks=6)
    drawing.xaxis.formatter = NumeralTickFormatter(format=NUMBER)
    if is_share:  # else Bokeh's own numbers, which show 1e-8 too
        drawing.yaxis.formatter = NumeralTickFormatter(format=PERCENT)
    for axis in drawing.axis:
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = None
    return drawing


def source_of(columns: dict[str, list[Any]], costs: list[str]) -> ColumnDataSource:
    """Return the data of a line whose x the page can switch between these columns."""
    from bokeh.models import ColumnDataSource

    return ColumnDataSource({**columns, "x": columns[costs[0]]}, tags=[SWITCHED])


def hover(drawing: Figure, renderer: GlyphRenderer[Any], rows: list[tuple[str, str]]) -> None:
    """Show a table at the pointer.

    Args:
        rows: label and value, in Bokeh's format, of each row.
    """
    from bokeh.models import HoverTool

    drawing.add_tools(HoverTool(renderers=[renderer], tooltips=rows, visible=False))
