"""Text to token ids and back: by vocabulary (characters or words), by bytes, by a tokenizer file, or as plain numbers.

`find_tokenizer` looks in this order: what the user names, what the checkpoint carries, what lies
beside it, bytes for a vocabulary of 256.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from modernize.checkpoint import limits, strict_json
from modernize.checkpoint.faults import Fault, Unsafe
from modernize.checkpoint.pickle_machine import PickleMachine
from modernize.checkpoint.settings import vocabulary_in
from modernize.errors import BadData, MissingTokenizer

if TYPE_CHECKING:
    import tokenizers

META = "meta.pkl"  # nanoGPT's vocabulary
TOKENIZER_JSON = "tokenizer.json"
VOCAB_JSON, MERGES_TXT = "vocab.json", "merges.txt"
SHOWN_IDS = 8  # of those that a model does not know

_UNKNOWN = {  # what to do about a character that text has by the way it was saved
    "\r": "the text has Windows line ends: save it with Unix ones",
    "\ufeff": "the text begins with a byte order mark: save it without",
}


class Tokenizer(Protocol):
    """What turns text into ids and back. `size` is the number of tokens that it knows."""

    name: str
    size: int

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text, (n,). Raises BadData for what it has no token for."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; an id without a token becomes U+FFFD."""

    def fingerprint(self) -> str:
        """The same for tokenizers that do the same."""


class VocabularyTokenizer:
    """One token per character, or per word where the vocabulary has longer tokens: the longest that fits is taken."""

    def __init__(self, stoi: Mapping[str, int], name: str) -> None:
        self.name = name
        self.size = max(stoi.values(), default=-1) + 1
        self.stoi = dict(stoi)
        self._itos = {index: token for token, index in stoi.items()}
        self._lengths = sorted(set(map(len, stoi)) - {0}, reverse=True)

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text, (n,). Raises BadData with the first character that is not in the vocabulary."""
        ids, at = [], 0
        while at < len(text):
            for length in self._lengths:
                index = self.stoi.get(text[at : at + length])
                if index is not None:
                    ids.append(index)
                    at += length
                    break
            else:
                raise BadData(
                    f"the character {text[at]!r} (U+{ord(text[at]):04X}, at position {at}) is not among the "
                    f"{len(self.stoi)} tokens of {self.name}",
                    hint=_UNKNOWN.get(text[at], "use text like that which the model was trained on")
                    + ", or name its tokenizer with --tokenizer",
                )
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return "".join(self._itos.get(int(i), "\ufffd") for i in ids)

    def fingerprint(self) -> str:
        """Of all tokens."""
        return _digest(json.dumps(self.stoi, sort_keys=True))


class BytesTokenizer:
    """One token per byte of UTF-8."""

    name, size = "bytes", 256

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text, (n,)."""
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), dtype=np.uint8).astype(np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; bytes that are no UTF-8 become U+FFFD."""
        return bytes(int(i) for i in ids if 0 <= int(i) < 256).decode("utf-8", errors="replace")

    def fingerprint(self) -> str:
        """There is one of these."""
        return self.name


class FileTokenizer:
    """A tokenizer of the `tokenizers` package, from `tokenizer.json` or from `vocab.json` with `merges.txt`."""

    def __init__(self, inner: "tokenizers.Tokenizer", name: str) -> None:
        self.name = name
        self.size = inner.get_vocab_size()
        self._inner = inner

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of a text, (n,), without special tokens around it."""
        return np.array(self._inner.encode(text, add_special_tokens=False).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return str(self._inner.decode([int(i) for i in ids], skip_special_tokens=False))

    def to_str(self) -> str:
        """All of it, as `tokenizer.json` has it."""
        return str(self._inner.to_str())

    def fingerprint(self) -> str:
        """Of everything that the package says of it."""
        return _digest(self.to_str())


class IdsTokenizer:
    """Ids as they are, with spaces between, for a model that comes with no tokenizer."""

    name = "ids"

    def __init__(self, size: int) -> None:
        self.size = size

    def encode(self, text: str) -> NDArray[np.int64]:
        """Ids of numbers with spaces between, (n,). Raises BadData with those that are not in the vocabulary."""
        ids = [int(word) for word in text.split()]
        unknown = list(dict.fromkeys(i for i in ids if not 0 <= i < self.size))
        if unknown:
            named = ", ".join(map(str, unknown[:SHOWN_IDS])) + (", …" if len(unknown) > SHOWN_IDS else "")
            raise BadData(
                f"--prompt-ids has {named}, and the model knows the ids 0 to {self.size - 1}",
                hint="give ids that the model's own tokenizer made",
            )
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The ids with spaces between."""
        return " ".join(str(int(i)) for i in ids)

    def fingerprint(self) -> str:
        """There is one of these for a vocabulary."""
        return f"{self.name} {self.size}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find_tokenizer(option: str | None, *, vocabulary: Mapping[str, int], beside: Path, vocab_size: int) -> Tokenizer:
    """The tokenizer for a checkpoint: `option` as the user gave it, its own `vocabulary`, or a file beside its path.

    Raises MissingTokenizer where there is none, BadData where it cannot be read or has more tokens than the model.
    """
    found = _named(option) if option else _carried(vocabulary, beside, vocab_size)
    if found.size > vocab_size:
        raise BadData(
            f"{found.name} has {found.size} tokens, and the model knows {vocab_size}",
            hint="name the tokenizer that the model was trained with: --tokenizer PATH",
        )
    return found


def tokenizer_files(path: Path) -> tuple[Path, ...]:
    """Every file from which a tokenizer named by this path, or lying beside this checkpoint, could be read."""
    names = (META, TOKENIZER_JSON, VOCAB_JSON, MERGES_TXT)
    return (path, *(there for name in names if (there := _folder(path) / name).is_file()))


def vocabulary_beside(path: Path) -> dict[str, int]:
    """Token -> id of a nanoGPT `meta.pkl` beside a checkpoint; empty where there is none."""
    meta = _folder(path) / META
    return _read_meta(meta) if meta.is_file() else {}


def _carried(vocabulary: Mapping[str, int], beside: Path, vocab_size: int) -> Tokenizer:
    if vocabulary:
        return VocabularyTokenizer(vocabulary, "the checkpoint's own vocabulary")
    folder = _folder(beside)
    if (folder / META).is_file():
        return VocabularyTokenizer(_read_meta(folder / META), str(folder / META))
    if (folder / TOKENIZER_JSON).is_file() or (folder / VOCAB_JSON).is_file():
        return _named(str(folder))
    if vocab_size == 256:
        return BytesTokenizer()
    raise MissingTokenizer(
        f"{beside} comes with no tokenizer, so text cannot be read",
        hint="pass --tokenizer PATH (tokenizer.json, a folder with vocab.json and merges.txt, or meta.pkl), "
        "or give token ids (.bin, .npy, --prompt-ids)",
    )


def _named(option: str) -> Tokenizer:
    if option == "bytes":
        return BytesTokenizer()
    path = Path(option)
    if path.is_dir():
        there = [path / name for name in (TOKENIZER_JSON, VOCAB_JSON, META) if (path / name).is_file()]
        if not there:
            raise BadData(
                f"--tokenizer {path} is a folder without {TOKENIZER_JSON}, {VOCAB_JSON} or {META}",
                hint="name the tokenizer file itself",
            )
        path = there[0]
    if not path.is_file():
        raise BadData(f"--tokenizer {path}: there is no such file", hint="check the path, or use the word bytes")
    if path.suffix == ".pkl":
        return VocabularyTokenizer(_read_meta(path), str(path))
    return FileTokenizer(_read_tokenizer(path), str(path))


def _read_tokenizer(path: Path) -> "tokenizers.Tokenizer":
    import tokenizers

    try:
        if path.name == VOCAB_JSON:
            model = tokenizers.models.BPE.from_file(str(path), str(path.with_name(MERGES_TXT)))
            inner = tokenizers.Tokenizer(model)
            inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
            inner.decoder = tokenizers.decoders.ByteLevel()
            return inner
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception for whatever is wrong with a file
        raise BadData(
            f"--tokenizer {path} cannot be read: {error}", hint="check that it is a tokenizer file"
        ) from error
    inner.no_truncation()  # which files from transformers often ask for, as well as for padding
    inner.no_padding()
    return inner


def _read_meta(path: Path) -> dict[str, int]:
    """Token -> id of nanoGPT's `meta.pkl` (also as JSON): a pickle that calls nothing. Raises BadData."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(limits.JSON + 1)
        is_json = raw[:1] == b"{" or len(raw) > limits.JSON  # too long for either
        plain = strict_json.parse(raw, limits.JSON) if is_json else PickleMachine(memoryview(raw), calls={}).run()
    except (OSError, Fault) as error:
        said = f"it {error}" if isinstance(error, Unsafe) else str(error)
        raise BadData(f"{path} cannot be read as a vocabulary: {said}", hint="name another with --tokenizer") from error
    found = vocabulary_in(plain) if isinstance(plain, dict) else {}
    if not found:
        raise BadData(f"{path} holds neither stoi nor chars", hint="name another tokenizer with --tokenizer")
    return found


def _folder(path: Path) -> Path:
    return path if path.is_dir() else path.parent
