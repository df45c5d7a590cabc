"""The boundary of the command line: the one place where errors become a sentence, a hint and an exit code."""

import errno
import io
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from modernize.errors import (
    ModernizeError,
    OneProcess,
    OutOfMemory,
    OutputRefused,
    ProcessFailed,
    TrainingStopped,
    UnreadableFile,
    UsageError,
)
from modernize.interrupts import LAUNCHED

TELLING = 10.0  # seconds that another process may need to tell an error that all have met

# the root of typer's own usage errors, which typer does not export by name
_ClickException: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run(app: typer.Typer) -> NoReturn:
    """Run an app on the process's arguments and exit."""
    signal.signal(signal.SIGTERM, _terminated)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, _terminated)
    _open_streams()
    debug = os.environ.get("MODERNIZE_DEBUG") == "1"
    try:
        code = app(prog_name="modernize", standalone_mode=False)
    except ModernizeError as error:
        if debug:
            _print_traceback()
        _say(error)
        code = error.exit_code
    except _ClickException as error:
        _say(UsageError(_usage_sentence(error), hint=_help_for(error)))
        code = UsageError.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except SystemExit as left:
        code = _left_with(left)
    except OSError as error:  # of the machine and not of the program: permissions, names, a full disk
        if debug:
            _print_traceback()
        failed = OutputRefused if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS) else UnreadableFile
        about = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        hint = "check the name, the permissions and the space there"
        _say(failed(f"{about}{error.strerror or error}", hint=hint), everywhere=True)
        code = failed.exit_code
    except Exception as error:
        failure = _unexpected(error, debug=debug)
        _say(failure)
        code = failure.exit_code
    _leave(code if isinstance(code, int) else 0)


def _unexpected(error: Exception, *, debug: bool) -> ModernizeError:
    """Memory that ran out, or a bug, which is shown."""
    greedy = _out_of_memory(error)
    if debug or not greedy:
        _print_traceback()
    if greedy:
        return OutOfMemory("there is not enough memory", hint="close other programs; of a GPU's, use --device cpu")
    return ModernizeError(f"this is a bug: {type(error).__name__}", hint="please report it with the lines above")


def _left_with(left: SystemExit) -> int:
    if isinstance(left.code, int | None):
        return left.code or 0
    sys.stderr.write(f"{left.code}\n")
    return 1


def _leave(code: int) -> NoReturn:
    if code and (LAUNCHED in os.environ or "RANK" in os.environ):
        # others may wait for this process, and it would wait for them while it ends
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)
    sys.exit(code)


def _out_of_memory(error: Exception) -> bool:
    if "torch" not in sys.modules:
        return isinstance(error, MemoryError)
    from modernize.memory import is_out_of_memory

    return is_out_of_memory(error)


def _open_streams() -> None:
    """Streams that can take whatever is said: a reader that leaves ends the program quietly, a closed stream swallows,
    and what an encoding lacks is shown escaped.
    """
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  (open to the end)
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _say(error: ModernizeError, *, everywhere: bool = False) -> None:
    if LAUNCHED in os.environ and not (everywhere or _is_told_here(error)):
        # the launcher ends all when one has left, also the one that tells: it goes first, and then this one is ended
        for ended_by in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ended_by, signal.SIG_DFL)
        time.sleep(TELLING)
        return
    from modernize.console import Output

    Output().error(error)


def _is_told_here(error: ModernizeError) -> bool:
    """Of several processes the first says what all have met together, and the first of each machine what has to do with
    its files and options; what may have happened to one is said by that one.
    """
    if isinstance(error, OneProcess) or type(error) is ModernizeError:
        return True
    together = isinstance(error, TrainingStopped | ProcessFailed)
    return os.environ.get("RANK" if together else "LOCAL_RANK", "0") == "0"


def _print_traceback() -> None:
    """Where an error came from; what it says can hold names from a file."""
    from modernize.console import printable

    for line in traceback.format_exc().splitlines():
        sys.stderr.write(f"{printable(line)}\n")


def _usage_sentence(error: Exception) -> str:
    """What typer says, with the value that it leaves out."""
    tell: Callable[[], str] = getattr(error, "format_message", error.__str__)
    sentence = tell().rstrip(".")
    invalid = re.fullmatch(r"Invalid value for '(--[a-z-]+)': (?:Input (should .+)|Value error, (.+))", sentence)
    if not invalid:
        return sentence
    option, should, says = invalid.groups()
    return f"{option} {_value_of(option)} {should}" if should else f"{option}: {says}"


def _value_of(option: str) -> str:
    """The last value that the command line gives to an option."""
    for place in range(len(sys.argv) - 1, 0, -1):
        word, _, value = sys.argv[place].partition("=")
        if word == option:
            return value or " ".join(sys.argv[place + 1 : place + 2])
    return ""


def _help_for(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'modernize'} --help`"


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
