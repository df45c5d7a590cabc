"""A fine-tune from file to file: load, train, log, write, as one stream of events."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from modernize.checkpoint import files_of
from modernize.choices import DataDType, Weights
from modernize.data import data_files, load_corpus
from modernize.errors import OutputRefused, UsageError
from modernize.events import Event, Finished, Notice, Settings
from modernize.facts import Facts
from modernize.loading import load_whole
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.plot import check_plot, plot_losses
from modernize.stored import Stored
from modernize.tokenizer import find_tokenizer, tokenizer_files
from modernize.train import finetune
from modernize.write import cast, check_output, check_suffix, model_metadata, write_model


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to train, on what, and where the result goes."""

    checkpoint: Path
    data: str
    output: Path
    teacher: Path | None
    tokenizer: str | None
    data_dtype: DataDType
    facts: Facts
    weights: Weights
    log: Path | None
    plot: Path | None
    force: bool
    settings: Settings


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What came out, and that it is written."""

    input: Path
    output: Path
    finished: Finished

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        end = self.finished
        return {
            "input": str(self.input),
            "output": str(self.output),
            "steps": end.steps,
            "tokens": end.tokens,
            "loss": {"before": end.before, "after": end.after, "best": end.best, "old": end.old},
            "recovery": end.recovery,
            "tokens_per_second": end.tokens_per_second,
            "device": end.device,
            "dtype": end.dtype,
            "stopped": end.stopped,
        }


TuneEvent: TypeAlias = Event | Tuned


def tune(job: Job) -> Iterator[TuneEvent]:
    """Train, and write the weights of the best validation in the dtype that the checkpoint had. Yields Tuned last.

    Raises what `load`, `load_corpus`, `finetune` and `write_model` raise; outputs are checked before any work.
    """
    _check_outputs(job)
    if job.plot:
        check_plot()
    model, stored = _modern(job.checkpoint)
    dtype = next(model.parameters()).dtype
    teacher = None
    if job.teacher:
        teacher, warnings = _teacher(job.teacher, job.facts, job.weights)
        yield from (Notice(text=text) for text in warnings)
    corpus = load_corpus(
        job.data,
        tokenizer=lambda: find_tokenizer(
            job.tokenizer, vocabulary=stored.vocabulary, beside=job.checkpoint, vocab_size=model.vocab_size
        ),
        vocab_size=model.vocab_size,
        dtype=job.data_dtype,
    )
    events = finetune(model, corpus, teacher=teacher, settings=job.settings)
    seen: list[Event] = []
    with ExitStack() as stack:  # the log is opened when nothing is left to be refused
        log = stack.enter_context(_opened(job.log)) if job.log else None
        for event in events:
            seen.append(event)
            _log(log, event)
            yield event
    finished = next(event for event in seen if isinstance(event, Finished))
    state = cast({n: t.detach().cpu() for n, t in model.to_state().items()}, dtype, origin=str)
    write_model(job.output, state, _metadata(model, stored, finished, job.settings))
    if job.plot:
        plot_losses(seen, job.plot)
    yield Tuned(input=job.checkpoint, output=job.output, finished=finished)


def _check_outputs(job: Job) -> None:
    """Every output is refused where it exists, is read from, or is another output. Raises OutputRefused, UsageError."""
    inputs = [*files_of(job.checkpoint), *data_files(job.data)]
    inputs += files_of(job.teacher) if job.teacher else ()
    inputs += tokenizer_files(job.checkpoint)
    inputs += tokenizer_files(Path(job.tokenizer)) if job.tokenizer else ()
    outputs = [path for path in (job.output, job.log, job.plot) if path is not None]
    for output in outputs:
        check_output(output, inputs=tuple(inputs), force=job.force)
    if any(_same(a, b) for a, b in itertools.combinations(outputs, 2)):
        raise UsageError("two of -o, --log and --plot are the same file", hint="give each a name of its own")
    check_suffix(job.output)


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def _modern(path: Path) -> tuple[ModernGPT, Stored]:
    """A model that modernize wrote. Raises UsageError for any other."""
    loaded = load_whole(path)
    if loaded.stored is None or not isinstance(loaded.model, ModernGPT):
        raise UsageError(
            f"{path} is an old model, and only a converted one is fine-tuned",
            hint=f"convert it first: modernize convert {path} NEW.safetensors",
        )
    return loaded.model, loaded.stored


def _teacher(path: Path, facts: Facts, weights: Weights) -> tuple[OldGPT, tuple[str, ...]]:
    """The old model, and the warnings about it. Raises UsageError for a modern one."""
    loaded = load_whole(path, facts=facts, weights=weights)
    if not isinstance(loaded.model, OldGPT):
        raise UsageError(
            f"--teacher {path} is a modern model", hint="the teacher is the old checkpoint that CKPT was made from"
        )
    return loaded.model, loaded.warnings


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise OutputRefused(f"{path} cannot be written: {error.strerror}", hint="check its folder") from error


def _log(log: TextIO | None, event: Event) -> None:
    if log is not None:
        row = {"event": type(event).__name__.lower(), **dataclasses.asdict(event)}
        try:
            log.write(json.dumps(row) + "\n")
            log.flush()
        except OSError as error:
            raise OutputRefused(f"the log cannot be written: {error.strerror}", hint="check the space there") from error


def _metadata(model: ModernGPT, stored: Stored, finished: Finished, settings: Settings) -> dict[str, str]:
    """The metadata of the checkpoint, and what was done to it here."""
    return model_metadata(
        model.config,
        sha256=stored.sha256,
        dialect=stored.dialect,
        init=stored.init,
        calibration=stored.calibration,
        vocabulary=stored.vocabulary,
        history=(
            *stored.history,
            {
                "steps": finished.steps,
                "tokens": finished.tokens,
                "loss": {"before": finished.before, "best": finished.best, "old": finished.old},
                "settings": asdict(settings),
            },
        ),
    )
