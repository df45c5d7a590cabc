"""Tokenizer files for an export: carried over, or made from a vocabulary or from bytes, as `tokenizer.json`.

Every token of a vocabulary stays what it is, so text is encoded to the ids that the model was trained on.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

from modernize.errors import BadData
from modernize.tokenizer import (
    TOKENIZER_JSON,
    BytesTokenizer,
    FileTokenizer,
    Tokenizer,
    VocabularyTokenizer,
)

CONFIG_JSON = "tokenizer_config.json"
LOOKED_AT = 512  # tokens
ENDS = ("<|endoftext|>", "</s>")  # what the families that are converted end a text with


@dataclass(frozen=True, kw_only=True)
class TokenizerFiles:
    """Name and text of each file, and the id that ends a text, or None where nothing does."""

    files: dict[str, str]
    end: int | None


def files_for(tokenizer: Tokenizer, *, context: int) -> TokenizerFiles:
    """The files by which `AutoTokenizer` does what a tokenizer does; `context` is the longest text, in tokens.

    Raises BadData for a vocabulary that gives one id to two tokens.
    """
    inner = _plain(_as_file(tokenizer))
    ending = next((token for token in ENDS if inner.token_to_id(token) is not None), None)
    if ending is not None:
        inner.add_special_tokens([AddedToken(ending, special=True, normalized=False)])
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "add_prefix_space": False,
    }
    if ending is not None:
        config |= {"bos_token": ending, "eos_token": ending}
    return TokenizerFiles(
        files={TOKENIZER_JSON: inner.to_str(pretty=True), CONFIG_JSON: json.dumps(config, indent=2) + "\n"},
        end=None if ending is None else inner.token_to_id(ending),
    )


def _plain(inner: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Without what is put around a text, cut off or filled up: models are trained on the text alone."""
    plain = json.loads(inner.to_str())
    return tokenizers.Tokenizer.from_str(
        json.dumps(plain | {"post_processor": None, "truncation": None, "padding": None})
    )


def _as_file(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    if isinstance(tokenizer, FileTokenizer):
        return tokenizers.Tokenizer.from_str(tokenizer.to_str())
    if isinstance(tokenizer, BytesTokenizer):
        return _of_bytes()
    assert isinstance(tokenizer, VocabularyTokenizer)  # there is no other
    return _of_vocabulary(tokenizer.stoi)


def _of_vocabulary(stoi: dict[str, int]) -> tokenizers.Tokenizer:
    """The longest token that fits, from left to right; an error where none does, never a guess."""
    if len(set(stoi.values())) < len(stoi):
        raise BadData("two tokens of the vocabulary have the same id", hint="name another tokenizer with --tokenizer")
    strange = next((token for token in stoi if not _is_utf8(token)), None)
    if strange is not None:
        raise BadData(
            f"the vocabulary has the token {strange!r}, which {TOKENIZER_JSON} cannot hold",
            hint="name a tokenizer file with --tokenizer",
        )
    longest_first = sorted(filter(None, stoi), key=len, reverse=True)
    single = len(longest_first[0]) == 1 if longest_first else True
    nobody = "?" * (1 + max(map(len, stoi), default=0))  # no token, so that what is unknown is an error
    pattern = r"[\s\S]" if single else "|".join(map(_literal, longest_first))
    inner = tokenizers.Tokenizer(models.WordLevel(stoi, unk_token=nobody))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return inner


def _is_utf8(token: str) -> bool:
    try:
        token.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _literal(token: str) -> str:
    """A token as a regular expression that means nothing else."""
    return "".join(f"\\x{{{ord(c):X}}}" for c in token)


def _of_bytes() -> tokenizers.Tokenizer:
    """One token for each byte, by the characters that byte-level BPE writes bytes with."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}
    inner = tokenizers.Tokenizer(models.BPE({characters[byte]: byte for byte in range(256)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def check_tokenizer(folder: Path, tokenizer: Tokenizer, *, end: int | None) -> None:
    """Raise BadData where the file that was written encodes a text otherwise, or does not give it back.

    The text is that of the first and of some other tokens, as the tokenizer itself decodes them; but for the one that
    ends a text, which is a special one only in the file.
    """
    written = tokenizers.Tokenizer.from_file(str(folder / TOKENIZER_JSON))
    every = max(1, tokenizer.size // LOOKED_AT)
    text = tokenizer.decode([i for i in range(0, tokenizer.size, every) if i != end]).replace("\ufffd", "")
    ids = tokenizer.encode(text).tolist()
    found = written.encode(text, add_special_tokens=False).ids
    if found != ids or written.decode(ids, skip_special_tokens=False) != tokenizer.decode(ids):
        raise BadData(
            f"{tokenizer.name} cannot be written as {TOKENIZER_JSON}: the file does not encode {text[:20]!r} alike",
            hint="name a tokenizer file with --tokenizer",
        )
