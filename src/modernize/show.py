"""How reports look to people: one function per report."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modernize.console import Output, bar, number
from modernize.dialects import Dialect
from modernize.operations import rope_operations, saved_additions
from modernize.progress import Stages
from modernize.spec import HOMES, GPTSpec, layerless

if TYPE_CHECKING:
    from modernize.calibration import Calibration
    from modernize.conversion import Conversion
    from modernize.exporting import Exported
    from modernize.inspection import Inspection, Parameters, TensorFate
    from modernize.measure import Comparison, Evaluation
    from modernize.rewrite.halves import BlockReport
    from modernize.trial import Trial
    from modernize.tune import Tuned, TuneEvent

SHOWN_TRIALS = 12
SMOOTH = 0.9  # of a smoothed loss, what is left of it after a step


def show_inspection(out: Output, found: "Inspection") -> None:
    """What it is, each tensor's fate, what is saved."""
    config = found.config
    out.line(f"{found.path}: {found.format}, {found.architecture}, dialect {found.dialect}", style="bold")
    out.line(
        f"{config.n_layer} layers, {config.n_head} heads of {config.head_dim}, width {config.n_embd}, "
        f"MLP {config.n_inner}, context {config.block_size}, vocabulary {config.vocab_size}"
    )
    scale = (
        f", scores over √{config.attn_scale}" if isinstance(config, GPTSpec) else f", RoPE base {config.rope_base:g}"
    )
    head = "head tied" if config.tied else "head of its own"
    out.line(f"{config.activation}, {head}, norm eps {config.norm_eps:g}{scale}")
    if found.source:
        source = found.source
        out.line(f"made by modernize {source.version} with --init {source.init} from {source.dialect}")
        out.line(f"source sha256 {source.sha256}")
        for run in source.history:
            steps, tokens = (f"{n:,}" if isinstance(n := run.get(what), int) else n for what in ("steps", "tokens"))
            out.line(f"fine-tuned {steps} steps on {tokens} tokens")
    if found.trials:
        _show_trials(out, found.trials, found.reading)
    out.line("")
    out.table(("tensor", "shape", "dtype", "fate", "becomes"), _fate_rows(found.tensors))
    out.line("")
    if found.source:
        out.line(f"parameters {number(found.parameters.before)}")
        return
    _show_parameters(out, found.parameters)
    if isinstance(config, GPTSpec):
        saved, added = saved_additions(config), rope_operations(config)
        out.line(
            f"per token: {number(saved)} additions fewer (means, centring, shifts, biases, positions), "
            f"{number(added)} operations more to turn queries and keys"
        )


def _show_trials(out: Output, trials: "Sequence[Trial]", reading: Mapping[str, Any]) -> None:
    """The best readings, and the options that say the one that was taken."""
    names = list(trials[0].facts)
    out.line("\nloss under each reading, the lowest first")
    rows = [(*(str(trial.facts[name]) for name in names), f"{trial.loss:.4f}") for trial in trials[:SHOWN_TRIALS]]
    out.table((*names, "loss"), rows, right=(len(names),))
    if len(trials) > SHOWN_TRIALS:
        out.line(f"and {len(trials) - SHOWN_TRIALS} more")
    said = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in reading.items())
    out.line(f"read with {said}")


def _fate_rows(tensors: "Sequence[TensorFate]") -> list[tuple[str, ...]]:
    """A row per kind of tensor: equal ones of all layers and heads become one."""
    rows: dict[tuple[str, ...], None] = {}
    for t in tensors:
        shape = "×".join(map(str, t.info.shape)) or "scalar"
        becomes = ", ".join(dict.fromkeys(map(layerless, t.becomes)))
        rows[(t.kind, shape, t.info.dtype, t.fate, becomes)] = None
    return list(rows)


def _show_parameters(out: Output, parameters: "Parameters") -> None:
    saved = parameters.before - parameters.after
    share = f" ({100 * abs(saved) / max(parameters.before, 1):.1f} %)"
    out.line(
        f"parameters {number(parameters.before)} before, {number(parameters.after)} after: "
        f"{number(abs(saved))} {'fewer' if saved >= 0 else 'more'}{share}"
    )


def show_conversion(out: Output, report: "Conversion") -> None:
    """What was written."""
    if out.quiet:
        out.line(str(report.output))
        return
    out.line(
        f"{'wrote' if report.written else 'would write'} {report.output} "
        f"from {report.input} ({report.dialect}, --init {report.init})"
    )
    _show_parameters(out, report.parameters)
    out.line(f"{len(report.dropped)} tensors dropped, {len(report.reinitialized)} set to one")
    if report.calibration:
        _show_calibration(out, report.calibration)


def _show_calibration(out: Output, found: "Calibration") -> None:
    """What the old model, the candidates and the result lose on held-out text, and how each block went."""
    text = "text that the old model wrote" if found.source == "self" else found.source
    out.line(
        f"\ncalibrated on {number(found.tokens)} tokens of {text}; losses on {number(found.held)} of them, held out"
    )
    rows = [("old model", f"{found.loss_old:.4f}", "")]
    rows += [(c.name, f"{c.loss:.4f}", "written" if c.name == found.chosen else "") for c in found.candidates]
    out.table(("candidate", "loss", ""), rows, right=(1,))
    if found.chosen.startswith("retrofit"):
        gap = found.loss_reset - found.loss_old
        share = f" ({100 * (found.loss_reset - found.loss_new) / gap:.1f} % of what `reset` loses)" if gap > 0 else ""
        out.line(f"{found.loss_new - found.loss_old:+.4f} nats against the old model{share}\n")
        parts = sorted({part for block in found.blocks for part in block.absorbed}, key=list(HOMES).index)
        heads = ("block", "positions", "attention KL", "stream missed", *(f"{part} bias" for part in parts))
        out.table(
            heads, [_block_row(i, block, parts) for i, block in enumerate(found.blocks)], right=range(1, len(heads))
        )
        out.line(
            "positions: share of the old scores' course with distance that RoPE explains; biases: R² of absorption"
        )


def _block_row(i: int, block: "BlockReport", parts: Sequence[str]) -> tuple[str, ...]:
    absorbed = (f"{block.absorbed[part]:.3f}" if part in block.absorbed else "" for part in parts)
    divergence = f"{block.divergence_start:.3f} → {block.divergence:.3f}"
    return (str(i), f"{100 * block.positions:.1f} %", divergence, f"{100 * block.missing:.1f} %", *absorbed)


def watch_finetune(out: Output, events: "Iterator[TuneEvent]", progress: Stages) -> "Tuned":
    """Show a fine-tune while it runs; gives what came out."""
    from modernize.events import Finished, Notice, Saved, Started, Stepped, Validated
    from modernize.tune import Tuned

    started: Started | None = None
    smooth = math.nan
    goal = ""
    for event in events:
        if isinstance(event, Notice):
            out.warnings([event.text])
        elif isinstance(event, Started):
            started = event
            goal = "" if event.old is None else f"  old model {event.old:.4f}"
            old = "" if event.old is None else f", old model {event.old:.4f}"
            out.note(
                f"{event.steps} step{'s' if event.steps > 1 else ''} of {event.batch_size} × {event.block_size} tokens "
                f"on {event.device} ({event.dtype}); validation loss {event.before:.4f}{old}"
            )
            taught = f", the teacher's weight {event.distill:g}" if event.old is not None else ""
            out.note(f"learning rate {event.lr:.2g}{taught}{', its states matched' if event.match else ''}")
        elif isinstance(event, Stepped) and started:
            smooth = event.loss if math.isnan(smooth) else SMOOTH * smooth + (1 - SMOOTH) * event.loss
            progress(
                "step",
                event.step,
                started.steps,
                f"loss {event.loss:.4f} ({smooth:.4f})  {event.tokens_per_second:,.0f} tokens/s  "
                f"{event.seconds_left:.0f} s left{goal}",
            )
        elif isinstance(event, Validated):
            out.note(f"step {event.step}: validation loss {event.loss:.4f}{' (best)' if event.best else ''}{goal}")
        elif isinstance(event, Saved):
            out.note(f"step {event.step}: the run is saved in {event.path}")
        elif isinstance(event, Tuned):
            return event
        else:
            assert isinstance(event, Finished | Stepped)
    raise RuntimeError("a fine-tune ended without a result")


def show_finetune(out: Output, report: "Tuned") -> None:
    """The result table."""
    end = report.finished
    if out.quiet:
        out.line(str(report.output))
        return
    rows = [("before", f"{end.before:.4f}"), ("after", f"{end.after:.4f}"), ("best, written", f"{end.best:.4f}")]
    if end.old is not None:
        rows.append(("old model", f"{end.old:.4f}"))
    if end.old is not None and end.recovery is not None:
        reached = end.best <= end.old
        rows.append(("recovered", "all of it" if reached else f"{100 * end.recovery:.1f} %"))
    rows += [("steps", number(end.steps)), ("tokens", number(end.tokens))]
    rows.append(("training time", f"{end.tokens / max(end.tokens_per_second, 1e-9):.0f} s"))
    out.table(("validation", "loss"), rows, right=(1,))
    out.line(f"wrote {report.output} at {end.tokens_per_second:,.0f} tokens/s on {end.device} ({end.dtype})")
    if end.stopped == "interrupted":
        out.line("stopped before the end: the same command with --resume goes on")


def show_evaluations(out: Output, found: "Sequence[Evaluation]") -> None:
    """A line per context."""
    out.table(
        ("context", "loss", "perplexity", "tokens"),
        [(str(e.context), f"{e.loss:.4f}", f"{e.perplexity:.3f}", number(e.tokens)) for e in found],
        right=(0, 1, 2, 3),
    )


def show_comparison(out: Output, found: "Comparison") -> None:
    """Both models in one table, then losses by position and by context, also past the old one."""
    out.table(
        ("", "old", "new"),
        [
            ("loss", f"{found.old.loss:.4f}", f"{found.new.loss:.4f}"),
            ("perplexity", f"{found.old.perplexity:.3f}", f"{found.new.perplexity:.3f}"),
            ("parameters", number(found.parameters_old), number(found.parameters_new)),
        ],
        right=(1, 2),
    )
    out.line(f"KL(old ‖ new) {found.kl:.4f} nats; the likeliest token agrees in {100 * found.top1_agreement:.1f} %")
    out.line("\nloss by position in the window")
    rows = [(f"{row.start}-{row.end - 1}", row.old, row.new) for row in found.by_position]
    _old_and_new(out, "position", rows)
    out.line("\nloss by context (the old model has no positions past its own)")
    trained = found.old.context
    _old_and_new(
        out,
        "context",
        [(f"{row.context} ({row.context / trained:g}×)", row.old, row.new) for row in found.beyond_context],
    )


def _old_and_new(out: Output, place: str, losses: Sequence[tuple[str, float | None, float]]) -> None:
    """A table of losses, with bars of the new model's."""
    top = max((new for _, _, new in losses), default=0.0)
    rows = []
    for label, old, new in losses:
        known = ("", "") if old is None else (f"{old:.4f}", f"{new - old:+.4f}")
        rows.append((label, known[0], f"{new:.4f}", known[1], bar(new, top)))
    out.table((place, "old", "new", "difference", ""), rows, right=(0, 1, 2, 3))


def show_export(out: Output, report: "Exported") -> None:
    """What was written, how exact it is, and how it was checked."""
    if out.quiet:
        out.line(str(report.output))
        return
    out.line(
        f"wrote {report.output} from {report.input}: {report.architecture}, {number(report.parameters)} parameters"
    )
    out.line(f"files: {', '.join(report.files)}")
    if report.difference:
        out.line(f"not exact: {report.difference}")
    if report.checked:
        out.line(f"loaded back by transformers {report.checked}, with the same logits")
    else:
        out.line("read back bit by bit; with transformers installed, its logits are compared as well")


def dialects_json(dialects: Sequence[Dialect]) -> dict[str, Any]:
    """Every dialect with its rows."""
    return {
        "dialects": [
            {"name": d.name, "title": d.title, "keys": [rule.source for rule in d.rules if rule.targets]}
            for d in dialects
        ]
    }


def show_dialects(out: Output, dialects: Sequence[Dialect]) -> None:
    """Every dialect with the names by which it is recognised."""
    for dialect in dialects:
        out.line(f"{dialect.name}: {dialect.title}", style="bold")
        for rule in dialect.rules:
            if rule.targets:
                out.line(f"  {rule.source}{'  (may be absent)' if rule.optional else ''}")
        for assumption in dialect.assumptions:
            doubt = f"  ({assumption.doubt})" if assumption.doubt else ""
            out.line(f"  {assumption.field} {assumption.value} unless said otherwise{doubt}")
        out.line("")
