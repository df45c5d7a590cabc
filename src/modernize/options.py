"""Options that many commands share, what they stand for, and the decorator that hands them over in one piece.

A command that is decorated with `takes(...)` gets, beside its own options:

    FACTS    as `facts: Facts` and `weights: Weights`
    READING  as `reading: Reading`, where it takes DATA
    TRAINING as `settings: Settings`, where it trains
    ROPE     as `rope: Rope`, where a modern model may be turned otherwise than its file says
    OUTPUT   as `out: Output`
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modernize.choices import (
    Activation,
    AttnScale,
    Bias,
    DataDType,
    DeviceName,
    ModernActivation,
    Norm,
    OptimizerName,
    PrecisionName,
    Tie,
    Weights,
)

if TYPE_CHECKING:
    from modernize.data import Corpus
    from modernize.loading import Loaded
    from modernize.tokenizer import Tokenizer


def file_argument(name: str, about: str) -> Any:  # noqa: ANN401  (what typer.Argument gives)
    """An argument that names a file; whether it can be read is found out, and told, by the reader."""
    return typer.Argument(metavar=name, help=about, readable=False)


Ckpt = Annotated[Path, file_argument("CKPT", "A checkpoint file or a Hugging Face folder.")]
DeviceOption = Annotated[DeviceName, typer.Option("--device", help="auto takes CUDA, then MPS, then the CPU.")]
BiasOption = Annotated[Bias, typer.Option("--bias", help="What becomes of biases.")]
TieOption = Annotated[Tie, typer.Option("--tie", help="auto unties a tied head only where tying would do harm.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1)]
PlotOption = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Curves of the losses.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing output.")]

_FACTS_PANEL = "Facts that a file cannot say"

FACTS: dict[str, tuple[Any, Any]] = {
    "dialect": (
        Annotated[
            str | None,
            typer.Option("--dialect", metavar="NAME", help="Read it as this dialect.", rich_help_panel=_FACTS_PANEL),
        ],
        None,
    ),
    "n_head": (
        Annotated[int | None, typer.Option("--n-head", help="Number of heads.", rich_help_panel=_FACTS_PANEL)],
        None,
    ),
    "activation": (
        Annotated[
            Activation | None,
            typer.Option("--activation", help="Of the old MLP.", rich_help_panel=_FACTS_PANEL),
        ],
        None,
    ),
    "attn_scale": (
        Annotated[
            AttnScale | None,
            typer.Option("--attn-scale", help="Scores over √(head size) or over √width.", rich_help_panel=_FACTS_PANEL),
        ],
        None,
    ),
    "norm_eps": (
        Annotated[float | None, typer.Option("--norm-eps", help="Epsilon of the norms.", rich_help_panel=_FACTS_PANEL)],
        None,
    ),
    "norm": (
        Annotated[
            Norm | None,
            typer.Option("--norm", help="Norms before attention and MLP, or behind.", rich_help_panel=_FACTS_PANEL),
        ],
        None,
    ),
    "qkv_order": (
        Annotated[
            str,
            typer.Option(
                "--qkv-order",
                metavar="q,k,v",
                help="Order in fused projections.",
                show_default=False,
                rich_help_panel=_FACTS_PANEL,
            ),
        ],
        "q,k,v",
    ),
    "weights": (
        Annotated[
            Weights,
            typer.Option(
                "--weights", help="Of trained and averaged weights in one file.", rich_help_panel=_FACTS_PANEL
            ),
        ],
        "model",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """DATA and how to read it."""

    data: str
    tokenizer: str | None
    data_dtype: DataDType

    def corpus(self, loaded: "Loaded") -> "Corpus":
        """DATA for a model. Raises BadData."""
        from modernize.data import load_corpus

        return load_corpus(
            self.data,
            tokenizer=lambda: tokenizer_for(loaded, self.tokenizer),
            vocab_size=loaded.model.vocab_size,
            dtype=self.data_dtype,
        )

    def files(self, *checkpoints: Path) -> tuple[Path, ...]:
        """Every file from which these checkpoints, their DATA and its tokenizer could be read."""
        from modernize.checkpoint import files_of
        from modernize.data import data_files
        from modernize.tokenizer import tokenizer_files

        tokenizers = [*checkpoints, *([Path(self.tokenizer)] if self.tokenizer else [])]
        return (
            *(file for path in checkpoints for file in files_of(path)),
            *data_files(self.data),
            *(file for path in tokenizers for file in tokenizer_files(path)),
        )


ROPE: dict[str, tuple[Any, Any]] = {
    "rope_base": (
        Annotated[float | None, typer.Option("--rope-base", help="Of a modern model's RoPE, for this once.")],
        None,
    ),
    "rope_scale": (
        Annotated[float | None, typer.Option("--rope-scale", help="Divides positions: 2 halves every distance.")],
        None,
    ),
}


def tokenizer_for(loaded: "Loaded", option: str | None) -> "Tokenizer":
    """The tokenizer of a model, as the user names it or as it is found. Raises BadData."""
    from modernize.tokenizer import find_tokenizer

    return find_tokenizer(option, vocabulary=loaded.vocabulary, beside=loaded.path, vocab_size=loaded.model.vocab_size)


TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="PATH", help="tokenizer.json, vocab.json + merges.txt, meta.pkl, or bytes."),
]
DataDTypeOption = Annotated[DataDType, typer.Option("--data-dtype", help="Of the ids in a .bin file.")]
READING: dict[str, tuple[Any, Any]] = {
    "data": (
        Annotated[
            str,
            typer.Option("--data", metavar="DATA", help="Text, .bin, .npy, folder or pydoc; for finetune also self."),
        ],
        inspect.Parameter.empty,
    ),
    "tokenizer": (TokenizerOption, None),
    "data_dtype": (DataDTypeOption, "uint16"),
}

_TRAINING_PANEL = "Training"


def _training(*names: str, help: str, **limits: Any) -> Any:  # noqa: ANN401  (what typer.Option takes and gives)
    return typer.Option(*names, help=help, rich_help_panel=_TRAINING_PANEL, **limits)


# fields of Settings; 0 or None is a default that is chosen when the model is known
TRAINING: dict[str, tuple[Any, Any]] = {
    "steps": (Annotated[int, _training("--steps", help="Updates, at most.", min=1)], 200),
    "until_recovered": (
        Annotated[bool, _training("--until-recovered", help="Stop when the old model's loss is reached.")],
        False,
    ),
    "tolerance": (
        Annotated[float, _training("--tolerance", help="Nats above the old loss that count as reached.", min=0)],
        0.0,
    ),
    "batch_size": (Annotated[int | None, _training("--batch-size", help="Windows a step.", min=1)], None),
    "block_size": (
        Annotated[int | None, _training("--block-size", help="Tokens a window; default: old context.", min=1)],
        None,
    ),
    "target_context": (
        Annotated[
            int | None,
            _training("--target-context", help="Longest windows; by default two old contexts.", min=1),
        ],
        None,
    ),
    "grad_accum": (Annotated[int, _training("--grad-accum", help="Batches an update.", min=1)], 1),
    "lr": (
        Annotated[
            float | None,
            _training("--lr", help="Learning rate at its peak; chosen by default.", min=1e-12, max=10),
        ],
        None,
    ),
    "optimizer": (
        Annotated[OptimizerName, _training("--optimizer", help="auto: Muon for matrices, AdamW for the rest.")],
        "auto",
    ),
    "distill": (
        Annotated[
            float | None,
            _training("--distill", help="Weight of the teacher against the data; by default a half or more."),
        ],
        None,
    ),
    "warmup": (Annotated[int | None, _training("--warmup", help="Steps; by default a twentieth.", min=1)], None),
    "seed": (SeedOption, 0),
    "device": (DeviceOption, "auto"),
    "dtype": (
        Annotated[PrecisionName, _training("--dtype", help="Of products; auto: bfloat16 where it is faster.")],
        "auto",
    ),
    "compile": (
        Annotated[bool | None, _training("--compile/--no-compile", help="torch.compile; by default on CUDA.")],
        None,
    ),
    "activation_checkpointing": (
        Annotated[
            bool,
            _training("--activation-checkpointing", help="Compute activations twice in place of keeping them."),
        ],
        False,
    ),
    "shard": (
        Annotated[bool, _training("--shard", help="With torchrun: cut the model up over the processes (FSDP).")],
        False,
    ),
    "eval_every": (Annotated[int | None, _training("--eval-every", help="Steps between validations.", min=1)], None),
    "val_tokens": (Annotated[int, _training("--val-tokens", help="Most tokens to validate on.", min=1)], 1 << 18),
    "checkpoint_every": (
        Annotated[int | None, _training("--checkpoint-every", help="Steps between saves of the run.", min=1)],
        None,
    ),
}

TRAINED_ACTIVATION: tuple[Any, Any] = (
    Annotated[
        ModernActivation | None,
        typer.Option(
            "--activation", help="Of the teacher; or silu, which the new model gets.", rich_help_panel=_FACTS_PANEL
        ),
    ],
    None,
)
OUTPUT: dict[str, tuple[Any, Any]] = {
    "json": (
        Annotated[bool, typer.Option("--json", help="Print one JSON object.", rich_help_panel="Output")],
        False,
    ),
    "quiet": (
        Annotated[
            bool,
            typer.Option("--quiet", "-q", help="Print nothing but errors and the answer.", rich_help_panel="Output"),
        ],
        False,
    ),
}


def takes(
    *, facts: bool = True, reading: bool = False, training: bool = False, rope: bool = False, json: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the shared options to a command and hand them to it as objects."""
    shared = {
        **(READING if reading else {}),
        **(TRAINING if training else {}),
        **(ROPE if rope else {}),
        **(FACTS if facts else {}),
        **{name: OUTPUT[name] for name in OUTPUT if json or name != "json"},
    }
    if training:
        shared["activation"] = TRAINED_ACTIVATION

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def command(**given: Any) -> None:  # noqa: ANN401  (whatever the command line says)
            from modernize.console import Output

            if training and given["activation"] == "silu":  # the new model's; no old one has it
                given |= {"activation": None, "new_activation": "silu"}
            more: dict[str, Any] = {
                "out": Output(as_json=bool(given.pop("json", False)), quiet=bool(given.pop("quiet")))
            }
            if facts:
                from modernize.facts import Facts

                more["weights"] = given.pop("weights")
                more["facts"] = Facts(**{name: given.pop(name) for name in FACTS if name != "weights"})
            if rope:
                from modernize.loading import Rope

                more["rope"] = Rope(base=given.pop("rope_base"), scale=given.pop("rope_scale"))
            if reading:
                more["reading"] = Reading(**{name: given.pop(name) for name in READING})
            if training:
                from modernize.events import Settings

                chosen = {name: given.pop(name) for name in TRAINING}
                chosen["activation"] = given.pop("new_activation", None)
                more["settings"] = Settings(**{name: value for name, value in chosen.items() if value is not None})
            function(**given, **more)

        own = inspect.signature(function)
        handed = {"out", "facts", "weights", "reading", "settings", "rope"}
        parameters = [p for name, p in own.parameters.items() if name not in handed]
        parameters += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in shared.items()
        ]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command

    return decorate
