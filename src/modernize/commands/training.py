"""The command that trains."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modernize.choices import Weights
from modernize.options import (
    Force,
    PlotOption,
    Reading,
    file_argument,
    takes,
)

if TYPE_CHECKING:
    from modernize.console import Output
    from modernize.events import Settings
    from modernize.facts import Facts


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
    plot: PlotOption = None,
    force: Force = False,
    settings: "Settings",
    facts: "Facts",
    weights: Weights,
    out: "Output",
) -> None:
    """Train all weights to win back the old model's loss."""
    from modernize.devices import choose_device
    from modernize.interrupts import caught
    from modernize.memory import keep_freed_memory
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
        keep_freed_memory(choose_device(settings.device))
        with out.stages() as progress:
            events = tune(job, stop=interrupts.asked, world=world, progress=progress)
            report = watch_finetune(out, interrupts.until_trained(events, world.wait), progress)
        out.answer(report.to_json(), lambda o: show_finetune(o, report))
    if report.finished.stopped == "interrupted":  # perhaps by a signal to another process
        raise typer.Exit(interrupts.exit_code or 143)
