"""The command line: all commands in one program."""

from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from modernize import __version__
from modernize.boundary import run
from modernize.commands import files, running, training


class _Root(TyperGroup):
    """The program itself, with a plain help: what draws boxes takes longer to load than all the rest of it."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401  (whatever typer says)
        super().__init__(**{**options, "rich_markup_mode": None})


app = typer.Typer(
    name="modernize",
    cls=_Root,
    help="Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE.",
    epilog="Begin with: modernize inspect CKPT",
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"modernize {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


COMMANDS: tuple[tuple[Callable[..., None], str, str], ...] = (
    (files.inspect, "inspect", "examples/pydoc-gpt.pt"),
    (files.convert, "convert", "old.pt new.safetensors"),
    (training.finetune, "finetune", "new.safetensors --data pydoc --teacher old.pt --steps 100"),
    (running.evaluate, "eval", "new.safetensors --data pydoc --context 128 --context 512"),
    (running.compare, "compare", "old.pt new.safetensors --data pydoc"),
    (running.sample, "sample", 'new.safetensors --prompt "The with statement" --tokens 200'),
    (files.export_folder, "export", "new.safetensors folder --to arcee"),
    (files.dialects, "dialects", ""),
)  # each with its name and an example, in the order of the help
for _function, _name, _example in COMMANDS:
    app.command(name=_name, epilog=f"Example: modernize {_name} {_example}".rstrip())(_function)


def main() -> NoReturn:
    """Run the command line and exit."""
    run(app)
