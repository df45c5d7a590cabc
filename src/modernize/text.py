"""Text files as token ids. A large one is read piece by piece, so that it may be larger than memory, into a cache
beside it that the next run finds.
"""

import codecs
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modernize.errors import BadData
from modernize.tokenizer import Tokenizer

LARGE = 1 << 24  # bytes; tokenizers need a hundred times that for a moment
PIECE = 1 << 22  # bytes


def encode_file(path: Path, tokenizer: Tokenizer) -> NDArray[Any]:
    """Ids of a UTF-8 text, (n,), mapped from a cache where it is large; line ends are kept as they are.

    Raises BadData for what cannot be read, and for what the tokenizer has no token for.
    """
    try:
        size, changed = path.stat().st_size, path.stat().st_mtime_ns
        if size <= LARGE:
            return tokenizer.encode("".join(_pieces(path)))
        dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
        key = hashlib.sha256(f"{tokenizer.fingerprint()} {size} {changed}".encode()).hexdigest()[:12]
        cache = path.with_name(f"{path.name}.{key}.ids")
        if not cache.exists():
            _write(cache, (tokenizer.encode(piece).astype(dtype) for piece in _pieces(path)))
        return np.memmap(cache, dtype=dtype, mode="r")
    except OSError as error:
        raise BadData(
            f"{error.filename or path} cannot be read or written: {error.strerror}",
            hint="check its permissions; ids of a large text are kept in a file beside it",
        ) from error


def _write(cache: Path, pieces: Iterator[NDArray[Any]]) -> None:
    aside = cache.with_name(f".{cache.name}.{os.getpid()}.part")
    try:
        with aside.open("wb") as stream:
            for piece in pieces:
                stream.write(piece.tobytes())
        aside.replace(cache)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _pieces(path: Path) -> Iterator[str]:
    """The text in pieces that a tokenizer takes as it takes the whole: they end with a line, between words."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read = "", 0
    with path.open("rb") as stream:
        while True:
            raw = stream.read(PIECE)
            held = len(decoder.getstate()[0])  # bytes of a character that was not whole
            try:
                text += decoder.decode(raw, final=not raw)
            except UnicodeDecodeError as error:
                raise BadData(
                    f"{path} is no UTF-8 text (byte {read - held + error.start})",
                    hint="token ids go into a .bin or .npy file",
                ) from error
            read += len(raw)
            cut = _last_line_end(text) if raw else len(text)
            if cut:
                yield text[:cut]
                text = text[cut:]
            if not raw:
                return


def _last_line_end(text: str) -> int:
    """Where the last line begins that starts with no space and follows no empty line; 0 where there is none.

    There byte-level BPE (GPT-2's pattern) cuts anyway, whatever follows.
    """
    at = len(text) - 1
    while (at := text.rfind("\n", 0, at)) > 0:
        if not text[at - 1].isspace() and not text[at + 1].isspace():
            return at + 1
    return 0
