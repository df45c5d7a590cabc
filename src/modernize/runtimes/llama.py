"""LlamaForCausalLM: what llama.cpp, vLLM and MLX read everywhere, at the price of SiLU and a gate.

Llama's MLP is `down(silu(gate(x)) · up(x))`. With our `up` as its gate, and an `up` of weight zero and bias one, it is
`down(silu(up(x)))`: exactly that of a model that has SiLU. See `rewrite.silu` for one that has not.
"""

import torch

from modernize.errors import UsageError
from modernize.runtimes.layout import NAMES, Layout, common_settings, renamed
from modernize.spec import ModernConfig, State

ARCHITECTURE = "LlamaForCausalLM"


def as_llama(state: State, config: ModernConfig) -> Layout:
    """A modern State with SiLU and without a head bias, and its configuration, as a Llama.

    Raises UsageError for another activation.
    """
    if config.activation != "silu":
        raise UsageError(f"a Llama has SiLU, and this model {config.activation}", hint="put SiLU in its place first")
    tensors = renamed(state, config)
    up, down = (f"{NAMES[part]}.{{kind}}" for part in ("up", "down"))
    for i in range(config.n_layer):
        ungated = tensors[up.format(i=i, kind="weight")]
        zero, one = torch.zeros_like(ungated), torch.ones_like(ungated[:, 0])
        gate = up.replace("up_proj", "gate_proj")
        tensors[gate.format(i=i, kind="weight")] = ungated
        tensors[gate.format(i=i, kind="bias")] = tensors.get(up.format(i=i, kind="bias"), torch.zeros_like(one))
        tensors[up.format(i=i, kind="weight")], tensors[up.format(i=i, kind="bias")] = zero, one
        written = tensors[down.format(i=i, kind="weight")]
        tensors.setdefault(down.format(i=i, kind="bias"), torch.zeros_like(written[:, 0]))
    settings = common_settings(config, architecture=ARCHITECTURE, model_type="llama")
    return Layout(
        architecture=ARCHITECTURE, tensors=tensors, config=settings | {"hidden_act": "silu", "mlp_bias": True}
    )
