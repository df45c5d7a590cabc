"""The model card of an export: what it is, where it comes from, how it went, how to load it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from modernize import __version__
from modernize.runtimes.layout import Layout
from modernize.spec import ModernConfig
from modernize.stored import Stored

FRONT = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- modernize
---
"""
LOADING = """
```python
from transformers import {classes}

model = AutoModelForCausalLM.from_pretrained(".")  # this folder
{tokenizer}
```
"""


def model_card(layout: Layout, config: ModernConfig, stored: Stored, notes: Sequence[str], *, tokenizer: bool) -> str:
    """Markdown with the front matter of the hub; `notes` are what is particular about this export."""
    classes = "AutoModelForCausalLM" + (", AutoTokenizer" if tokenizer else "")
    line = 'tokenizer = AutoTokenizer.from_pretrained(".")' if tokenizer else "# no tokenizer came with the model"
    parts = [
        FRONT,
        f"# {layout.architecture}, made from a {stored.dialect} checkpoint\n",
        f"{config.n_layer} layers, {config.n_head} heads of {config.head_dim}, width {config.n_embd}, "
        f"{config.parameters():,} parameters, a vocabulary of {config.vocab_size:,}, trained on contexts of "
        f"{config.trained_context:,}. RMSNorm, RoPE with base {config.rope_base:g}, {config.activation}; "
        f"{'the head is the embedding' if config.tied else 'the head is a matrix of its own'}.\n",
        "## Where it comes from\n",
        f"An old checkpoint (LayerNorm, learned positions) with sha256 `{stored.sha256}`, converted by "
        f"modernize {stored.version} with `--init {stored.init}`, exported by modernize {__version__}.\n",
        *(f"- {line}" for line in _history(stored)),
        *(f"- {note}" for note in notes),
        "\n## Loading",
        LOADING.format(classes=classes, tokenizer=line),
    ]
    return "\n".join(parts)


def _history(stored: Stored) -> list[str]:
    """A line for the conversion and each fine-tune, with losses in nats."""
    lines = []
    if stored.calibration:
        losses = stored.calibration
        lines.append(
            f"conversion: loss {_loss(losses.get('loss_old'))} before, {_loss(losses.get('loss_new'))} after "
            f"({losses.get('tokens')} calibration tokens from {losses.get('source')})"
        )
    for run in stored.history:
        losses = run.get("loss") or {}
        old = "" if losses.get("old") is None else f"; the old model has {_loss(losses['old'])}"
        lines.append(
            f"fine-tune: {run.get('steps')} steps on {run.get('tokens')} tokens, validation loss "
            f"{_loss(losses.get('before'))} before, {_loss(losses.get('best'))} after{old}"
        )
    return lines


def _loss(value: Any) -> str:  # noqa: ANN401  (what metadata holds)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def facts_of(stored: Stored) -> Mapping[str, Any]:
    """What `config.json` keeps of the same, for programs."""
    plain = {
        "version": __version__,
        "source": {"sha256": stored.sha256, "dialect": stored.dialect},
        "init": stored.init,
        "calibration": None if stored.calibration is None else dict(stored.calibration),
        "finetunes": [{name: run.get(name) for name in ("steps", "tokens", "loss")} for run in stored.history],
    }
    told: dict[str, Any] = json.loads(json.dumps(plain), parse_constant=lambda _: None)  # JSON has no NaN
    return told
