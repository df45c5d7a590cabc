"""Commands from file to file: what a checkpoint is, its conversion, its export, and what is known."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modernize.choices import DeviceName, DTypeName, Effort, Init, Runtime, Weights
from modernize.options import (
    BiasOption,
    Ckpt,
    DataDTypeOption,
    Force,
    SeedOption,
    TieOption,
    TokenizerOption,
    file_argument,
    takes,
)

if TYPE_CHECKING:
    from modernize.console import Output
    from modernize.facts import Facts
    from modernize.loading import Rope


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
    """Say what a checkpoint is, and what converting would do."""
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
    out.answer(found.to_json() if out.as_json else {}, lambda o: show_inspection(o, found))


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


@takes(facts=False, rope=True)
def export_folder(
    new: Annotated[Path, file_argument("NEW", "A file that `modernize convert` or `finetune` wrote.")],
    folder: Annotated[Path, file_argument("DIR", "The folder to write.")],
    *,
    to: Annotated[
        Runtime, typer.Option("--to", help="arcee: exact, for transformers. llama: SiLU, for all that runs.")
    ],
    dtype: Annotated[DTypeName, typer.Option("--dtype", help="Of the tensors that are written.")] = "keep",
    calibrate: Annotated[
        str,
        typer.Option("--calibrate", metavar="self|DATA", help="Text to measure on what is not exact."),
    ] = "self",
    tokenizer: TokenizerOption = None,
    data_dtype: DataDTypeOption = "uint16",
    seed: SeedOption = 0,
    force: Force = False,
    rope: "Rope",
    out: "Output",
) -> None:
    """Write a folder that transformers, llama.cpp, vLLM or MLX load."""
    from modernize.exporting import export
    from modernize.show import show_export

    with out.stages() as progress:
        report = export(
            new,
            folder,
            to=to,
            dtype=dtype,
            calibrate=calibrate,
            tokenizer=tokenizer,
            data_dtype=data_dtype,
            seed=seed,
            rope=rope,
            force=force,
            progress=progress,
        )
    out.warnings(report.warnings)
    out.answer(report.to_json(), lambda o: show_export(o, report))


@takes(facts=False)
def dialects(*, out: "Output") -> None:
    """List the dialects, with the names by which each is recognised."""
    from modernize.dialects import DIALECTS
    from modernize.show import dialects_json, show_dialects

    out.answer(dialects_json(DIALECTS), lambda o: show_dialects(o, DIALECTS))
