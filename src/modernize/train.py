"""Tune: all weights are trained for a few dozen steps to win back the old model's loss.

`finetune` is a generator of events; the bar, the log, the plot and the tests all live on them. When it is done the
model holds the weights of the best validation.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from modernize.data import Corpus
from modernize.errors import BadData, OutOfMemory, UsageError
from modernize.events import Event, Settings
from modernize.feed import longest_window
from modernize.loading import Model
from modernize.measure import corpus_for
from modernize.memory import is_out_of_memory
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.parallel import World
from modernize.rewrite.silu import put_silu
from modernize.run import Run
from modernize.surroundings import Surroundings
from modernize.tokenizer import Tokenizer

TOKENS_A_STEP = 2048  # of the default batch, and never fewer than FEWEST_WINDOWS windows
FEWEST_WINDOWS = 8
MOST_TOKENS = 1 << 24  # of a batch; more would be a slip of the hand, found out when memory is full
TARGET = 2  # contexts of the old model, that the longest window has


def finetune(
    model: Model,
    data: str | Path | Corpus,
    *,
    teacher: Model | None = None,
    tokenizer: Tokenizer | None = None,
    settings: Settings | None = None,
    surroundings: Surroundings | None = None,
    **options: object,
) -> Iterator[Event]:
    """Train `model` on the training part of DATA, in place; `options` are fields of Settings.

    The weights of the model become float32 on the chosen device. So do the teacher's, but where products are made in
    another precision, the teacher is left as it is, and a narrow copy teaches. Yields Started (after Notices, where
    there is something to say), then Stepped, Validated and Saved, then Finished. The best validation may be that before
    the first step. `surroundings` says where the run is saved and with whom it is shared; by default it is alone.

    Raises:
        TypeError: settings and options together, or an option that is none.
        UsageError, BadData: before any work.
        TrainingStopped: a loss or gradient that is not finite; the model then holds its best weights so far.
    """
    if settings is not None and options:
        raise TypeError(f"give settings or single options, not both: {', '.join(options)}")
    chosen = settings or Settings(**options)  # type: ignore[arg-type]
    if not isinstance(model, ModernGPT) or not isinstance(teacher, OldGPT | None):
        raise UsageError(
            "a modern model is fine-tuned, and an old one teaches",
            hint="convert the old model first; the teacher is the old checkpoint, loaded",
        )
    around = surroundings or Surroundings()
    chosen = check_settings(chosen, model, teacher, around.world)
    corpus = corpus_for(model, data, tokenizer)
    if not len(corpus.train):
        raise BadData(
            f"{corpus.name} has no training part",
            hint="give a longer text, or a folder in which train.bin lies beside val.bin",
        )
    chosen = _within(chosen, corpus, model)
    try:
        run = Run(model, corpus, teacher, chosen, around)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise OutOfMemory(
                "the models do not fit into the memory of the device",
                hint="use --shard on more devices, or --device cpu",
            ) from error
        raise
    if chosen.activation == "silu":  # when nothing is left to be refused
        put_silu(model)
    return run.events()


def _within(settings: Settings, corpus: Corpus, model: ModernGPT) -> Settings:
    """The settings with the target context chosen. Raises BadData where DATA has none as long as its user wants."""
    asked = settings.target_context
    reach = longest_window(corpus, asked or TARGET * model.block_size)
    if reach < asked:
        rows = corpus.train.ndim == 2
        raise BadData(
            f"{corpus.name} has no window of {asked} tokens to train on",
            hint="leave --target-context out: rows are no longer than they are"
            if rows
            else "give a longer text, or a smaller --target-context",
        )
    return replace(settings, target_context=max(reach, settings.block_size))


def default_batch_size(block_size: int, processes: int = 1) -> int:
    """Windows a step: about TOKENS_A_STEP tokens, however many processes share them, but one for each at least."""
    return max(FEWEST_WINDOWS, TOKENS_A_STEP // block_size, processes)


def check_settings(settings: Settings, model: ModernGPT, teacher: OldGPT | None, world: World) -> Settings:
    """The settings with batch and block size chosen. Raises UsageError for what does not fit together."""
    settings.check()
    block = settings.block_size or model.block_size
    batch = settings.batch_size or default_batch_size(block, world.size)
    if teacher is not None and teacher.vocab_size != model.vocab_size:
        raise UsageError(
            f"the teacher knows {teacher.vocab_size} tokens and the model {model.vocab_size}",
            hint="the teacher is the old model that this one was converted from",
        )
    if settings.until_recovered and teacher is None:
        raise UsageError(
            "--until-recovered needs the old model, whose loss is to be reached", hint="give it: --teacher OLD"
        )
    if batch < world.size:
        raise UsageError(
            f"a batch of {batch} windows is too small to be shared by {world.size} processes",
            hint=f"use --batch-size {world.size}",
        )
    if batch * block > MOST_TOKENS:
        raise UsageError(
            f"a batch of {batch:,} windows has {batch * block:,} tokens, and {MOST_TOKENS:,} are the most",
            hint=f"use --batch-size {max(1, MOST_TOKENS // block)}",
        )
    if settings.shard and settings.dtype == "float16":
        raise UsageError("--shard and --dtype float16 don't go together", hint="use --dtype bfloat16")
    if settings.target_context and settings.target_context < block:
        raise UsageError(
            f"--target-context {settings.target_context} is below the window of {block} tokens",
            hint="give a larger one, or a smaller --block-size",
        )
    return replace(settings, block_size=block, batch_size=batch)
