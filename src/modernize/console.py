"""Output: the answer on stdout, everything else on stderr; for people, for programs (`--json`), or quietly.

Nothing below this module prints. Text is never read as markup, and what cannot be printed is shown escaped.
"""

import contextlib
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from modernize.errors import ModernizeError
from modernize.progress import Progress, Stages, silent

SCHEMA = 1


PATIENCE = 2.0  # seconds for which a stage of work is silent where there is no bar
_PIPED_WIDTH = 240  # columns; nothing is folded for a program that reads
_BLOCKS = "▏▎▍▌▋▊▉█"
_LONGEST = 2_000  # characters of a sentence that is shown whole; names from a file can be as long as they like
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and line ends


class Output:
    """Where a command says what it has to say."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json, self.quiet = as_json, quiet
        self.muted = False  # where another process says it all
        self._line_is_open = False  # the answer stopped within a line
        self._out = _console(sys.stdout)
        self._err = _console(sys.stderr)

    def answer(self, plain: Mapping[str, Any], human: Callable[["Output"], None]) -> None:
        """The answer: one JSON object, or what `human` prints."""
        if self.muted:
            return
        if self.as_json:
            text = json.dumps(_finite({"schema": SCHEMA, **plain}), ensure_ascii=False, allow_nan=False)
            sys.stdout.write("".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text) + "\n")
            sys.stdout.flush()
        else:
            human(self)

    def line(self, text: str, style: str = "") -> None:
        """One line of the answer, with what blank lines stand around it."""
        bare = text.strip("\n")
        before, _, after = text.partition(bare) if bare else (text, "", "")
        self._out.print(Text(f"{before}{printable(bare)}{after}", style=style), soft_wrap=True)

    def stream(self, text: str) -> None:
        """A piece of the answer, at once and without an end of line; a terminal gets no control characters."""
        sys.stdout.write(_CONTROL.sub(lambda found: _escape(found[0]), text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
        self._line_is_open = not text.endswith("\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """A table of the answer; `right` are the columns that hold numbers."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, column in enumerate(columns):
            table.add_column(column, justify="right" if number in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(printable(cell)) for cell in row))
        self._out.print(table)

    def note(self, text: str) -> None:
        """Something on stderr that is neither a warning nor an error."""
        if not (self.quiet or self.muted):
            if self._line_is_open and sys.stdout.isatty() and sys.stderr.isatty():
                self._err.print()  # on the screen that both share, it gets a line of its own
                self._line_is_open = False
            self._err.print(Text(brief(text)), soft_wrap=True)

    def warnings(self, texts: Sequence[str]) -> None:
        """Warnings, a line each."""
        for text in texts:
            if not (self.quiet or self.muted):
                self._err.print(Text(f"warning: {brief(text)}", style="yellow"), soft_wrap=True)

    def error(self, error: ModernizeError) -> None:
        """An error and its hint, a line each."""
        self._err.print(Text(f"error: {brief(error.sentence)}", style="red"), soft_wrap=True)
        self._err.print(Text(f"hint: {brief(error.hint)}"), soft_wrap=True)

    @contextlib.contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        """A bar on a terminal, elsewhere a plain line for each tenth of the work; nothing with `--quiet`."""
        if self.quiet or self.muted:
            yield silent
        elif self._err.is_terminal:
            with self._bar(title) as advance:
                yield advance
        else:
            yield self._tenths(title)

    @contextlib.contextmanager
    def stages(self) -> Iterator[Stages]:
        """Work in several stages, each with a bar of its own.

        Without a terminal, lines that say nothing more than how far it is come after PATIENCE.
        """
        bars = self._err.is_terminal and not (self.quiet or self.muted)
        lines: dict[str, Progress] = {}  # of stages that others interrupted
        with contextlib.ExitStack() as stack:
            current = ""
            advance: Progress = silent

            def tell(stage: str, done: int, total: int, text: str = "") -> None:
                nonlocal current, advance
                if stage != current:
                    stack.close()
                    current = stage
                    if bars:
                        advance = stack.enter_context(self._bar(stage))
                    else:
                        if stage not in lines:
                            lines[stage] = self._tenths(stage, patience=PATIENCE)
                        advance = lines[stage]
                advance(done, total, text)
                if done >= total:  # when it comes again, it begins again
                    stack.close()
                    current = ""
                    lines.pop(stage, None)

            yield tell

    @contextlib.contextmanager
    def _bar(self, title: str) -> Iterator[Progress]:
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        said = TextColumn("{task.fields[said]}", markup=False)
        with Bar(*columns, said, console=self._err, transient=True) as bar:
            task = bar.add_task(printable(title), total=None, said="")

            def advance(done: int, total: int, text: str = "") -> None:
                bar.update(task, completed=done, total=total, said=printable(text))

            yield advance

    def _tenths(self, title: str, *, patience: float = 0.0) -> Progress:
        last, began = 0, time.monotonic()

        def advance(done: int, total: int, text: str = "") -> None:
            nonlocal last
            tenth = 10 * done // max(total, 1)
            if tenth > last and (text or time.monotonic() - began >= patience):
                self.note(f"{title} {done}/{total}  {text}".rstrip())
            last = tenth

        return advance


def _finite(value: Any) -> Any:  # noqa: ANN401  (any plain value)
    """Numbers that JSON has no word for (NaN, infinities) become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def printable(text: str) -> str:
    """Text as it can be shown in one line: line ends, control and other unprintable characters escaped."""
    return "".join(c if c.isprintable() else _escape(c) for c in text)


def brief(text: str) -> str:
    """The same, of what is too long to be read only its beginning and its end."""
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 200]} … {text[-200:]}"
    return printable(shown)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def bar(value: float, top: float, *, width: int = 24) -> str:
    """A value as a bar of blocks, which is `width` characters long at `top`; none for what is no number above zero."""
    share = value / top if top > 0 else 0.0
    eighths = round(8 * width * share) if 0 < share <= 1 else 0
    return "█" * (eighths // 8) + (_BLOCKS[eighths % 8 - 1] if eighths % 8 else "")


def number(value: int) -> str:
    """1234567 -> `1,234,567`."""
    return f"{value:,}"


def _console(stream: Any) -> Console:  # noqa: ANN401  (any text stream)
    width = None if stream.isatty() else _PIPED_WIDTH
    return Console(file=stream, markup=False, highlight=False, emoji=False, width=width)
