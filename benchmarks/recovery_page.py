"""The page and the plot of `recovery.py`, from the lines that it wrote."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

Row: TypeAlias = Mapping[str, Any]

WAYS = {
    "retrofit": "`retrofit`, default fine-tune",
    "fold": "`fold`, default fine-tune",
    "reset": "`reset`, default fine-tune",
    "adamw": "`reset`, AdamW 1e-3, cross-entropy",
    "old": "the old model, trained on",
}
LONG, SHORT = 200, 50  # steps of the two schedules
COLOURS = {"retrofit": "C0", "fold": "C1", "reset": "C2", "adamw": "C3", "old": "0.5"}

INTRODUCTION = """# How fast a converted model comes back

Written by `python benchmarks/recovery.py` from what it measured ([recovery.json](recovery.json)); nothing here is
written by hand. Validation losses in nats, the median of the seeds and under it their range. A seed decides what the
old model writes for calibration and which windows the fine-tune draws.

- `retrofit`, `fold`, `reset`: converted with default options, no biases kept, then `modernize finetune` as it is by
  default with the old model as teacher. `reset` with this recipe shows what the conversion itself is worth.
- `reset`, AdamW 1e-3, cross-entropy: what people do without this tool.
- the old model, trained on: with cross-entropy, our optimizers and small steps; what more training alone gives.

The learning rate falls to zero at step 200; the last column is a schedule of its own that ends at step 50. The defaults
of the fine-tune were chosen by losses of seeds 0 and 1 on these models, on a part of their validation text.

What it costs: *own text* is what the old model wrote for calibration, *data* the different tokens of DATA that were
seen. *Passes* are tokens trained through the whole model, forward and backward, of which a teacher's forward pass is a
third; a conversion, which works on a layer at a time, is counted by its matrix products in the same unit. Seconds are
wall time, without validation, and with reading and writing the file; they compare on one machine alone.
"""


def render(results: Path, titles: Mapping[str, str]) -> None:
    """Write `recovery.md` and `recovery.png` beside the results."""
    rows = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    models = {name: [row for row in rows if row["model"] == name] for name in titles}
    models = {name: found for name, found in models.items() if found}
    parts = [INTRODUCTION, _machines(rows), "![Curves](recovery.png)\n", _summary(models)]
    parts += [_model(titles[name], found) for name, found in models.items()]
    results.with_name("recovery.md").write_text("\n".join(parts), encoding="utf-8")
    _plot(models, results.with_name("recovery.png"))


def _machines(rows: Sequence[Row]) -> str:
    """What the ways were measured on."""
    ways: dict[str, dict[str, None]] = {}
    for row in rows:
        ways.setdefault(row["machine"], {})[row["way"]] = None
    told = (machine + (f": `{'`, `'.join(of)}`" if len(ways) > 1 else "") for machine, of in ways.items())
    return f"Machine: {'; '.join(told)}.\n"


def _of(rows: Sequence[Row], way: str, horizon: int) -> list[Row]:
    return [row for row in rows if row["way"] == way and row["horizon"] == horizon]


def _cell(values: Sequence[float], form: Callable[[float], str]) -> str:
    """Median, and the range under it where there is one."""
    if not values:
        return "–"
    low, middle, high = (form(of(values)) for of in (min, median, max))
    return middle if low == high else f"{middle}<br>{low} to {high}"


def _loss(value: float) -> str:
    return f"{value:.3f}"


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *lines)) + "\n"


def _closed(rows: Sequence[Row], way: str) -> list[float]:
    """Share of the gap between `reset` and the old model that is closed before the first step, in percent."""
    reset = [row["losses"]["0"] for row in _of(rows, "reset", LONG)]
    if not reset:
        return []
    return [100 * (median(reset) - row["losses"]["0"]) / (median(reset) - row["old"]) for row in _of(rows, way, LONG)]


def _summary(models: Mapping[str, Sequence[Row]]) -> str:
    head = ["model", "gap closed by `retrofit`, %", *(f"after {SHORT}: {name}" for name in WAYS.values())]
    lines = []
    for name, rows in models.items():
        above = ([row["losses"][str(SHORT)] - row["old"] for row in _of(rows, way, SHORT)] for way in WAYS)
        lines.append(
            [
                name,
                _cell(_closed(rows, "retrofit"), lambda share: f"{share:.1f}"),
                *(_cell(values, lambda loss: f"{loss:+.3f}") for values in above),
            ]
        )
    title = f"## In short\n\nLosses above the old model's, after {SHORT} steps on a schedule of their own.\n"
    return f"{title}\n{_table(head, lines)}"


def _model(title: str, rows: Sequence[Row]) -> str:
    steps = sorted({int(step) for row in rows for step in row["losses"]})
    losses = [
        [
            name,
            *(_cell([row["losses"][str(step)] for row in _of(rows, way, LONG)], _loss) for step in steps),
            _cell([row["losses"][str(SHORT)] for row in _of(rows, way, SHORT)], _loss),
        ]
        for way, name in WAYS.items()
    ]
    costs = [
        [
            name,
            *(_cell([row[key] for row in found], _count) for key in ("own_text", "conversion_passes")),
            _cell([row["conversion_seconds"] for row in found], lambda seconds: f"{seconds:.1f}"),
            *(
                _cell([row[key][str(step)] for row in found], _count)
                for key in ("data_tokens", "passes", "seconds")
                for step in (SHORT, LONG)
            ),
        ]
        for way, name in WAYS.items()
        for found in [_of(rows, way, LONG)]
    ]
    head = ["way", "own text", "conversion: passes", "seconds"]
    head += [f"{what}, {step} steps" for what in ("data", "passes", "seconds") for step in (SHORT, LONG)]
    return (
        f"## {title}\n\nOld model: {_loss(rows[0]['old'])}.\n\n"
        f"{_table(['way', *map(str, steps), f'{SHORT}, own schedule'], losses)}\n{_beyond(rows)}{_table(head, costs)}"
    )


def _beyond(rows: Sequence[Row]) -> str:
    """Losses on windows of the old context and of multiples of it, which the old model has no positions for."""
    lines = []
    for way, name in WAYS.items():
        found = [row for row in _of(rows, way, LONG) if row.get("beyond")]
        steps = [step for step in ("0", "50", "100", "200") if found and step in found[0]["beyond"]["2"]]
        for step in steps:
            here = [row["losses"][step] for row in found]
            there = [[row["beyond"][multiple][step] for row in found] for multiple in ("2", "4")]
            lines.append([name, step, *(_cell(values, _loss) for values in (here, *there))])
    return _table(["way", "step", "1× the old context", "2×", "4×"], lines) + "\n" if lines else ""


def _plot(models: Mapping[str, Sequence[Row]], path: Path) -> None:
    figure = Figure(figsize=(4 * len(models), 3.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, (name, rows) in zip(panels, models.items(), strict=True):
        for way, label in WAYS.items():
            found = _of(rows, way, LONG)
            if not found:
                continue
            steps = sorted(map(int, found[0]["losses"]))
            values = [[row["losses"][str(step)] - row["old"] for row in found] for step in steps]
            axes.plot(steps, [median(v) for v in values], "o-", ms=3, color=COLOURS[way], label=label.replace("`", ""))
            axes.fill_between(steps, [min(v) for v in values], [max(v) for v in values], color=COLOURS[way], alpha=0.2)
        axes.axhline(0, linestyle="--", color="0.3")
        axes.set_xscale("symlog", linthresh=5)
        axes.set_yscale("symlog", linthresh=0.05)
        axes.set(title=name, xlabel="step", xlim=(-0.3, None), xticks=steps, xticklabels=steps)
    panels[0].set_ylabel("nats above the old model")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    FigureCanvasAgg(figure).print_png(path)
