"""What conversion saves in computing, and what it costs: operations for each token that a model reads."""

from modernize.spec import NORMS, GPTSpec, names_of


def saved_additions(spec: GPTSpec) -> int:
    """Additions that are no longer done for a token when all biases are dropped.

    A LayerNorm of width d takes d for its mean, d to take it off, and d for its shift where it has one; a bias takes
    one for each output; the position takes d.
    """
    total = spec.n_embd
    for norm in NORMS:
        count = len(names_of(norm, spec.n_layer))
        total += count * spec.n_embd * (3 if norm in spec.biases else 2)
    shapes = spec.shapes()
    norms = tuple(f"{norm}.bias" for norm in NORMS)
    return total + sum(
        shape[0] for name, shape in shapes.items() if name.endswith(".bias") and not name.endswith(norms)
    )


def rope_operations(spec: GPTSpec) -> int:
    """Multiplications and additions that RoPE takes: six for each pair of a query and of a key, in every layer."""
    return spec.n_layer * 2 * 6 * (spec.n_embd // 2)
