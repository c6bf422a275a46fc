"""Interactive charts: axes, lines and bands that the page's script colours for light and dark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bokeh.models import ColumnDataSource
    from bokeh.models.renderers import GlyphRenderer
    from bokeh.plotting import figure as Figure

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
    """A chart with its texts.

    Attributes:
        title: the heading.
        note: what it shows, in a sentence; may have `code`.
        figure: the drawing.
        legend: label, colour and style (line, thin, dashed, band, ring) of what is drawn.
        costs: what its x axis can show, as keys of AXES; empty: only one thing.
    """

    title: str
    note: str
    figure: Figure
    legend: list[tuple[str, str, str]]
    costs: list[str]


def figure_of(x_title: str, y_title: str, is_share: bool, height: int = 300) -> Figure:
    """Return an empty chart of the page's width, whose background is that of the page.

    Args:
        x_title: title of the x axis, with its unit.
        y_title: title of the y axis, with its unit.
        is_share: write y as percent.
        height: height in pixels.
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
    drawing.yaxis.formatter = NumeralTickFormatter(format=PERCENT if is_share else NUMBER)
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
        drawing: the chart.
        renderer: the points that have it.
        rows: label and value, in Bokeh's format, of each row.
    """
    from bokeh.models import HoverTool

    drawing.add_tools(HoverTool(renderers=[renderer], tooltips=rows, visible=False))
