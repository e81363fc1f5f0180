"""Tables and figures of a study from its tidy tables; nothing here opens a run or a checkpoint.

Nothing is imported before it is asked for: an audit printed to a terminal needs `text` and no plotting library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnscale.render.figures import render_figure
    from turnscale.render.tables import render_table

__all__ = ["render_figure", "render_table"]


def __getattr__(name: str) -> Any:
    if name == "render_figure":
        from turnscale.render.figures import render_figure

        return render_figure
    if name == "render_table":
        from turnscale.render.tables import render_table

        return render_table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
