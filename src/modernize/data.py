"""Token ids to train and measure on: from text, .bin, .npy, a folder, or pydoc; split, and cut into windows.

A window of context T is T + 1 consecutive ids: the first T are read, the last T are predicted. Validation windows don't
overlap and are always the same. A two-dimensional `.npy` holds one sequence a row instead, padded with −1, and a
padded place is neither read nor predicted.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modernize.choices import DataDType, Split
from modernize.errors import BadData, check_choice
from modernize.progress import Stages, unseen
from modernize.text import encode_file
from modernize.tokenizer import Tokenizer, find_tokenizer

Ids = NDArray[Any]  # (n,) or, one sequence a row, (n, T + 1)
PYDOC = "pydoc"
SELF = "self"  # text that the old model writes; see sample.py
SPLITS = ("train.bin", "val.bin")
IGNORED = -1  # a target that is not predicted
TRAIN_SHARE = 0.9
DIGESTED = 1 << 28  # ids; more would keep a run waiting that has to be saved
_PIECE = 1 << 16
_CHECKED_AT_ONCE = 1 << 22  # ids


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Ids for training and for validation; `name` is what errors call it."""

    name: str
    train: Ids
    val: Ids

    def digest(self) -> str:
        """SHA-256 of the ids and their shapes; of a part beyond DIGESTED ids, of pieces all over it."""
        found = hashlib.sha256()
        for part in (self.train, self.val):
            flat = part.reshape(-1)
            pieces = -(-len(flat) // _PIECE)
            every = max(1, -(-pieces * _PIECE // DIGESTED))
            found.update(repr(part.shape).encode())
            for number in range(0, pieces, every):
                found.update(flat[number * _PIECE : (number + 1) * _PIECE].astype(np.int64).tobytes())
        return found.hexdigest()

    def windows(self, which: Split, context: int, *, vocab_size: int) -> "Windows":
        """Windows over one part, or over all of it in its order. Raises BadData; see `windows`."""
        check_choice("split", which, Split)
        whole = np.concatenate([self.train, self.val]) if which == "all" and len(self.train) else self.val
        part, said = {"train": (self.train, "training"), "val": (self.val, "validation"), "all": (whole, "")}[which]
        return windows(part, context, vocab_size=vocab_size, name=f"{self.name} ({said} part)" if said else self.name)


def load_corpus(
    data: str | Path,
    *,
    tokenizer: Callable[[], Tokenizer],
    vocab_size: int,
    dtype: DataDType = "uint16",
    progress: Stages = unseen,
) -> Corpus:
    """Read DATA: text, `.bin`, `.npy`, a folder, or pydoc. `tokenizer` is called only where there is text to be read.

    Raises BadData for what cannot be read, and for ids that are past the vocabulary.
    """
    if str(data) == PYDOC:
        return _split(PYDOC, tokenizer().encode(pydoc_text()), vocab_size)
    path = Path(data)
    if path.is_dir():
        return _folder(path, dtype, vocab_size)
    if not path.is_file():
        raise BadData(f"there is no data {path}", hint=f"give a text, .bin or .npy file, a folder, or the word {PYDOC}")
    if path.suffix == ".bin":
        ids = _bin(path, dtype, vocab_size)
        # a file that is a validation split by name is not split again
        whole = path.name == SPLITS[1]
    elif path.suffix == ".npy":
        ids, whole = _npy(path), False
    else:
        ids, whole = encode_file(path, tokenizer(), progress=partial(progress, f"reading {path.name}, MB")), False
    if whole:
        _check_ids(ids, vocab_size, str(path))
        return Corpus(name=str(path), train=ids[:0], val=ids)
    return _split(str(path), ids, vocab_size)


def load_corpus_for(
    data: str | Path,
    *,
    beside: Path,
    vocabulary: Mapping[str, int],
    vocab_size: int,
    tokenizer: str | None,
    dtype: DataDType,
    progress: Stages = unseen,
) -> Corpus:
    """Read DATA for a checkpoint: with the tokenizer that the user names, or that is in the file or beside it.

    Raises what `load_corpus` raises.
    """
    return load_corpus(
        data,
        tokenizer=lambda: find_tokenizer(tokenizer, vocabulary=vocabulary, beside=beside, vocab_size=vocab_size),
        vocab_size=vocab_size,
        dtype=dtype,
        progress=progress,
    )


def data_files(data: str | Path) -> tuple[Path, ...]:
    """The files that DATA is read from; none for pydoc and self."""
    path = Path(data)
    if path.is_dir():
        return tuple(path / name for name in SPLITS)
    return () if str(data) in {PYDOC, SELF} else (path,)


def pydoc_text() -> str:
    """The language reference that every CPython carries, topic by topic."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics)) + "\n"


def _split(name: str, ids: Ids, vocab_size: int) -> Corpus:
    _check_ids(ids, vocab_size, name)
    cut = int(TRAIN_SHARE * len(ids))
    return Corpus(name=name, train=ids[:cut], val=ids[cut:])


def _folder(path: Path, dtype: DataDType, vocab_size: int) -> Corpus:
    there = [name for name in SPLITS if (path / name).is_file()]
    if SPLITS[1] not in there:
        raise BadData(
            f"{path} is a folder without {SPLITS[1]}", hint="give a folder with train.bin and val.bin, or one file"
        )
    parts = {name: _bin(path / name, dtype, vocab_size) for name in there}
    for name, ids in parts.items():
        _check_ids(ids, vocab_size, str(path / name))
    val = parts[SPLITS[1]]
    return Corpus(name=str(path), train=parts.get(SPLITS[0], val[:0]), val=val)


def _bin(path: Path, dtype: DataDType, vocab_size: int) -> Ids:
    """NanoGPT's layout: nothing but ids; mapped, not read."""
    if vocab_size - 1 > np.iinfo(dtype).max:
        raise BadData(
            f"{path} is read as {dtype}, which cannot hold the ids of a vocabulary of {vocab_size}",
            hint="pass --data-dtype uint32",
        )
    width, size = np.dtype(dtype).itemsize, path.stat().st_size
    if not size:
        raise BadData(f"{path} is empty", hint="make the file again")
    if size % width:
        raise BadData(
            f"{path} has {size} bytes, which is no number of {dtype} ids",
            hint="pass --data-dtype uint32 for a large vocabulary, or make the file again",
        )
    return np.memmap(path, dtype=dtype, mode="r")


def _npy(path: Path) -> Ids:
    try:
        ids = np.load(path, mmap_mode="r", allow_pickle=False)
    except PermissionError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}", hint="check its permissions") from error
    except (ValueError, OSError, EOFError) as error:
        raise BadData(
            f"{path} cannot be read: {error}", hint="make it with numpy.save from an integer array"
        ) from error
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu" or ids.ndim not in (1, 2):
        raise BadData(
            f"{path} is no array of token ids with one or two axes",
            hint="make it with numpy.save from an integer array",
        )
    if ids.ndim == 2 and (ids.shape[1] < 2 or np.any((ids[:, :-1] < 0) & (ids[:, 1:] >= 0))):
        raise BadData(
            f"{path} has rows that are not at least two ids with padding (-1) only at the end",
            hint="put the ids of a row first and fill it up with -1",
        )
    return ids


def _check_ids(ids: Ids, vocab_size: int, name: str) -> None:
    """All ids must be within the vocabulary, before any work is done. Raises BadData with the first that is not."""
    lowest = IGNORED if ids.ndim == 2 else 0
    flat = ids.reshape(-1)
    for start in range(0, len(flat), _CHECKED_AT_ONCE):
        part = flat[start : start + _CHECKED_AT_ONCE]
        if part.max() >= vocab_size or part.min() < lowest:
            place = int(np.flatnonzero((part >= vocab_size) | (part < lowest))[0])
            raise BadData(
                f"{name} has the token id {part[place]} at place {start + place}, and the model knows {vocab_size}",
                hint="give the data that belongs to this model's tokenizer, or check --data-dtype",
            )


# ---------------------------------------------------------------------------------------------- windows


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of one context over ids, by number. `name` is what errors call the data."""

    ids: Ids
    context: int
    vocab_size: int
    name: str

    @property
    def width(self) -> int:
        """Places of a window that is drawn: rows may be shorter than the context."""
        return self.ids.shape[1] - 1 if self.ids.ndim == 2 else self.context

    def __len__(self) -> int:
        return len(self.ids) if self.ids.ndim == 2 else max(len(self.ids) - 1, 0) // self.context

    def take(self, numbers: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and targets (B, T) of the windows with these numbers, which don't overlap."""
        if self.ids.ndim == 2:
            return self._rows(numbers)
        return self._at(numbers * self.context)

    def draw(self, random: np.random.Generator, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Inputs and targets (count, T) of windows that start anywhere."""
        if self.ids.ndim == 2:
            return self._rows(random.integers(0, len(self.ids), count))
        return self._at(random.integers(0, len(self.ids) - self.context, count))

    def batches(self, size: int, *, limit: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """All windows in order, or the first `limit`, `size` at a time."""
        count = min(len(self), limit) if limit else len(self)
        for start in range(0, count, size):
            yield self.take(np.arange(start, min(start + size, count)))

    def _at(self, starts: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        window = np.stack([self.ids[s : s + self.context + 1] for s in starts]).astype(np.int64)  # (B, T + 1)
        return window[:, :-1], window[:, 1:]

    def _rows(self, numbers: Ids) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        rows = np.asarray(self.ids[numbers]).astype(np.int64)  # (B, T + 1)
        return np.maximum(rows[:, :-1], 0), rows[:, 1:]


def windows(ids: Ids, context: int, *, vocab_size: int, name: str) -> Windows:
    """Windows over ids. Raises BadData where there is not one whole window, or where rows are too long."""
    if ids.ndim == 2 and ids.shape[1] > context + 1:
        raise BadData(
            f"{name} has rows of {ids.shape[1]} ids, and a window has room for {context + 1}",
            hint="cut the rows, or give the ids in one dimension",
        )
    if ids.ndim == 2 and not np.any(ids[:, 1:] >= 0):
        raise BadData(f"{name} has rows of nothing but padding", hint="give rows with ids to predict")
    found = Windows(ids=ids, context=context, vocab_size=vocab_size, name=name)
    if not len(found):
        raise BadData(
            f"{name} has {len(ids)} tokens, and one window of context {context} needs {context + 1}",
            hint="give more text, or a smaller context",
        )
    return found
