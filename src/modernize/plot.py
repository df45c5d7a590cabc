"""Curves of a fine-tune as a PNG, where matplotlib is installed."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from modernize.errors import OutputRefused, UsageError
from modernize.events import Event, Started, Stepped, Validated


def check_plot() -> None:
    """Raise UsageError where there is no matplotlib, before any work is done."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib", hint="install it: pip install 'modernize-gpt[plot]'")


def plot_losses(events: Sequence[Event], path: Path) -> None:
    """Training and validation loss over steps, with the old model's as a line. Raises OutputRefused."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    started = next(event for event in events if isinstance(event, Started))
    steps = [event for event in events if isinstance(event, Stepped)]
    checks = [event for event in events if isinstance(event, Validated)]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([e.step for e in steps], [e.loss for e in steps], color="0.75", label="minimised")
    axes.plot([0, *(e.step for e in checks)], [started.before, *(e.loss for e in checks)], "o-", label="validation")
    if started.old is not None:
        axes.axhline(started.old, linestyle="--", color="0.3", label="old model")
    axes.set(xlabel="step", ylabel="loss (nats)")
    axes.legend()
    try:
        FigureCanvasAgg(figure).print_png(path)  # type: ignore[no-untyped-call]
    except OSError as error:
        raise OutputRefused(f"{path} cannot be written: {error.strerror}", hint="check the space there") from error
