"""Commands that run a model: its loss, two side by side, and text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modernize.choices import Split, Weights
from modernize.commands.ready import load_ready, prompt_of
from modernize.options import (
    Ckpt,
    DeviceOption,
    Force,
    PlotOption,
    Reading,
    SeedOption,
    TokenizerOption,
    file_argument,
    takes,
    tokenizer_for,
)

if TYPE_CHECKING:
    from modernize.console import Output
    from modernize.facts import Facts
    from modernize.loading import Rope


@takes(reading=True, rope=True)
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
    rope: "Rope",
    out: "Output",
) -> None:
    """Measure the loss of an old or a new checkpoint."""
    from modernize.measure import check_context, doubts_of
    from modernize.measure import evaluate as measure
    from modernize.show import show_evaluations

    loaded = load_ready(checkpoint, out, facts=facts, weights=weights, device=device, rope=rope)
    contexts = context or [loaded.model.block_size]
    for length in contexts:
        check_context(loaded.model, length)
    corpus = reading.corpus(loaded)
    found = []
    for length in contexts:
        with out.progress(f"context {length}") as advance:
            found.append(measure(loaded.model, corpus, context=length, split=split, progress=advance))
    plain = {"path": str(checkpoint), **found[0].to_json(), "contexts": [e.to_json() for e in found]}
    out.warnings([text for e in found[:1] for text in doubts_of(e.loss, loaded.model.vocab_size)])
    out.warnings([f"the loss at context {e.context} is not a finite number" for e in found if e.loss != e.loss])
    out.answer(plain, lambda o: show_evaluations(o, found))


@takes(reading=True, rope=True)
def compare(
    old: Annotated[Path, file_argument("OLD", "The old checkpoint.")],
    new: Annotated[Path, file_argument("NEW", "The modern one.")],
    *,
    reading: Reading,
    device: DeviceOption = "auto",
    plot: PlotOption = None,
    force: Force = False,
    facts: "Facts",
    weights: Weights,
    rope: "Rope",
    out: "Output",
) -> None:
    """Measure an old and a new checkpoint side by side. The table goes on past the old context."""
    from modernize.measure import check_comparable
    from modernize.measure import compare as measure
    from modernize.plot import check_plot, plot_comparison
    from modernize.show import show_comparison
    from modernize.write import check_output

    if plot:
        check_output(plot, inputs=reading.files(old, new), force=force)
        check_plot(plot)
    after = load_ready(new, out, device=device, rope=rope)
    before = load_ready(old, out, facts=facts, weights=weights, device=device, successor=after.stored)
    check_comparable(before.model, after.model)
    corpus = reading.corpus(before)
    with out.progress("compare") as advance:
        found = measure(before.model, after.model, corpus, progress=advance)
    out.answer(found.to_json(), lambda o: show_comparison(o, found))
    if plot:
        plot_comparison(found, plot)


@takes(rope=True, json=False)
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
    rope: "Rope",
    out: "Output",
) -> None:
    """Let an old or a new checkpoint write. An old one stops at its context, a new one goes on past it."""
    from modernize.sample import write_text
    from modernize.tokenizer import IdsTokenizer

    start = prompt_of(prompt, prompt_ids)
    loaded = load_ready(checkpoint, out, facts=facts, weights=weights, device=device, rope=rope)
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
