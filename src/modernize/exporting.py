"""Export: a modern model as a folder that other runtimes load with no code of ours."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modernize.choices import DataDType, DTypeName, Runtime
from modernize.data import SELF, Corpus, data_files, load_corpus_for
from modernize.errors import MissingTokenizer, UsageError, check_choice
from modernize.loading import AS_WRITTEN, Loaded, Rope, load_modern
from modernize.measure import compare
from modernize.model import ModernGPT
from modernize.progress import Stages, unseen
from modernize.rewrite.absorb import without_head_bias
from modernize.rewrite.silu import with_silu
from modernize.runtimes import RUNTIMES, Layout
from modernize.runtimes.back import check_files, check_logits
from modernize.runtimes.card import facts_of, model_card
from modernize.runtimes.folder import (
    CARD,
    CONFIG,
    GENERATION,
    MARK,
    check_folder,
    whole_folder,
    write_json,
    write_text,
    write_weights,
)
from modernize.runtimes.tokens import TokenizerFiles, check_tokenizer, files_for
from modernize.sample import self_corpus
from modernize.spec import ModernConfig, State
from modernize.tokenizer import Tokenizer, find_tokenizer, tokenizer_files
from modernize.write import cast

MEASURED = 4096  # tokens on which two forms of a model are compared


@dataclass(frozen=True, kw_only=True)
class Difference:
    """What an export that is not exact does otherwise, in nats on `tokens` of calibration text."""

    source: str
    tokens: int
    loss_before: float
    loss_after: float
    kl: float

    def __str__(self) -> str:
        return (
            f"on {self.tokens:,} tokens of {'its own text' if self.source == SELF else self.source}, KL from the model "
            f"{self.kl:.5f} nats, loss {self.loss_before:.4f} before and {self.loss_after:.4f} after"
        )


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written. `difference` is None where the export computes what the model does; `checked` is the version
    of `transformers` that loaded it, or empty.
    """

    input: Path
    output: Path
    architecture: str
    files: tuple[str, ...]
    parameters: int
    difference: Difference | None
    checked: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "input": str(self.input),
            "output": str(self.output),
            "architecture": self.architecture,
            "files": list(self.files),
            "parameters": self.parameters,
            "difference": vars(self.difference) if self.difference else None,
            "checked": self.checked or None,
            "warnings": list(self.warnings),
        }


def export(
    new: str | Path,
    folder: str | Path,
    *,
    to: Runtime,
    tokenizer: str | None = None,
    dtype: DTypeName = "keep",
    calibrate: str | Path | Corpus = SELF,
    data_dtype: DataDType = "uint16",
    seed: int = 0,
    rope: Rope = AS_WRITTEN,
    force: bool = False,
    progress: Stages = unseen,
) -> Exported:
    """Write the modern file `new` as a folder for `transformers` and what reads the same.

    `arcee` computes what the model does, `llama` puts SiLU in the place of a GELU. What is not exact is measured on
    text that the model writes itself, or on the validation part of DATA (`calibrate`). The folder is loaded back and
    compared before it gets its name.

    Raises:
        UsageError: an old model, or one that the runtime has no place for.
        InputRefused: the input, the tokenizer or DATA cannot be used.
        OutputRefused: the folder holds other things, or cannot be written.
    """
    new, folder = Path(new), Path(folder)
    for option, word, words in (
        ("to", to, Runtime),
        ("dtype", dtype, DTypeName),
        ("data-dtype", data_dtype, DataDType),
    ):
        check_choice(option, word, words)
    inputs = [new, *tokenizer_files(new), *(tokenizer_files(Path(tokenizer)) if tokenizer else ())]
    inputs += data_files(calibrate) if isinstance(calibrate, str | Path) else ()

    def check() -> None:
        check_folder(folder, inputs=inputs, force=force)

    check()
    model, stored, loaded = load_modern(new, rope=rope, wanted="exported")
    _check_activation(model.config, to, new)
    chosen, warnings = _tokenizer(loaded, tokenizer)
    wanted = next(model.parameters()).dtype if dtype == "keep" else getattr(torch, dtype)
    form = _Form(state=model.to_state(), config=model.config)
    model.requires_grad_(False)
    text: Corpus | None = None
    if _is_changed(model.config, to):
        text = _text(loaded, calibrate, tokenizer=tokenizer, data_dtype=data_dtype, seed=seed, progress=progress)
        form = _changed(form, model.float(), to, text)
    elif calibrate != SELF:
        warnings.append("nothing is measured on --calibrate, since the export computes what the model does")
    state = cast(form.state, wanted, origin=lambda name: f"{new}: {name}")
    after = ModernGPT.from_state(form.config, {name: tensor.float() for name, tensor in state.items()})
    difference = _difference(model, after, text, progress) if text else None
    layout = RUNTIMES[to](state, form.config)
    tokens = files_for(chosen, context=form.config.trained_context) if chosen else None
    notes = [*form.notes, *([f"measured {difference}"] if difference else [])]
    settings = layout.config | _ends(tokens) | _dtypes(wanted) | {MARK: facts_of(stored)}
    with whole_folder(folder, check) as aside:
        _fill(aside, layout, settings, tokens)
        write_text(aside / CARD, model_card(layout, form.config, stored, notes, tokenizer=tokens is not None))
        check_files(aside, settings, layout.tensors)
        if chosen and tokens:
            check_tokenizer(aside, chosen, end=tokens.end)
        checked = check_logits(aside, after)
        files = tuple(sorted(entry.name for entry in aside.iterdir()))
    return Exported(
        input=new,
        output=folder,
        architecture=layout.architecture,
        files=files,
        parameters=sum(tensor.numel() for tensor in layout.tensors.values()),
        difference=difference,
        checked=checked,
        warnings=(*loaded.warnings, *warnings, *form.notes),
    )


def _check_activation(config: ModernConfig, to: Runtime, path: Path) -> None:
    if to == "llama" and config.activation == "relu":
        raise UsageError(
            f"{path} has ReLU, and what reads a Llama computes SiLU, which is on where ReLU is off",
            hint=f"use --to arcee, or train SiLU into it: modernize finetune {path} --activation silu --data DATA",
        )


def _tokenizer(loaded: Loaded, option: str | None) -> tuple[Tokenizer | None, list[str]]:
    """The tokenizer of the model, or a warning where nothing names one. Raises BadData for one that does not fit."""
    size = loaded.model.vocab_size
    try:
        found = find_tokenizer(option, vocabulary=loaded.vocabulary, beside=loaded.path, vocab_size=size)
    except MissingTokenizer:
        said = f"{loaded.path} comes with no tokenizer, so the export takes ids alone; --tokenizer PATH adds one"
        return None, [said]
    return found, []


# ---------------------------------------------------------------------------------------------- what is not exact


@dataclass(frozen=True, kw_only=True)
class _Form:
    """A State and its configuration, and what was changed that is not exact."""

    state: State
    config: ModernConfig
    notes: tuple[str, ...] = ()


def _is_changed(config: ModernConfig, to: Runtime) -> bool:
    return "head" in config.biases or (to == "llama" and config.activation != "silu")


def _changed(form: _Form, model: ModernGPT, to: Runtime, text: Corpus) -> _Form:
    """Without a head bias, which no class has a place for; for a Llama with SiLU."""
    form = replace(form, state={name: tensor.double() for name, tensor in form.state.items()})
    if "head" in form.config.biases:
        ids = torch.from_numpy(text.val).long()
        parts = zip(torch.split(ids[:, :-1].clamp(min=0), 1), torch.split(ids[:, 1:] >= 0, 1), strict=True)
        with torch.inference_mode():
            states = torch.cat([model.states(part)[known] for part, known in parts])  # (n, d)
        state, config, share = without_head_bias(form.state, form.config, states)
        note = f"the head's bias went into its matrix, which takes up {100 * share:.1f} % of it"
        form = _Form(state=state, config=config, notes=(*form.notes, note))
    if to == "llama" and form.config.activation != "silu":
        state, config = with_silu(form.state, form.config)
        note = f"SiLU stands in the place of {form.config.activation}"
        form = _Form(state=state, config=config, notes=(*form.notes, note))
    return form


def _text(
    loaded: Loaded,
    calibrate: str | Path | Corpus,
    *,
    tokenizer: str | None,
    data_dtype: DataDType,
    seed: int,
    progress: Stages,
) -> Corpus:
    """Rows of the model's context to measure on, (n, T + 1): what the model writes, or windows of DATA."""
    model, context = loaded.model, loaded.model.block_size
    if isinstance(calibrate, str) and calibrate == SELF:
        told = partial(progress, "the model writes")
        found = self_corpus(model, context=context, tokens=MEASURED, seed=seed, progress=told)
        return replace(found, val=found.train, train=found.train[:0])
    if not isinstance(calibrate, Corpus):
        calibrate = load_corpus_for(
            calibrate,
            beside=loaded.path,
            vocabulary=loaded.vocabulary,
            vocab_size=model.vocab_size,
            tokenizer=tokenizer,
            dtype=data_dtype,
            progress=progress,
        )
    windows = calibrate.windows("val", context, vocab_size=model.vocab_size)
    if windows.ids.ndim == 2:
        count = max(1, MEASURED // windows.ids.shape[1])
        rows = np.array(windows.ids[:count], dtype=np.int64)  # with their padding
    else:
        inputs, targets = windows.take(np.arange(min(len(windows), max(1, MEASURED // context))))
        rows = np.concatenate([inputs, targets[:, -1:]], axis=1)
    return Corpus(name=calibrate.name, train=rows[:0], val=rows)


def _difference(before: ModernGPT, after: ModernGPT, text: Corpus, progress: Stages) -> Difference:
    found = compare(before, after, text, progress=partial(progress, "comparing"))
    return Difference(
        source=text.name,
        tokens=found.new.tokens,
        loss_before=found.old.loss,
        loss_after=found.new.loss,
        kl=found.kl,
    )


# ---------------------------------------------------------------------------------------------- the folder


def _fill(folder: Path, layout: Layout, settings: Mapping[str, Any], tokens: TokenizerFiles | None) -> None:
    """Weights, settings and tokenizer files."""
    write_weights(folder, layout.tensors)
    write_json(folder / CONFIG, settings)
    write_json(folder / GENERATION, _ends(tokens))
    for name, text in (tokens.files if tokens else {}).items():
        write_text(folder / name, text)


def _ends(tokens: TokenizerFiles | None) -> dict[str, Any]:
    """Ids of the tokens that begin, end and fill a text; null where there are none, or classes would make them up."""
    end = tokens.end if tokens else None
    return {"bos_token_id": end, "eos_token_id": end, "pad_token_id": None}


def _dtypes(dtype: torch.dtype) -> dict[str, Any]:
    """The dtype of the weights, under its name of today and that of before."""
    name = str(dtype).removeprefix("torch.")
    return {"dtype": name, "torch_dtype": name}
