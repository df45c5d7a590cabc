"""Sample: a model writes, token by token."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from modernize.data import SELF, Corpus
from modernize.errors import BadData, BadTensors
from modernize.loading import Model
from modernize.old import OldGPT
from modernize.progress import Progress, silent
from modernize.tokenizer import Tokenizer

LEAD_IN = 8  # tokens before the first that counts, of text that a model writes of itself
SELF_AT_ONCE = 1 << 14  # tokens, for which keys and values are kept
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


def self_text(
    model: OldGPT, *, sequences: int, length: int, seed: int, progress: Progress = silent
) -> Iterator[Tensor]:
    """What an old model writes of itself at temperature 1: the next ids (sequences,), `length` times.

    Every sequence begins with a token that the model itself wrote, after a few of chance, so that the first ones are as
    frequent as in its text; at most `block_size` positions are used, so `length` may be one more than that.

    Raises FloatingPointError for logits that are no finite numbers.
    """
    random = torch.Generator(device="cpu").manual_seed(seed)
    device = next(model.parameters()).device
    with torch.inference_mode():
        ids = torch.randint(0, model.vocab_size, (sequences,), generator=random)
        for part, count in (("first", min(LEAD_IN, length)), ("rest", length)):
            caches = model.caches(count)
            for step in range(count):
                if part == "rest":
                    yield ids
                    progress(step + 1, length)
                if step + 1 < count:
                    logits = model(ids[:, None].to(device), caches)[:, -1].float().cpu()  # (sequences, vocab)
                    if not torch.isfinite(logits).all():
                        raise FloatingPointError("the model's logits are not finite")
                    ids = torch.multinomial(logits.softmax(-1), 1, generator=random)[:, 0]


def self_corpus(model: OldGPT, *, context: int, tokens: int, seed: int, progress: Progress = silent) -> Corpus:
    """DATA that an old model writes itself: rows of a context, `tokens` to train on and a tenth of that to judge.

    Deterministic by seed. Raises BadTensors for a model that predicts no finite numbers.
    """
    length = min(context, model.block_size)
    train = -(-tokens // length)
    wanted = train + max(1, train // 10)
    at_once = max(1, SELF_AT_ONCE // length)
    parts = []
    try:
        for start in range(0, wanted, at_once):
            count = min(at_once, wanted - start)
            steps = []
            for ids in self_text(model, sequences=count, length=length + 1, seed=seed + start):
                steps.append(ids)
                progress(start * length + count * min(len(steps), length), wanted * length)
            parts.append(torch.stack(steps, 1))
    except FloatingPointError as error:
        raise BadTensors(
            "the old model's predictions are not finite numbers in float32, so it can write nothing",
            hint="check it with modernize eval, and give other data",
        ) from error
    rows = torch.cat(parts).numpy()  # (N, T + 1)
    return Corpus(name=SELF, train=rows[:train], val=rows[train:])


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
