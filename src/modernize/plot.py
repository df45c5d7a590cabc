"""Curves as a PNG, of a fine-tune and of a comparison, where matplotlib is installed."""

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernize.errors import UsageError
from modernize.measure import Comparison
from modernize.whole import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def check_plot(path: Path) -> None:
    """Raise UsageError for another kind of file, or where there is no matplotlib, before any work is done."""
    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path} is not named .png", hint=f"name it {path.with_suffix('.png')}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", hint="install it: pip install 'modernize-gpt[plot]'")


def plot_losses(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Training and validation loss over steps, with the old model's as a line, from rows of a log.

    Raises OutputRefused.
    """
    from matplotlib.figure import Figure

    started = next(row for row in rows if row["event"] == "started")
    steps = [row for row in rows if row["event"] == "stepped"]
    checks = [(0, started["before"]), *((row["step"], row["loss"]) for row in rows if row["event"] == "validated")]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["step"] for row in steps], [row["loss"] for row in steps], color="0.75", label="minimised")
    axes.plot(*zip(*checks, strict=True), "o-", label="validation")
    if started["old"] is not None:
        axes.axhline(started["old"], linestyle="--", color="0.3", label="old model")
    axes.set(xlabel="step", ylabel="loss (nats)")
    axes.legend()
    _write(figure, path)


def plot_comparison(found: Comparison, path: Path) -> None:
    """Losses of both models by position within the context, and beside it by context, also past the old one.

    Raises OutputRefused.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    within, by_context = figure.subplots(1, 2, sharey=True)
    middles = [((row.start + row.end - 1) / 2, row) for row in found.by_position]
    _old_and_new(within, [(x, row.old) for x, row in middles], [(x, row.new) for x, row in middles])
    within.set(xlabel=f"position in a window of {found.old.context}", ylabel="loss (nats)")
    rows = found.beyond_context
    old = [(row.context, row.old) for row in rows if row.old is not None]
    _old_and_new(by_context, old, [(row.context, row.new) for row in rows])
    ticks = {row.context: f"{row.context}\n{row.context / found.old.context:g}×" for row in rows}
    by_context.set_xticks(list(ticks), list(ticks.values()))
    by_context.set(xlabel="context")
    _write(figure, path)


def _old_and_new(axes: "Axes", old: Sequence[tuple[float, float]], new: Sequence[tuple[float, float]]) -> None:
    axes.plot(*zip(*old, strict=True), "o--", color="0.3", label="old model")
    axes.plot(*zip(*new, strict=True), "o-", label="new model")
    axes.legend()


def _write(figure: "Figure", path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawn = io.BytesIO()
    FigureCanvasAgg(figure).print_png(drawn)  # type: ignore[no-untyped-call]
    write_whole(path, [drawn.getvalue()])
