"""The book's faster attention: query, key and value in one matrix."""

from modernize.dialects.book import ASSUMPTIONS, ROWS
from modernize.dialects.table import Dialect, split3

BOOK_FUSED = Dialect(
    name="book-fused",
    title="the same book, with query, key and value in one matrix",
    rules=(
        *ROWS,
        split3("trf_blocks.{i}.att.qkv.{p}", "h.{i}.attn.q.{p}", "h.{i}.attn.k.{p}", "h.{i}.attn.v.{p}"),
    ),
    assumptions=ASSUMPTIONS,
)
