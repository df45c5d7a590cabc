"""Sample: a model writes, token by token, and keeps the keys and values of what it has read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from modernize.data import SELF, Corpus
from modernize.errors import BadData, BadTensors, UsageError
from modernize.layers import Cache
from modernize.loading import Model
from modernize.measure import longest
from modernize.old import OldGPT
from modernize.progress import Progress, silent, unheard
from modernize.tokenizer import Tokenizer

LEAD_IN = 8  # tokens before the first that counts, of text that a model writes of itself
SELF_AT_ONCE = 1 << 14  # tokens, for which keys and values are kept
COLDEST = 1e-6  # below this, dividing by the temperature overflows, and only the likeliest token is left


def generate(
    model: Model,
    ids: Tensor,
    *,
    tokens: int,
    temperature: float = 1.0,
    top_k: int = 0,
    seed: int = 0,
    tell: Callable[[str], None] = unheard,
) -> Iterator[Tensor]:
    """The next ids (B,), at most `tokens` times, after ids (B, T). Temperature 0 takes the likeliest; top_k 0 all.

    An old model stops when its positions are used up, a modern one goes on past the context that it was trained on;
    `tell` hears of it when it happens.

    Raises, at once, BadData for more ids than an old model has positions, and UsageError for a temperature that is no
    number or below zero; while it writes, BadTensors for logits that are no finite numbers.
    """
    if not temperature >= 0:  # nor is it NaN
        raise UsageError(f"--temperature {temperature} is not 0 or above", hint="1 is the model's own, 0 the likeliest")
    if longest(model, ids.shape[1]) < ids.shape[1]:
        raise BadData(
            f"the prompt has {ids.shape[1]} tokens, and the old model has positions for {model.block_size}",
            hint="give a shorter one, or convert the model: a modern one reads any length",
        )
    random = torch.Generator(device="cpu").manual_seed(seed)
    draw = partial(_drawn, temperature=temperature, top_k=top_k, random=random)
    return _written(model, ids, tokens, draw, tell)


def _written(
    model: Model, ids: Tensor, tokens: int, draw: Callable[[Tensor], Tensor], tell: Callable[[str], None]
) -> Iterator[Tensor]:
    context = model.block_size if isinstance(model, OldGPT) else model.config.trained_context
    caches = model.caches(min(ids.shape[1] + tokens, context))
    for _ in range(tokens):
        seen = caches[0].used
        if seen <= context < seen + ids.shape[1]:
            if isinstance(model, OldGPT):
                tell(f"stopped at the old model's context of {context} tokens")
                return
            tell(f"past token {context}, the context it was trained on")
        try:
            following = draw(_next_logits(model, ids, caches))
        except FloatingPointError as error:
            raise BadTensors(
                "the model's predictions are not finite numbers, so it can write nothing more",
                hint="check the checkpoint: modernize eval CKPT --data DATA",
            ) from error
        yield following
        ids = following[:, None]


def _next_logits(model: Model, ids: Tensor, caches: Sequence[Cache]) -> Tensor:
    """Of what follows ids (B, T), which follow those in the caches: (B, vocab) in float32, on the CPU.

    Raises FloatingPointError where they are no finite numbers.
    """
    with torch.inference_mode():
        states = model.states(ids.to(next(model.parameters()).device), caches)  # (B, T, n_embd)
        logits: Tensor = model.head(states[:, -1]).float().cpu()  # (B, vocab)
    if not torch.isfinite(logits).all():
        raise FloatingPointError("the model's logits are not finite")
    return logits


def _drawn(logits: Tensor, *, temperature: float, top_k: int, random: torch.Generator) -> Tensor:
    """(B, vocab) -> ids (B,)."""
    if temperature < COLDEST:
        return logits.argmax(-1)
    sharper = (logits / temperature).nan_to_num()  # what overflows becomes the largest number there is
    return torch.multinomial(_probabilities(sharper, top_k), 1, generator=random)[:, 0]


def _probabilities(logits: Tensor, top_k: int) -> Tensor:
    if top_k and top_k < logits.shape[-1]:
        lowest = logits.topk(top_k).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    return logits.softmax(-1)


def self_text(model: Model, *, sequences: int, length: int, seed: int, progress: Progress = silent) -> Iterator[Tensor]:
    """What a model writes of itself at temperature 1: the next ids (sequences,), `length` times.

    Every sequence begins with a token that the model itself wrote, after a few of chance, so that the first ones are as
    frequent as in its text; at most `block_size` positions are used, so `length` may be one more than that.

    Raises FloatingPointError for logits that are no finite numbers.
    """
    random = torch.Generator(device="cpu").manual_seed(seed)
    ids = torch.randint(0, model.vocab_size, (sequences,), generator=random)
    for part, count in (("first", min(LEAD_IN, length)), ("rest", length)):
        caches = model.caches(count)
        for step in range(count):
            if part == "rest":
                yield ids
                progress(step + 1, length)
            if step + 1 < count:
                ids = _drawn(_next_logits(model, ids[:, None], caches), temperature=1.0, top_k=0, random=random)


def self_corpus(model: Model, *, context: int, tokens: int, seed: int, progress: Progress = silent) -> Corpus:
    """DATA that a model writes itself: rows of a context, `tokens` to train on and a tenth of that to judge.

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
            "the model's predictions are not finite numbers in float32, so it can write nothing",
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
    tell: Callable[[str], None] = unheard,
) -> Iterator[str]:
    """The text that follows a prompt, in pieces that are whole characters; see `generate`.

    Raises BadData, at once, for a prompt that is empty or that the tokenizer cannot encode.
    """
    start = tokenizer.encode(prompt)
    if not len(start):
        raise BadData("--prompt is empty, and a model needs a token to begin with", hint="give at least one character")
    written = generate(
        model,
        torch.from_numpy(start)[None],
        tokens=tokens,
        temperature=temperature,
        top_k=top_k,
        seed=seed,
        tell=tell,
    )
    return text_of(start.tolist(), (int(following) for following in written), tokenizer)


def text_of(start: Sequence[int], written: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The text of what is written after `start`, in pieces that are whole characters.

    A piece is read together with the one before it, because tokens may look otherwise where a text begins.
    """
    before, ids = list(start), list[int]()
    for following in written:
        ids.append(following)
        text = _after(before, ids, tokenizer)
        if text and not text.endswith("\ufffd"):  # else the last character may not be whole yet
            yield text
            before, ids = ids, []
    if ids:
        yield _after(before, ids, tokenizer)


def _after(before: list[int], ids: list[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(before + ids)[len(tokenizer.decode(before)) :]
