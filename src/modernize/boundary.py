"""The boundary of the command line: the one place where errors become a sentence, a hint and an exit code."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

import typer

from modernize.errors import ModernizeError, UsageError

# the root of typer's own usage errors, which typer does not export by name
_ClickException: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run(app: typer.Typer) -> NoReturn:
    """Run an app on the process's arguments and exit."""
    signal.signal(signal.SIGTERM, _terminated)
    debug = os.environ.get("MODERNIZE_DEBUG") == "1"
    try:
        code = app(prog_name="modernize", standalone_mode=False)
    except ModernizeError as error:
        if debug:
            traceback.print_exc()
        _say(error)
        code = error.exit_code
    except _ClickException as error:
        _say(UsageError(_usage_sentence(error), hint=_help_for(error)))
        code = UsageError.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads; say no more
        code = 141
    except Exception as error:
        traceback.print_exc()
        _say(ModernizeError(f"this is a bug: {type(error).__name__}", hint="please report it with the lines above"))
        code = ModernizeError.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _say(error: ModernizeError) -> None:
    from modernize.console import Output

    Output().error(error)


def _usage_sentence(error: Exception) -> str:
    tell: Callable[[], str] = getattr(error, "format_message", error.__str__)
    return tell().rstrip(".")


def _help_for(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f"see `{context.command_path if context else 'modernize'} --help`"


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)
