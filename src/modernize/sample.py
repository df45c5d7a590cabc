"""Sample: a model writes, token by token."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from modernize.errors import BadData
from modernize.loading import Model
from modernize.tokenizer import Tokenizer

COLDEST = 1e-6  # below this, dividing by the temperature overflows, and only the likeliest token is left


def generate(
    model: Model, ids: Tensor, *, tokens: int, temperature: float = 1.0, top_k: int = 0, seed: int = 0
) -> Iterator[Tensor]:
    """Yield the next ids (B,), `tokens` times, after ids (B, T). Temperature 0 takes the likeliest; top_k 0 all.

    An old model sees the last `block_size` tokens, as nanoGPT's own sampling does; a modern one sees as many, until it
    has been trained on longer windows.
    """
    random = torch.Generator(device="cpu").manual_seed(seed)
    window = model.block_size
    with torch.inference_mode():
        for _ in range(tokens):
            logits = model(ids[:, -window:])[:, -1].float().cpu()  # (B, vocab)
            if temperature < COLDEST:
                following = logits.argmax(-1)
            else:
                following = torch.multinomial(_probabilities(logits / temperature, top_k), 1, generator=random)[:, 0]
            yield following
            ids = torch.cat([ids, following[:, None].to(ids.device)], dim=1)


def write_text(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
) -> Iterator[str]:
    """The text that follows a prompt, in pieces that are whole characters.

    Raises BadData, at once, for a prompt that is empty or that the tokenizer cannot encode.
    """
    start = tokenizer.encode(prompt)
    if not len(start):
        raise BadData("--prompt is empty, and a model needs a token to begin with", hint="give at least one character")
    ids = torch.from_numpy(start)[None].to(next(model.parameters()).device)
    written = generate(model, ids, tokens=tokens, temperature=temperature, top_k=top_k, seed=seed)
    return _pieces((int(following) for following in written), tokenizer)


def _pieces(written: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    ids: list[int] = []
    text = shown = ""
    for following in written:
        ids.append(following)
        text = tokenizer.decode(ids)
        whole = text.rstrip("\ufffd")  # the last character may not be whole yet
        if len(whole) > len(shown):
            yield whole[len(shown) :]
            shown = whole
    yield text[len(shown) :]


def _probabilities(logits: Tensor, top_k: int) -> Tensor:
    if top_k and top_k < logits.shape[-1]:
        lowest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return logits.softmax(-1)
