"""A Hugging Face directory: `config.json` with `model.safetensors` or `pytorch_model.bin`, whole or in shards."""

from pathlib import Path
from typing import Any

from modernize.checkpoint import strict_json
from modernize.checkpoint.base import Checkpoint, Source
from modernize.checkpoint.envelope import assemble
from modernize.checkpoint.faults import Fault
from modernize.checkpoint.kinds import Kind
from modernize.checkpoint.shards import ShardedSource, shards_in, source_of
from modernize.errors import UnreadableFile

HF_FORMAT = Kind.FOLDER.value
INDEX = ".index.json"
# the first that is there is read
WEIGHT_FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
CONFIG = "config.json"


# what lies in a folder of another kind: patterns of file names, what the folder is, what to do
_FROM_PYTORCH = "load the model in transformers with {} and save_pretrained() it from PyTorch"
FOLDERS = (
    (
        ("adapter_config.json",),
        "a PEFT adapter (LoRA), which is no whole model",
        "merge it into its model first: model.merge_and_unload().save_pretrained(DIR)",
    ),
    (
        ("*.distcp", ".metadata"),
        "a distributed checkpoint (.distcp shards)",
        "gather it with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch DIR FILE`",
    ),
    (
        ("zero_to_fp32.py", "*zero_pp_rank_*"),
        "a DeepSpeed ZeRO checkpoint",
        "gather the weights first with `python zero_to_fp32.py DIR OUT`, which DeepSpeed puts into its folder",
    ),
    (
        ("_CHECKPOINT_METADATA", "manifest.ocdbt"),
        "an Orbax (JAX) checkpoint",
        "load it in JAX and save its arrays with safetensors.flax.save_file",
    ),
    (("flax_model.msgpack",), "a Flax model", _FROM_PYTORCH.format("from_flax=True")),
    (("tf_model.h5", "saved_model.pb", "*.ckpt*.index"), "a TensorFlow model", _FROM_PYTORCH.format("from_tf=True")),
)


def open_hf_folder(path: Path) -> Checkpoint:
    """Open a folder; code that lies in it is never looked at. Raises UnreadableFile for what is missing or damaged."""
    config = _config(path)
    there = _weights_in(path)
    if not there:
        _check_folder(path)
        raise UnreadableFile(
            f"{path} has a {CONFIG} but none of {', '.join(WEIGHT_FILES)}", hint="download the weights as well"
        )
    file = path / there[0]
    source: Source = ShardedSource(file) if file.name.endswith(INDEX) else source_of(file)
    others = " and ".join(there[1:])
    return assemble(
        path,
        format=HF_FORMAT,
        files=source.files if isinstance(source, ShardedSource) else (file,),
        source=source,
        notes={CONFIG: config},
        warnings=(f"{path} holds {there[0]} and {others}; {there[0]} was read",) if others else (),
    )


def _weights_in(path: Path) -> list[str]:
    """The files of WEIGHT_FILES that are there. An index that an older save left beside a whole file is a stale one."""
    return [name for name in WEIGHT_FILES if (path / name).is_file()]


def files_of(path: Path) -> tuple[Path, ...]:
    """The files that a checkpoint is read from: of a folder those that are there, else the file itself."""
    if not path.is_dir():
        return (path,)
    there = [path / name for name in (CONFIG, *_weights_in(path)) if (path / name).exists()]
    return (*there, *(shard for file in there if file.name.endswith(INDEX) for shard in shards_in(file)))


def _check_folder(path: Path) -> None:
    """Raises UnreadableFile for a folder of another kind."""
    for patterns, what, hint in FOLDERS:
        if any(any(path.glob(pattern)) for pattern in patterns):
            raise UnreadableFile(f"{path} is {what}", hint=hint)


def config_beside(file: Path) -> dict[str, Any]:
    """The configuration that belongs to a file of weights by its name, under its own; empty where there is none."""
    there = file.name in WEIGHT_FILES and (file.parent / CONFIG).is_file()
    return {CONFIG: _config(file.parent)} if there else {}


def _config(path: Path) -> dict[str, Any]:
    there = path / CONFIG
    try:
        if there.exists() and not there.is_file():  # a pipe would never end
            raise UnreadableFile(f"{there} is not a regular file", hint="download it again")
        config = strict_json.read(there)
    except FileNotFoundError as error:
        _check_folder(path)
        empty = f"the path is empty or `.`, and the current folder has no {CONFIG}"
        files = [file for kind in ("*.safetensors", "*.pt", "*.pth", "*.ckpt", "*.bin") for file in path.glob(kind)]
        raise UnreadableFile(
            empty if path == Path() else f"{path} is a folder without {CONFIG}",
            hint=f"give the checkpoint file itself{f': {sorted(files)[0]}' if files else ''}, or a Hugging Face folder",
        ) from error
    except (OSError, Fault) as error:
        raise UnreadableFile(f"{there} cannot be read: {error}", hint="download it again") from error
    if not isinstance(config, dict):
        raise UnreadableFile(f"{there} is no JSON object", hint="download it again")
    return config
