"""Tables and figures of a study from its tidy tables; nothing here opens a run or a checkpoint."""

from turnscale.render.figures import render_figure
from turnscale.render.tables import render_table

__all__ = ["render_figure", "render_table"]
