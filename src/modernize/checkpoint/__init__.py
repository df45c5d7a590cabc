"""Read: a path becomes a Checkpoint, whose names, shapes and dtypes are known before any tensor is read.

limits.py            how much a file may ask for: everything that reads looks here first
faults.py            what the parts of the reader say of a file that is not as it should be
base.py              what a checkpoint is: TensorInfo, Source, Checkpoint
kinds.py             what kind of file it is, by its content, and a sentence for every kind that is no checkpoint

torch_file.py        files that torch wrote, as the dictionary that they hold
  torch_zip.py         since 1.6: a zip archive
  storages.py          the storages that a pickle refers to
  zip_members.py       the members of an archive, none of which can be read in two ways
  torch_legacy.py      before 1.6: pickles and bytes one behind the other
  pickle_machine.py    a pickle, instruction by instruction, without importing or calling anything
  opcodes.py           the instructions that are followed, as a table
  budget.py            what a pickle may cost beside its instructions
  pickle_names.py      what a pickle may name, and the few things that it may call
  nesting.py           values that hold themselves or one another without end
  records.py           what a pickle leaves behind: names, objects, storages, tensors
  numpy_values.py      numpy's numbers and arrays
  modules.py           whole modules: their weights, and what they say of themselves
  configurations.py    where objects of configuration libraries keep their values
safetensors_file.py  safetensors
  strict_json.py       JSON in which every name stands once
places.py            tensors by where their bytes lie, read one at a time; needs torch only for torch's tensors
names.py             names of tensors that are none

hf_folder.py         a Hugging Face directory
shards.py            weights in several files with an index
envelope.py          which of the things in a file are the weights
settings.py          what the rest says: settings and a vocabulary
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modernize.checkpoint.base import Checkpoint, Source, TensorInfo
from modernize.checkpoint.envelope import assemble, is_averaged
from modernize.checkpoint.hf_folder import CONFIG, INDEX, config_beside, files_of, open_hf_folder
from modernize.checkpoint.kinds import Kind, kind_of
from modernize.checkpoint.safetensors_file import SafetensorsSource
from modernize.checkpoint.settings import decoded
from modernize.checkpoint.torch_file import load_torch
from modernize.choices import Weights
from modernize.errors import UnreadableFile, check_choice

_SHARD = re.compile(r".*-\d{5}-of-(\d{5})\.(?:safetensors|bin|pt)")  # as transformers names them

__all__ = ["Checkpoint", "Source", "TensorInfo", "files_of", "open_checkpoint"]


def open_checkpoint(path: str | Path, *, weights: Weights = "model") -> Checkpoint:
    """Open a file or a Hugging Face directory; `weights` chooses between trained and averaged weights.

    Raises:
        UnreadableFile: nothing there, damaged, or another kind of file.
        UnsafeFile: objects that only running code could rebuild.
        AmbiguousInput: two sets of weights, or two keys that mean one tensor.
    """
    check_choice("weights", weights, Weights)
    path = Path(path)
    try:
        _check_shard(path)
        kind = kind_of(path)
    except OSError as error:
        raise UnreadableFile(f"{path} cannot be looked at: {error.strerror}", hint="check the path") from error
    if kind is Kind.FOLDER:
        if weights == "ema":
            raise _one_set(path, kind)
        return open_hf_folder(path)
    if kind is Kind.SAFETENSORS:
        source = SafetensorsSource(path)
        if weights == "ema" and not any(map(is_averaged, source.tensors)):
            raise _one_set(path, kind)
        notes = {key: decoded(value) for key, value in source.metadata.items()}
        return _assembled(path, kind, source, notes, weights)
    root = load_torch(path, legacy=kind is Kind.TORCH_LEGACY)
    chosen, ignored = root.choose(weights), root.ignored(weights)
    said = (f"tensors that are not among the weights are ignored: {ignored}",) if ignored else ()
    if place := root.unusual_place(weights):
        said = (*said, f"the weights were taken from {place}, the only place in the file that has tensors with names")
    return _assembled(path, kind, chosen, root.notes(), weights, said=said)


def _check_shard(path: Path) -> None:
    """Raises UnreadableFile for a part of a model, or the index of its parts."""
    shard = _SHARD.fullmatch(path.name)
    if path.is_file() and (path.name.endswith(INDEX) or (shard and int(shard[1]) > 1)):
        what = f"one of {int(shard[1])} shards of a model" if shard else "the index of a model's shards"
        raise UnreadableFile(f"{path} is {what}", hint=f"give the folder that holds them all: {path.parent}")


def _assembled(
    path: Path, kind: Kind, source: Source, notes: Mapping[str, Any], weights: Weights, *, said: tuple[str, ...] = ()
) -> Checkpoint:
    """One file, with the settings that Hugging Face's names put beside it."""
    beside = config_beside(path)
    if beside:
        said = (*said, f"{CONFIG} beside it was read as well")
    return assemble(
        path,
        format=kind.value,
        files=(path,),
        source=source,
        notes={**notes, **beside},
        warnings=said,
        weights=weights,
    )


def _one_set(path: Path, kind: Kind) -> UnreadableFile:
    return UnreadableFile(
        f"{path} has no averaged weights beside its own: this {kind.value} holds one set", hint="leave --weights out"
    )
