"""Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE.

The public API, loaded on first use so that importing the package costs nothing:

    report = modernize.convert("old.pt", "new.safetensors")
    model = modernize.load("new.safetensors")          # an nn.Module; model(ids) -> logits (B, T, vocab)
    for event in modernize.finetune(model, "pydoc", steps=200, teacher=modernize.load("old.pt")): ...
    modernize.evaluate(model, "pydoc").loss
    modernize.export("new.safetensors", "folder", to="arcee")

The program is one sentence, and imports go only from its later words to its earlier ones:

    read        checkpoint/  a path becomes a Checkpoint: names, shapes, dtypes, settings; tensors on access
    recognise   dialects/, facts.py, recognise.py  a Checkpoint becomes a spec and one canonical State
    rewrite     rewrite/  a State becomes the State of a modern model, move by move
    tune        train.py (events.py, optim.py, devices.py) on what data.py and tokenizer.py give, by measure.py's losses
    write       write.py  one safetensors file, whole or not at all; stored.py reads its metadata back
                runtimes/ a folder in the layout of another program's classes

spec.py holds the data that all of them speak of, old.py and model.py the two models, errors.py what can go wrong.
inspection.py, conversion.py, tune.py, exporting.py and loading.py each put the words together for one purpose;
console.py, show.py, options.py, commands/ and cli.py are the command line.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Facts", "ModernizeError", "compare", "convert", "evaluate", "export", "finetune", "inspect", "load"]

if TYPE_CHECKING:
    from modernize.conversion import convert
    from modernize.errors import ModernizeError
    from modernize.exporting import export
    from modernize.inspection import inspect
    from modernize.loading import load
    from modernize.measure import compare, evaluate
    from modernize.recognise import Facts
    from modernize.train import finetune

_HOMES = {
    "Facts": "modernize.recognise",
    "ModernizeError": "modernize.errors",
    "compare": "modernize.measure",
    "convert": "modernize.conversion",
    "evaluate": "modernize.measure",
    "export": "modernize.exporting",
    "finetune": "modernize.train",
    "inspect": "modernize.inspection",
    "load": "modernize.loading",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (PEP 562: whatever the name stands for)
    """Import a public name from its module when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'modernize' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
