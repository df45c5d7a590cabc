"""Train a tiny byte-level GPT on the Python language reference, in nanoGPT's file layout.

What: an "old-style" transformer (LayerNorm, exact GELU, learned positions, biases everywhere,
output layer tied to the embedding), trained from scratch on the text that CPython itself carries
in ``pydoc_data.topics``. It writes two files: the checkpoint, with nanoGPT's parameter names, and
a small JSON report beside it.

Why: a real, trained model that is small enough to keep in the repository, made from data that
every Python installation already has. Nothing is downloaded.

    python examples/train_pydoc_gpt.py                                  # the full run, CPU only
    python examples/train_pydoc_gpt.py --steps 200 --out /tmp/short.pt  # about half a minute

Other sizes (`--layers --heads --width --context --batch`) are for trying things out; the checkpoint in the repository
has the default one.

The text differs a little between Python versions, and so does the loss; the report names both.
"""

import argparse
import copy
import json
import math
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import Tensor, nn

TRAINING = {
    "batch_size": 32,
    "peak_lr": 2e-3,
    "min_lr": 0.0,
    "warmup_steps": 100,
    "betas": [0.9, 0.95],
    "weight_decay": 0.1,  # on matrices only
    "grad_clip": 1.0,
    "evaluations": 20,
}


@dataclass
class ModelArgs:
    """The shape of the model, under nanoGPT's names; saved in the checkpoint."""

    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 128
    block_size: int = 128
    bias: bool = True
    vocab_size: int = 256  # bytes
    dropout: float = 0.1


def pydoc_text() -> tuple[Tensor, Tensor]:
    """The training and validation bytes: all pydoc topics in order of name, cut at 90 %."""
    text = "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"
    data = torch.tensor(list(text.encode("utf-8")))
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:]


class CausalSelfAttention(nn.Module):
    """Each position looks at itself and at the ones before it."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.n_head = args.n_head
        self.c_attn = nn.Linear(args.n_embd, 3 * args.n_embd, bias=args.bias)  # q, k and v
        self.c_proj = nn.Linear(args.n_embd, args.n_embd, bias=args.bias)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the heads gathered; in and out (batch, length, n_embd)."""
        parts = self.c_attn(x).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.n_head, -1)).transpose(1, 2) for part in parts)
        # No dropout on the attention weights: it would turn the fast kernel off.
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dropout(self.c_proj(y.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.c_fc = nn.Linear(args.n_embd, 4 * args.n_embd, bias=args.bias)
        self.gelu = nn.GELU()
        self.c_proj = nn.Linear(4 * args.n_embd, args.n_embd, bias=args.bias)
        self.dropout = nn.Dropout(args.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position on its own."""
        return self.dropout(self.c_proj(self.gelu(self.c_fc(x))))


class Block(nn.Module):
    """One layer: attention, then the MLP, each after a LayerNorm and added to its input."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.attn = CausalSelfAttention(args)
        self.ln_2 = nn.LayerNorm(args.n_embd, bias=args.bias)
        self.mlp = MLP(args)

    def forward(self, x: Tensor) -> Tensor:
        """Return the residual stream after this layer."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """nanoGPT's model: the attribute names become the key names in the checkpoint."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(args.vocab_size, args.n_embd),
                "wpe": nn.Embedding(args.block_size, args.n_embd),
                "drop": nn.Dropout(args.dropout),
                "h": nn.ModuleList(Block(args) for _ in range(args.n_layer)),
                "ln_f": nn.LayerNorm(args.n_embd, bias=args.bias),
            }
        )
        self.lm_head = nn.Linear(args.n_embd, args.vocab_size, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight  # tied: one tensor, two names
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:  # smaller where a layer adds to the residual stream
                shrink = math.sqrt(2 * args.n_layer) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=0.02 / shrink)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (batch, length) to logits (batch, length, vocab_size)."""
        parts = self.transformer
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = parts["drop"](parts["wte"](tokens) + parts["wpe"](positions))
        for block in parts["h"]:
            x = block(x)
        return self.lm_head(parts["ln_f"](x))


def cross_entropy(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats over all positions."""
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def mean_loss(model: GPT, data: Tensor, block_size: int) -> float:
    """Mean loss in nats per byte over every full, non-overlapping window of ``data``."""
    windows = (len(data) - 1) // block_size
    inputs = data[: windows * block_size].view(windows, block_size)
    targets = data[1 : windows * block_size + 1].view(windows, block_size)
    model.eval()
    batches = zip(inputs.split(64), targets.split(64), strict=True)
    total = sum(cross_entropy(model, x, y).item() * len(x) for x, y in batches)
    return total / windows


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from the peak down to the minimum."""
    warmup = min(TRAINING["warmup_steps"], steps // 2)
    if step < warmup:
        return TRAINING["peak_lr"] * (step + 1) / warmup
    cosine = 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
    return TRAINING["min_lr"] + cosine * (TRAINING["peak_lr"] - TRAINING["min_lr"])


def train(model_args: ModelArgs, batch_size: int, steps: int, seed: int, out: Path) -> None:
    """Train, and write the step with the best validation loss and the report."""
    torch.manual_seed(seed)
    train_data, val_data = pydoc_text()
    block_size = model_args.block_size
    model = GPT(model_args)
    groups = [
        {
            "params": [p for p in model.parameters() if p.dim() == 2],
            "weight_decay": TRAINING["weight_decay"],
        },
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=tuple(TRAINING["betas"]), fused=True)
    best_step, best_loss, best_state = 0, math.inf, model.state_dict()
    curve: list[list[float]] = []  # [step, validation loss]
    start = time.perf_counter()
    for step in range(1, steps + 1):
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1, steps)
        starts = torch.randint(len(train_data) - block_size, (batch_size, 1))
        windows = train_data[starts + torch.arange(block_size + 1)]
        loss = cross_entropy(model, windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), TRAINING["grad_clip"])
        optimizer.step()

        if step % max(1, steps // TRAINING["evaluations"]) == 0 or step == steps:
            val_loss = mean_loss(model, val_data, block_size)
            curve.append([step, round(val_loss, 4)])
            print(f"step {step:5d}  batch loss {loss.item():.4f}  validation loss {val_loss:.4f}")
            if val_loss < best_loss:
                best_step, best_loss = step, val_loss
                best_state = copy.deepcopy(model.state_dict())  # the tied names stay one tensor
    seconds = time.perf_counter() - start

    model.load_state_dict(best_state)
    out.parent.mkdir(parents=True, exist_ok=True)
    checkpoint = {
        "model": best_state,
        "model_args": asdict(model_args),
        "iter_num": best_step,
        "best_val_loss": torch.tensor(best_loss),
        "config": {**TRAINING, "batch_size": batch_size, "steps": steps, "seed": seed},
    }
    torch.save(checkpoint, out)
    report = {
        "script": Path(__file__).name,
        "checkpoint": out.name,
        "seed": seed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "steps": steps,
        "saved_step": best_step,
        "tokens_seen": steps * batch_size * block_size,
        "seconds": round(seconds, 1),
        "train_bytes": len(train_data),
        "validation_bytes": len(val_data),
        "train_loss": round(mean_loss(model, train_data, block_size), 4),
        "validation_loss": round(best_loss, 4),
        "validation_curve": curve,
    }
    out.with_suffix(".json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"saved step {best_step} to {out}: validation loss {best_loss:.4f}, {seconds:.0f} s")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6000, help="training steps (%(default)s)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(__file__).with_name("pydoc-gpt.pt"),
        help="checkpoint to write; the report goes beside it as .json (%(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1337, help="random seed (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="blocks (%(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="heads a block (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="of the residual stream (%(default)s)")
    parser.add_argument("--context", type=int, default=128, help="positions (%(default)s)")
    parser.add_argument("--batch", type=int, default=TRAINING["batch_size"], help="windows a step (%(default)s)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape = ModelArgs(n_layer=args.layers, n_head=args.heads, n_embd=args.width, block_size=args.context)
    train(shape, args.batch, args.steps, args.seed, args.out)


if __name__ == "__main__":
    main()
