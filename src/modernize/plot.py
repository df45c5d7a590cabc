"""Curves of a fine-tune as a PNG, where matplotlib is installed."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modernize.errors import OutputRefused, UsageError


def check_plot() -> None:
    """Raise UsageError where there is no matplotlib, before any work is done."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", hint="install it: pip install 'modernize-gpt[plot]'")


def plot_losses(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Training and validation loss over steps, with the old model's as a line, from rows of a log.

    Raises OutputRefused.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
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
    try:
        FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise OutputRefused(f"{path} cannot be written: {error.strerror}", hint="check the space there") from error
