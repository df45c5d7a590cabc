"""Every error that a user can cause, as one tree.

    ModernizeError              1  a sentence, a hint, an exit code
    ├── ProcessFailed           1  one of several processes failed, and this one cannot go on without it
    ├── UsageError              2  an option that does not fit
    │   └── OneProcess             what may have happened to one of several processes alone
    │       └── OutOfMemory        a batch, or a model, that this device has not the memory for
    ├── InputRefused            3  the input cannot or must not be used
    │   ├── UnreadableFile         missing, damaged, or another kind of file
    │   ├── UnsafeFile             holds objects that only running code could rebuild
    │   ├── UnknownLayout          no dialect accounts for the tensors
    │   ├── AmbiguousInput         two readings are possible and they differ
    │   ├── MissingFact            something nobody said, asked for by option name
    │   ├── BadTensors             shapes or values that cannot be a model
    │   └── BadData                text or token ids that do not fit the model
    │       └── MissingTokenizer   nothing names a tokenizer
    ├── OutputRefused           4  the output exists, is the input, or cannot be written
    └── TrainingStopped         5  a loss or a gradient that is no number

The sentence names the file, the tensor or the option, what was found and what was expected; the hint is the next
thing to try. `boundary.py` turns them into two lines on stderr and the exit code.
"""

from typing import get_args


class ModernizeError(Exception):
    """An error with one sentence for the person at the keyboard and a hint what to do next."""

    exit_code = 1

    def __init__(self, sentence: str, *, hint: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.hint = hint


class UsageError(ModernizeError):
    """An option, or a combination of options, that does not fit."""

    exit_code = 2


class OneProcess(UsageError):
    """What may have happened to one of several processes alone, which is the one to say so."""


class OutOfMemory(OneProcess):
    """Memory that ran out."""


class ProcessFailed(ModernizeError):
    """Another of several processes failed or left, which says why itself."""


class InputRefused(ModernizeError):
    """The input cannot or must not be used."""

    exit_code = 3


class UnreadableFile(InputRefused):
    """A file that is missing, damaged, or of another kind."""


class UnsafeFile(InputRefused):
    """A file with objects that could only be rebuilt by running code."""


class UnknownLayout(InputRefused):
    """No dialect accounts for the tensors."""


class AmbiguousInput(InputRefused):
    """Two readings of the input are possible, and they differ."""


class MissingFact(InputRefused):
    """A fact that no file and no option says."""


class BadTensors(InputRefused):
    """Tensors whose shapes or values cannot be those of a model."""


class BadData(InputRefused):
    """Text or token ids that do not fit the model."""


class MissingTokenizer(BadData):
    """A model that nothing names a tokenizer for."""


class OutputRefused(ModernizeError):
    """The output exists already, is the input, or cannot be written."""

    exit_code = 4


class TrainingStopped(ModernizeError):
    """A loss or a gradient is not a finite number."""

    exit_code = 5


def check_choice(option: str, value: object, words: object) -> None:
    """Raise UsageError for a value that is none of the words of a Literal type."""
    if value not in get_args(words):
        raise UsageError(
            f"--{option} {value!r} is none of {', '.join(get_args(words))}", hint="give one of these words"
        )
