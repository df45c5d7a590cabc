"""Convert: read, recognise, rewrite, write, as one call that gives a report."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modernize.checkpoint import open_checkpoint
from modernize.choices import Bias, DTypeName, Init, Tie, Weights
from modernize.errors import BadTensors, UsageError
from modernize.inspection import Parameters, fates_of
from modernize.recognise import Facts, Recognised, recognise
from modernize.rewrite.apply import Rewritten, rewrite
from modernize.rewrite.plan import Plan
from modernize.spec import State
from modernize.tokenizer import VocabularyTokenizer, find_tokenizer, vocabulary_beside
from modernize.write import check_output, check_suffix, model_metadata, write_model


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
    warnings: tuple[str, ...]
    written: bool

    def to_json(self) -> dict[str, Any]:
        """As CLI.md promises it; `calibration` is null for moves that need none."""
        return {
            "input": str(self.input),
            "output": str(self.output),
            "sha256": self.sha256,
            "dialect": self.dialect,
            "init": self.init,
            "dropped": list(self.dropped),
            "reinitialized": list(self.reinitialized),
            "parameters": self.parameters.to_json(),
            "calibration": None,
            "warnings": list(self.warnings),
        }


def convert(
    old: str | Path,
    new: str | Path,
    *,
    init: Init = "fold",
    bias: Bias = "drop",
    tie: Tie = "auto",
    rope_base: float = 10000.0,
    dtype: DTypeName = "keep",
    tokenizer: str | None = None,
    facts: Facts | None = None,
    weights: Weights = "model",
    force: bool = False,
    dry_run: bool = False,
) -> Conversion:
    """Convert the checkpoint `old` into the modern file `new`.

    Computed in float64 and written in `dtype`, or in the dtype that most of the old weights have.

    Raises:
        UsageError: options that contradict each other.
        InputRefused: the input cannot be used; see `recognise`.
        OutputRefused: the output exists, is the input, or cannot be written.
    """
    old, new = Path(old), Path(new)
    if init == "reset" and bias == "keep":
        raise UsageError("--init reset drops every bias, so --bias keep contradicts it", hint="use --init fold")
    if not rope_base > 1:
        raise UsageError(f"--rope-base {rope_base} is not above 1", hint="10000 is usual")
    check_output(new, inputs=(old,), force=force)
    check_suffix(new)
    checkpoint = open_checkpoint(old, weights=weights)
    found = recognise(checkpoint, facts)
    check_output(new, inputs=(checkpoint.file,), force=force)
    before = found.state()
    made = rewrite(before, found.spec, Plan(init=init, bias=bias, rope_base=rope_base), tie=tie)
    state = _cast(made, found, _dtype(before) if dtype == "keep" else getattr(torch, dtype))
    sha256 = checkpoint.sha256()
    if not dry_run:
        metadata = model_metadata(
            made.config,
            sha256=sha256,
            dialect=found.dialect.name,
            init=init,
            vocabulary=_vocabulary(found, tokenizer),
        )
        write_model(new, state, metadata)
    fates = fates_of(found, made.plan)
    return Conversion(
        input=old,
        output=new,
        sha256=sha256,
        dialect=found.dialect.name,
        init=init,
        dropped=tuple(f.name for f in fates if f.fate == "dropped"),
        reinitialized=tuple(f.name for f in fates if f.fate == "reinitialized"),
        parameters=Parameters(before=found.spec.parameters(), after=made.config.parameters()),
        warnings=(*found.warnings, *made.warnings),
        written=not dry_run,
    )


def _vocabulary(found: Recognised, tokenizer: str | None) -> Mapping[str, int]:
    """The characters or words of the old model, so that the new file can speak alone: as the user names them, inside
    its file, or beside it. Tokenizer files are not copied.
    """
    tokens = found.checkpoint.vocabulary or vocabulary_beside(found.checkpoint.path)
    if tokenizer:
        chosen = find_tokenizer(
            tokenizer, vocabulary=tokens, beside=found.checkpoint.path, vocab_size=found.spec.vocab_size
        )
        tokens = chosen.stoi if isinstance(chosen, VocabularyTokenizer) else {}
    return tokens if max(tokens.values(), default=-1) < found.spec.vocab_size else {}


def _dtype(state: State) -> torch.dtype:
    """The dtype that most of the weights have."""
    sizes: dict[torch.dtype, int] = {}
    for tensor in state.values():
        sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def _cast(made: Rewritten, found: Recognised, dtype: torch.dtype) -> State:
    """One cast at the end. Raises BadTensors where a value does not fit, by the old file's name."""
    state = {name: tensor.to(dtype) for name, tensor in made.state.items()}
    for name, tensor in state.items():
        if not torch.isfinite(tensor).all():
            old_name = name.replace("norm_", "ln_").replace(".gain", ".weight")
            source = ", ".join(found.sources_of(old_name)) or name
            largest = made.state[name].abs().max().item()
            raise BadTensors(
                f"{found.checkpoint.path}: {source} becomes {largest:.3g}, which {str(dtype).removeprefix('torch.')} "
                "cannot hold",
                hint="use --dtype bfloat16 or float32",
            )
    return state
