"""Carry a trained GPT with LayerNorm and learned positions over to RMSNorm and RoPE.

The public API, loaded on first use so that importing the package costs nothing:

    report = modernize.convert("old.pt", "new.safetensors")
    model = modernize.load("new.safetensors")          # an nn.Module; model(ids) -> logits (B, T, vocab)
    for event in modernize.finetune(model, "pydoc", steps=200, teacher=modernize.load("old.pt")): ...
    modernize.evaluate(model, "pydoc").loss
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Facts", "ModernizeError", "compare", "convert", "evaluate", "finetune", "inspect", "load"]

if TYPE_CHECKING:
    from modernize.conversion import convert
    from modernize.errors import ModernizeError
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
