"""What other runtimes read: a modern model under the names and in the layout of a class of `transformers`.

    layout.py     names, RoPE's halves and the common part of `config.json`
    arcee.py      ArceeForCausalLM, which computes exactly what ModernGPT does
    llama.py      LlamaForCausalLM, for runtimes that know a model only as a Llama
    tokens.py     tokenizer files, carried over or made
    card.py       the model card
    folder.py     weights in shards, and a folder that is there whole or not at all
    back.py       an export is loaded back and compared

A runtime is a function `(state, config) -> Layout`; to add one, write its file and its entry in RUNTIMES.
"""

from collections.abc import Callable, Mapping

from modernize.choices import Runtime
from modernize.runtimes.arcee import as_arcee
from modernize.runtimes.layout import Layout
from modernize.runtimes.llama import as_llama
from modernize.spec import ModernConfig, State

RUNTIMES: Mapping[Runtime, Callable[[State, ModernConfig], Layout]] = {"arcee": as_arcee, "llama": as_llama}

__all__ = ["RUNTIMES", "Layout"]
