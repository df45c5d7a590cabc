"""The command line: one function per command, each of which says what it takes, calls the library and shows the answer.

Nothing that loads torch is imported before a command runs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from modernize import __version__
from modernize.boundary import run
from modernize.choices import DeviceName, DTypeName, Effort, Init, Split, Weights
from modernize.options import (
    BiasOption,
    Ckpt,
    DataDTypeOption,
    DeviceOption,
    Force,
    Reading,
    SeedOption,
    TieOption,
    TokenizerOption,
    file_argument,
    load_ready,
    prompt_of,
    takes,
    tokenizer_for,
)

if TYPE_CHECKING:
    from modernize.console import Output
    from modernize.events import Settings
    from modernize.facts import Facts

app = typer.Typer(
    name="modernize",
    help="Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE.",
    epilog="Begin with: modernize inspect CKPT",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"modernize {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(epilog="Example: modernize inspect examples/pydoc-gpt.pt")
@takes()
def inspect(
    checkpoint: Ckpt,
    *,
    init: Annotated[Init, typer.Option("--init", help="Tell the fates for this conversion.")] = "retrofit",
    bias: BiasOption = "drop",
    tie: TieOption = "auto",
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="DATA", help="Settle by its loss what the file doesn't say."),
    ] = None,
    tokenizer: TokenizerOption = None,
    data_dtype: DataDTypeOption = "uint16",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Say what a checkpoint is, and what conversion would do to it and save."""
    from modernize.inspection import inspect as look
    from modernize.rewrite.plan import Plan
    from modernize.show import show_inspection

    with out.stages() as progress:
        found = look(
            checkpoint,
            facts=facts,
            weights=weights,
            plan=Plan(init=init, bias=bias),
            tie=tie,
            data=data,
            tokenizer=tokenizer,
            data_dtype=data_dtype,
            progress=progress,
        )
    out.warnings(found.warnings)
    out.answer(found.to_json(), lambda o: show_inspection(o, found))


@app.command(epilog="Example: modernize convert old.pt new.safetensors")
@takes()
def convert(
    old: Annotated[Path, file_argument("OLD", "A checkpoint file or a Hugging Face folder.")],
    new: Annotated[Path, file_argument("NEW", "The .safetensors file to write.")],
    *,
    init: Annotated[
        Init,
        typer.Option(
            "--init", help="retrofit: fit it to the old model. fold: exact moves alone. reset: plain rewrite."
        ),
    ] = "retrofit",
    effort: Annotated[
        Effort, typer.Option("--effort", help="Of a retrofit; full where there will be no fine-tune.")
    ] = "quick",
    calibrate: Annotated[
        str,
        typer.Option("--calibrate", metavar="self|DATA", help="Text for a retrofit; self: the old model writes it."),
    ] = "self",
    bias: BiasOption = "drop",
    tie: TieOption = "auto",
    rope_base: Annotated[float, typer.Option("--rope-base", help="Base of RoPE's frequencies.")] = 10000.0,
    dtype: Annotated[DTypeName, typer.Option("--dtype", help="Of the tensors that are written.")] = "keep",
    seed: SeedOption = 0,
    device: Annotated[
        DeviceName, typer.Option("--device", help="For a retrofit; auto takes CUDA, then the CPU.")
    ] = "auto",
    tokenizer: TokenizerOption = None,
    data_dtype: DataDTypeOption = "uint16",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Do everything but write.")] = False,
    force: Force = False,
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Write a modern model from an old checkpoint."""
    from modernize.conversion import convert as run
    from modernize.show import show_conversion

    with out.stages() as progress:
        report = run(
            old,
            new,
            init=init,
            effort=effort,
            calibrate=calibrate,
            bias=bias,
            tie=tie,
            rope_base=rope_base,
            dtype=dtype,
            seed=seed,
            device=device,
            tokenizer=tokenizer,
            data_dtype=data_dtype,
            facts=facts,
            weights=weights,
            force=force,
            dry_run=dry_run,
            progress=progress,
        )
    out.warnings(report.warnings)
    out.answer(report.to_json(), lambda o: show_conversion(o, report))


@app.command(epilog="Example: modernize finetune new.safetensors --data pydoc --teacher old.pt --steps 100")
@takes(reading=True, training=True)
def finetune(
    checkpoint: Annotated[Path, file_argument("CKPT", "A file that `modernize convert` wrote.")],
    *,
    reading: Reading,
    teacher: Annotated[
        Path | None, typer.Option("--teacher", readable=False, metavar="OLD", help="The old checkpoint, to learn from.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="OUT", help="By default NAME-finetuned.safetensors.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run that was saved beside OUT, where there is one.")
    ] = False,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE.jsonl", help="Every event, a line each.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Curves of the losses.")] = None,
    force: Force = False,
    settings: "Settings",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Train all weights for some steps, to win back the old model's loss."""
    from modernize.interrupts import caught
    from modernize.parallel import join
    from modernize.show import show_finetune, watch_finetune
    from modernize.tune import Job, tune

    job = Job(
        checkpoint=checkpoint,
        data=reading.data,
        output=output or checkpoint.parent / f"{checkpoint.stem}-finetuned.safetensors",
        teacher=teacher,
        tokenizer=reading.tokenizer,
        data_dtype=reading.data_dtype,
        facts=facts,
        weights=weights,
        log=log,
        plot=plot,
        force=force,
        resume=resume,
        settings=settings,
    )
    with join(settings.device) as world, caught(out.note) as interrupts:
        out.muted = not world.first
        with out.stages() as progress:
            events = tune(job, stop=interrupts.asked, world=world, progress=progress)
            report = watch_finetune(out, interrupts.until_trained(events, world.wait), progress)
        out.answer(report.to_json(), lambda o: show_finetune(o, report))
    if report.finished.stopped == "interrupted":  # perhaps by a signal to another process
        raise typer.Exit(interrupts.exit_code or 143)


@app.command(name="eval", epilog="Example: modernize eval new.safetensors --data pydoc --context 128 --context 512")
@takes(reading=True)
def evaluate(
    checkpoint: Ckpt,
    *,
    reading: Reading,
    context: Annotated[
        list[int] | None, typer.Option("--context", min=1, help="Window length; may be given several times.")
    ] = None,
    split: Annotated[Split, typer.Option("--split", help="The last tenth of DATA, the rest, or all.")] = "val",
    device: DeviceOption = "auto",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Measure the loss of an old or a new checkpoint."""
    from modernize.measure import check_context
    from modernize.measure import evaluate as measure
    from modernize.show import show_evaluations

    loaded = load_ready(checkpoint, facts, weights, device, out)
    contexts = context or [loaded.model.block_size]
    for length in contexts:
        check_context(loaded.model, length)
    corpus = reading.corpus(loaded)
    found = []
    for length in contexts:
        with out.progress(f"context {length}") as advance:
            found.append(measure(loaded.model, corpus, context=length, split=split, progress=advance))
    plain = {"path": str(checkpoint), **found[0].to_json(), "contexts": [e.to_json() for e in found]}
    out.warnings([f"the loss at context {e.context} is not a finite number" for e in found if e.loss != e.loss])
    out.answer(plain, lambda o: show_evaluations(o, found))


@app.command(epilog="Example: modernize compare old.pt new.safetensors --data pydoc")
@takes(reading=True)
def compare(
    old: Annotated[Path, file_argument("OLD", "The old checkpoint.")],
    new: Annotated[Path, file_argument("NEW", "The modern one.")],
    *,
    reading: Reading,
    device: DeviceOption = "auto",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Measure an old and a new checkpoint side by side, also past the old context."""
    from modernize.measure import check_comparable
    from modernize.measure import compare as measure
    from modernize.show import show_comparison

    before = load_ready(old, facts, weights, device, out)
    after = load_ready(new, facts, weights, device, out)
    check_comparable(before.model, after.model)
    corpus = reading.corpus(before)
    with out.progress("compare") as advance:
        found = measure(before.model, after.model, corpus, progress=advance)
    out.answer(found.to_json(), lambda o: show_comparison(o, found))


@app.command(epilog='Example: modernize sample new.safetensors --prompt "The with statement" --tokens 200')
@takes(json=False)
def sample(
    checkpoint: Ckpt,
    *,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="What the text begins with.")] = None,
    prompt_ids: Annotated[
        str | None,
        typer.Option("--prompt-ids", metavar="IDS", help='The same as token ids, "1, 2, 3"; then ids are written.'),
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="How many to write.")] = 200,
    temperature: Annotated[float, typer.Option("--temperature", min=0, help="0 takes the likeliest.")] = 1.0,
    top_k: Annotated[int | None, typer.Option("--top-k", min=1, help="Only among the K likeliest.")] = None,
    seed: SeedOption = 0,
    tokenizer: TokenizerOption = None,
    device: DeviceOption = "auto",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Let an old or a new checkpoint write: an old one up to its context, a new one also past it."""
    from modernize.sample import write_text
    from modernize.tokenizer import IdsTokenizer

    start = prompt_of(prompt, prompt_ids)
    loaded = load_ready(checkpoint, facts, weights, device, out)
    pieces = write_text(
        loaded.model,
        tokenizer_for(loaded, tokenizer) if prompt_ids is None else IdsTokenizer(loaded.model.vocab_size),
        start,
        tokens=tokens,
        temperature=temperature,
        top_k=top_k or 0,
        seed=seed,
        tell=out.note,
    )
    out.stream(start)
    try:
        for piece in pieces:
            out.stream(piece)
    finally:  # an error that breaks it off stands on a line of its own
        out.stream("\n")


@app.command()
@takes(facts=False)
def dialects(*, out: "Output") -> None:
    """List the dialects, with the names by which each is recognised."""
    from modernize.dialects import DIALECTS
    from modernize.show import dialects_json, show_dialects

    out.answer(dialects_json(DIALECTS), lambda o: show_dialects(o, DIALECTS))


def main() -> NoReturn:
    """Run the command line and exit."""
    run(app)
