"""Convert: read, recognise, calibrate, rewrite, write, as one call that gives a report."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modernize.ahead import ahead
from modernize.calibration import (
    Calibration,
    old_loss,
    old_model,
    text_from_data,
    text_from_self,
    tie_harm,
)
from modernize.calibration import calibrate as run_calibration
from modernize.checkpoint import files_of, open_checkpoint
from modernize.checkpoint.base import stamps_of
from modernize.choices import Bias, DataDType, DeviceName, DTypeName, Effort, Init, Tie, Weights
from modernize.data import SELF, Corpus, data_files, load_corpus_for
from modernize.devices import device_for_fits
from modernize.errors import BadData, check_choice
from modernize.hashing import Hashing
from modernize.inspection import Parameters, fates_of
from modernize.masks import check_masks
from modernize.old import OldGPT
from modernize.progress import Stages, unseen
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.plan import Plan
from modernize.rewrite.stream import one_thread, stream
from modernize.rewrite.tie import settle_tie
from modernize.rewrite.work import Text
from modernize.spec import State
from modernize.tokenizer import VocabularyTokenizer, find_tokenizer, vocabulary_beside
from modernize.write import cast, check_output, check_suffix, model_metadata, write_streamed


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What `convert` did. `dropped` and `reinitialized` name old tensors; `written` is false for a dry run."""

    input: Path
    output: Path
    sha256: str
    dialect: str
    init: Init
    dropped: tuple[str, ...]
    reinitialized: tuple[str, ...]
    parameters: Parameters
    calibration: Calibration | None  # None for moves that need no text
    warnings: tuple[str, ...]
    written: bool

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "input": str(self.input),
            "output": str(self.output),
            "sha256": self.sha256,
            "dialect": self.dialect,
            "init": self.init,
            "dropped": list(self.dropped),
            "reinitialized": list(self.reinitialized),
            "parameters": self.parameters.to_json(),
            "calibration": self.calibration.to_json() if self.calibration else None,
            "warnings": list(self.warnings),
        }


def convert(
    old: str | Path,
    new: str | Path,
    *,
    init: Init = "retrofit",
    effort: Effort = "quick",
    calibrate: str | Path | Corpus = SELF,
    bias: Bias = "drop",
    tie: Tie = "auto",
    rope_base: float = 10000.0,
    dtype: DTypeName = "keep",
    seed: int = 0,
    device: DeviceName = "auto",
    tokenizer: str | None = None,
    data_dtype: DataDType = "uint16",
    facts: Facts | None = None,
    weights: Weights = "model",
    force: bool = False,
    dry_run: bool = False,
    progress: Stages = unseen,
) -> Conversion:
    """Convert the checkpoint `old` into the modern file `new`.

    `retrofit` is calibrated on text that the old model writes itself, or on the training part of DATA (`calibrate`),
    with as much `effort` as wished, on `device`. Weights are computed in float64, fitted ones in float32, and written
    in `dtype`, or in the dtype that most of the old weights have. Same file, options, machine and version: same bytes.

    Raises:
        UsageError: options that contradict each other.
        InputRefused: the input cannot be used; see `recognise` and `load_corpus`.
        OutputRefused: the output exists, is the input, or cannot be written.
    """
    old, new = Path(old), Path(new)
    wished = Plan(init=init, bias=bias, rope_base=rope_base)
    for option, word, words in (
        ("dtype", dtype, DTypeName),
        ("effort", effort, Effort),
        ("device", device, DeviceName),
        ("data-dtype", data_dtype, DataDType),
    ):
        check_choice(option, word, words)
    inputs = (*files_of(old), *(data_files(calibrate) if isinstance(calibrate, str | Path) else ()))
    check_output(new, inputs=inputs, force=force)
    check_suffix(new)
    stamps = stamps_of(files_of(old))
    checkpoint = open_checkpoint(old, weights=weights)
    found = recognise(checkpoint, facts)
    vocabulary, warnings = _vocabulary(found, tokenizer)
    wanted = _dtype(found) if dtype == "keep" else getattr(torch, dtype)
    narrowed = partial(cast, dtype=wanted, origin=partial(_origin, found=found))
    with Hashing(checkpoint, files_of(old), stamps) as hashing:
        if init == "retrofit":
            before = found.state(verified=True)
            hashing.sha256()  # verifies; all is read, and the file may go
            made = _retrofitted(
                found,
                before,
                wished,
                narrowed,
                tie=tie,
                effort=effort,
                calibrate=calibrate,
                tokenizer=tokenizer,
                data_dtype=data_dtype,
                seed=seed,
                device=device,
                progress=progress,
            )
        else:
            with one_thread():
                made = _streamed(found, wished, narrowed, tie=tie)
        config = made.plan.config(found.spec)
        metadata = partial(
            model_metadata,
            config,
            dialect=found.dialect.name,
            facts=found.facts(facts or Facts()),
            init=init,
            vocabulary=vocabulary,
            calibration=made.calibration.summary() if made.calibration else None,
        )
        rows = {name: (shape, wanted) for name, shape in config.shapes().items()}
        with one_thread(), closing(ahead(hashing.readable(made.pieces))) as pieces:
            if dry_run:
                deque(pieces, maxlen=0)
            else:
                unknown, known = metadata(sha256="0" * 64), lambda: metadata(sha256=hashing.sha256())
                write_streamed(new, rows, pieces, unknown, final=known)
        sha256 = hashing.sha256()
    fates = fates_of(found, made.plan)
    return Conversion(
        input=old,
        output=new,
        sha256=sha256,
        dialect=found.dialect.name,
        init=init,
        dropped=tuple(f.name for f in fates if f.fate == "dropped"),
        reinitialized=tuple(f.name for f in fates if f.fate == "reinitialized"),
        parameters=Parameters(before=found.spec.parameters(), after=config.parameters()),
        calibration=made.calibration,
        warnings=(*found.warnings, *made.warnings, *warnings),
        written=not dry_run,
    )


@dataclass(frozen=True, kw_only=True)
class _Made:
    """What is to be written, as it comes: tensors in the order of the new file, each whole or in blocks of rows."""

    plan: Plan
    pieces: Iterator[Tensor]
    warnings: tuple[str, ...]
    calibration: Calibration | None = None


def _streamed(found: Recognised, wished: Plan, narrowed: Callable[[State], State], *, tie: Tie) -> _Made:
    """By moves that need no text: nothing is computed before it is written."""
    check_masks(found.checkpoint, found.steps)
    plan, warnings = settle_tie(found, wished, tie)
    return _Made(plan=plan, pieces=stream(found, plan, narrowed), warnings=warnings)


def _retrofitted(
    found: Recognised,
    before: State,
    wished: Plan,
    narrowed: Callable[[State], State],
    *,
    tie: Tie,
    effort: Effort,
    calibrate: str | Path | Corpus,
    tokenizer: str | None,
    data_dtype: DataDType,
    seed: int,
    device: DeviceName,
    progress: Stages,
) -> _Made:
    """By calibration on text."""
    narrow = cast(before, torch.float32, origin=partial(_origin, found=found))
    model = old_model(found.spec, narrow, device_for_fits(device))
    text = _text(
        calibrate,
        found=found,
        model=model,
        tokenizer=tokenizer,
        data_dtype=data_dtype,
        seed=seed,
        progress=progress,
    )
    loss_old = old_loss(model, text)
    plan, warnings = settle_tie(
        found, wished, tie, measured=lambda: tie_harm(before, found.spec, text, loss_old=loss_old)
    )
    source = calibrate if isinstance(calibrate, str) else getattr(calibrate, "name", str(calibrate))
    made = run_calibration(
        before,
        model,
        plan,
        text,
        source=source,
        effort=effort,
        seed=seed,
        loss_old=loss_old,
        progress=progress,
    )
    pieces = iter(narrowed(made.made.state).values())
    return _Made(plan=made.plan, pieces=pieces, warnings=warnings, calibration=made.calibration)


def _text(
    calibrate: str | Path | Corpus,
    *,
    found: Recognised,
    model: OldGPT,
    tokenizer: str | None,
    data_dtype: DataDType,
    seed: int,
    progress: Stages,
) -> Text:
    """Calibration text. Raises BadData."""
    if isinstance(calibrate, str) and calibrate == SELF:
        return text_from_self(model, seed=seed, progress=progress)
    if not isinstance(calibrate, Corpus):
        calibrate = load_corpus_for(
            calibrate,
            beside=found.checkpoint.path,
            vocabulary=found.checkpoint.vocabulary,
            vocab_size=found.spec.vocab_size,
            tokenizer=tokenizer,
            dtype=data_dtype,
            progress=progress,
        )
    return text_from_data(model, calibrate, seed=seed)


def _vocabulary(found: Recognised, tokenizer: str | None) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """The characters or words of the old model, so that the new file can speak alone, and a warning where a file beside
    it is of no use: as the user names them, inside the checkpoint, or beside it. Tokenizer files are not copied.
    """
    size = found.spec.vocab_size
    if tokenizer:
        chosen = find_tokenizer(tokenizer, vocabulary={}, beside=found.checkpoint.path, vocab_size=size)
        return (chosen.stoi if isinstance(chosen, VocabularyTokenizer) else {}), ()
    try:
        tokens = found.checkpoint.vocabulary or vocabulary_beside(found.checkpoint.path)
    except BadData as error:
        return {}, (f"{error.sentence}; the new file carries no vocabulary",)
    if max(tokens.values(), default=-1) >= size:
        said = f"a vocabulary of {len(tokens)} tokens does not fit a model of {size}; the new file carries none"
        return {}, (said,)
    return tokens, ()


def _dtype(found: Recognised) -> torch.dtype:
    """The dtype that most of the weights have."""
    sizes: dict[torch.dtype, int] = {}
    for name, shape in found.spec.shapes().items():
        dtypes = [getattr(torch, found.checkpoint.tensors[source].dtype) for source in found.sources_of(name)]
        dtype = reduce(torch.promote_types, dtypes)
        sizes[dtype] = sizes.get(dtype, 0) + math.prod(shape)
    return max(sizes, key=lambda dtype: sizes[dtype])


def _origin(name: str, found: Recognised) -> str:
    """What a modern tensor was made from, by the old file's names."""
    old_name = name.replace("norm_", "ln_").replace(".gain", ".weight")
    return f"{found.checkpoint.path}: {', '.join(found.sources_of(old_name)) or name}"
