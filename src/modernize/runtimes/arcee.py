"""ArceeForCausalLM: RMSNorm, RoPE and an MLP without a gate, whatever its activation. Computes what ModernGPT does."""

from modernize.choices import ModernActivation
from modernize.runtimes.layout import Layout, common_settings, renamed
from modernize.spec import ModernConfig, State

ARCHITECTURE = "ArceeForCausalLM"
ACTIVATIONS: dict[ModernActivation, str] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_pytorch_tanh",
    "relu": "relu",
    "silu": "silu",
}


def as_arcee(state: State, config: ModernConfig) -> Layout:
    """A modern State without a head bias, and its configuration, as an Arcee."""
    settings = common_settings(config, architecture=ARCHITECTURE, model_type="arcee")
    return Layout(
        architecture=ARCHITECTURE,
        tensors=renamed(state, config),
        config=settings | {"hidden_act": ACTIVATIONS[config.activation]},
    )
