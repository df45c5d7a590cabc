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
from modernize.progress import Progress, silent
from modernize.tokenizer import Tokenizer
from modernize.whole import write_whole

LARGE = 1 << 24  # bytes; tokenizers need a hundred times that for a moment
PIECE = 1 << 22  # bytes
MB = 10**6
LONGEST_LINE = 1 << 26  # characters; one that is longer is cut where it is


def encode_file(path: Path, tokenizer: Tokenizer, *, progress: Progress = silent) -> NDArray[Any]:
    """Ids of a UTF-8 text, (n,), mapped from a cache where it is large; line ends are kept as they are.

    Raises BadData for what cannot be read, and for what the tokenizer has no token for; OutputRefused where there is no
    room for the cache.
    """
    try:
        size, changed = path.stat().st_size, path.stat().st_mtime_ns
        if size <= LARGE:
            return tokenizer.encode("".join(_pieces(path)))
        dtype = np.uint16 if tokenizer.size <= 1 << 16 else np.uint32
        key = hashlib.sha256(f"{tokenizer.fingerprint()} {size} {changed}".encode()).hexdigest()[:12]
        cache = path.with_name(f"{path.name}.{key}.ids")
        pieces = (tokenizer.encode(piece).astype(dtype) for piece in _pieces(path, progress))
        if not cache.exists() and not os.access(path.parent, os.W_OK):
            return np.concatenate(list(pieces))
        if not cache.exists():
            write_whole(cache, pieces)
        return np.memmap(cache, dtype=dtype, mode="r")
    except OSError as error:
        raise BadData(
            f"{error.filename or path} cannot be read: {error.strerror}", hint="check its permissions"
        ) from error


def _pieces(path: Path, progress: Progress = silent) -> Iterator[str]:
    """The text in pieces that a tokenizer takes as it takes the whole: they end before a line end. Told in MB."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, read, size = "", 0, path.stat().st_size
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
            cut = _last_line_end(text) if raw and len(text) < LONGEST_LINE else len(text)
            if cut:
                yield text[:cut]
                text = text[cut:]
            progress(read // MB, size // MB)
            if not raw:
                return


def _last_line_end(text: str) -> int:
    """Where the last line end stands that a word follows; 0 where there is none.

    Byte-level BPE (GPT-2's pattern) takes that line end as a piece of its own, and all space before it as another, so
    it cuts there itself, whatever comes before and after.
    """
    at = len(text) - 1
    while (at := text.rfind("\n", 0, at)) > 0:
        if not text[at + 1].isspace():
            return at
    return 0
