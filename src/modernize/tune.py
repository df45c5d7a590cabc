"""A fine-tune from file to file: load, train, log, write, as one stream of events."""

import itertools
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import torch

from modernize.alone import alone
from modernize.checkpoint import files_of, open_checkpoint
from modernize.choices import DataDType, Weights
from modernize.data import SELF, Corpus, data_files, load_corpus_for
from modernize.devices import choose_device, choose_precision
from modernize.errors import OutputRefused, TrainingStopped, UsageError
from modernize.events import Event, Finished, Notice, Settings, Started, as_row
from modernize.facts import Facts
from modernize.loading import load_modern, load_whole
from modernize.measure import doubts_of
from modernize.model import ModernGPT
from modernize.old import OldGPT
from modernize.parallel import World, whole
from modernize.plot import check_plot, plot_losses
from modernize.progress import Stages, unseen
from modernize.resume import RunFile, outputs_of
from modernize.sample import self_corpus
from modernize.stored import Stored
from modernize.surroundings import Surroundings, never
from modernize.tokenizer import tokenizer_files
from modernize.train import check_settings, finetune
from modernize.write import cast, check_output, check_suffix, model_metadata, write_tensors

OUTPUT = "output"  # in the row of a log that tells of the start: whose log it is
SELF_TOKENS = 1 << 18  # that an old model writes, at most: what it writes last teaches little more


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
    resume: bool
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


def tune(
    job: Job, *, stop: Callable[[], bool] = never, world: World | None = None, progress: Stages = unseen
) -> Iterator[TuneEvent]:
    """Train, and write the weights of the best validation in the dtype that the checkpoint had. Yields Tuned last.

    The run is saved beside the output where `checkpoint_every` says so, and when it is asked to stop. Raises what
    `load`, `load_corpus`, `finetune` and `write_tensors` raise; outputs are checked before any work.
    """
    world = world or World()
    with alone(job.output) if world.first else nullcontext():
        yield from _tuned(job, stop, world, progress)


def _tuned(job: Job, stop: Callable[[], bool], world: World, progress: Stages) -> Iterator[TuneEvent]:
    _check_outputs(job)
    world.wait()  # so that nobody finds what another is about to write
    if job.plot:
        check_plot(job.plot)
    model, stored, _ = load_modern(job.checkpoint, wanted="fine-tuned")
    dtype = next(model.parameters()).dtype
    teacher = None
    if job.teacher:
        teacher, warnings = _teacher(job, job.teacher, stored)
        yield from (Notice(text=text) for text in warnings)
    settings = check_settings(job.settings, model, teacher, world)  # before text is read or written
    if job.data == SELF:
        corpus = _self(settings, teacher, world, progress)
    else:
        with world.first_alone():  # a large text is tokenized once, into a file that the others find
            corpus = _read(job, model, stored, progress)
    device = choose_device(settings.device)
    precision = choose_precision(settings.dtype, device, model.config.n_embd, bfloat16=world.bfloat16(device))
    identity = _identity(job, settings, corpus, precision)
    keeper = RunFile(run_file(job.output), identity, outputs=_outputs(job), writes=world.first)
    around = Surroundings(keeper=keeper, resume=job.resume, stop=stop, world=world, progress=progress)
    result = _Result(job, model, stored, dtype, world)
    with ExitStack() as stack:  # the log is opened when nothing is left to be refused
        log: TextIO | None = None
        try:
            for event in finetune(model, corpus, teacher=teacher, settings=settings, surroundings=around):
                keeper.history.append(as_row(event))
                if isinstance(event, Started):
                    keeper.history[-1][OUTPUT] = str(job.output.resolve())
                    if not job.resume:
                        keeper.remove()  # of a run that --force replaces
                    trained = event.before if event.old is None else event.old
                    yield from (Notice(text=text) for text in doubts_of(trained, model.vocab_size))
                    log = stack.enter_context(_opened(job.log)) if job.log and world.first else None
                    _log(log, *keeper.history)  # a resumed run has rows from before
                else:
                    _log(log, keeper.history[-1])
                yield event
        except TrainingStopped as error:
            raise result.rescued(error, keeper.history) from error
    assert isinstance(event, Finished)
    result.write(event, keeper.history)
    if job.plot and world.first:
        plot_losses(keeper.history, job.plot)
    if event.stopped != "interrupted":
        keeper.remove()
    world.wait()  # the launcher ends all when one has left
    yield Tuned(input=job.checkpoint, output=job.output, finished=event)


def _read(job: Job, model: ModernGPT, stored: Stored, progress: Stages) -> Corpus:
    """DATA, by the tokenizer of the model. Raises BadData."""
    return load_corpus_for(
        job.data,
        beside=job.checkpoint,
        vocabulary=stored.vocabulary,
        vocab_size=model.vocab_size,
        tokenizer=job.tokenizer,
        dtype=job.data_dtype,
        progress=progress,
    )


def _self(settings: Settings, teacher: OldGPT | None, world: World, progress: Stages) -> Corpus:
    """Text of the old model, as much as the run can use and at most SELF_TOKENS. Raises UsageError without one."""
    if teacher is None:
        raise UsageError("--data self is text that the old model writes", hint="give it: --teacher OLD")
    wanted = settings.steps * settings.grad_accum * settings.batch_size * settings.block_size
    found = self_corpus(
        teacher.to(choose_device(settings.device), torch.float32),
        context=settings.block_size,
        tokens=min(wanted, SELF_TOKENS),
        seed=settings.seed,
        progress=partial(progress, "the old model writes"),
    )
    teacher.cpu()  # training takes what it needs of it
    train, val = (world.same(torch.from_numpy(part)).numpy() for part in (found.train, found.val))
    return replace(found, train=train, val=val)


_CHOSEN = ("lr", "distill", "match", "batch_size", "block_size")  # by the run, where its user said nothing


@dataclass(frozen=True)
class _Result:
    """What is written in the end, whichever end that is."""

    job: Job
    model: ModernGPT
    stored: Stored
    dtype: torch.dtype
    world: World

    def write(self, finished: Finished, history: Sequence[Mapping[str, Any]]) -> None:
        """The weights that the model holds, which are the best. All processes take part, the first one writes."""
        state = cast(whole(self.model.to_state(), self.world), self.dtype, origin=str)
        if self.world.first:
            started = next(row for row in reversed(history) if row["event"] == "started")
            settings = asdict(self.job.settings) | {name: started[name] for name in _CHOSEN}
            metadata = _metadata(self.model, self.stored, finished, settings)
            write_tensors(self.job.output, state, metadata)

    def rescued(self, error: TrainingStopped, history: Sequence[Mapping[str, Any]]) -> TrainingStopped:
        """The error of a run that went wrong, after the best weights that it had come to are written."""
        checks = [row for row in history if row["event"] == "validated"]
        best = min(checks, key=lambda row: row["loss"], default=None)
        started = next(row for row in history if row["event"] == "started")
        steps = [row for row in history if row["event"] == "stepped"]
        if best is None or not best["best"] or not steps:
            return error
        self.write(
            Finished(
                steps=best["step"],
                tokens=next(row["tokens"] for row in steps if row["step"] == best["step"]),
                before=started["before"],
                after=best["loss"],
                best=best["loss"],
                old=started["old"],
                tokens_per_second=steps[-1]["tokens_per_second"],
                device=started["device"],
                dtype=started["dtype"],
                stopped="interrupted",
            ),
            history,
        )
        self.world.wait()  # the launcher ends all when one has left, also the one that writes
        return TrainingStopped(
            f"{error.sentence}; {self.job.output} has the weights of step {best['step']}", hint=error.hint
        )


def run_file(output: Path) -> Path:
    """Where the run is saved that will write an output."""
    return output.with_name(f"{output.stem}.run.safetensors")


# what may differ when a run is resumed: how often it is saved and how it is computed, not what
_FREE = ("checkpoint_every", "compile", "device", "shard", "activation_checkpointing")


def _identity(job: Job, settings: Settings, corpus: Corpus, precision: torch.dtype) -> dict[str, Any]:
    """What has to be the same for a run to be resumed, by the names that its user knows."""
    chosen = {"dtype": str(precision).removeprefix("torch."), "weights": job.weights}
    return {
        "CKPT (sha256)": open_checkpoint(job.checkpoint).sha256(),
        "--teacher (sha256)": open_checkpoint(job.teacher, weights=job.weights).sha256() if job.teacher else "",
        # what a teacher writes may differ in a token where sums are made in another order
        "--data (sha256 of its ids)": SELF if job.data == SELF else corpus.digest(),
        **{
            f"--{name.replace('_', '-')}": value
            for name, value in {**asdict(settings), **chosen}.items()
            if name not in _FREE
        },
        **{f"--{name.replace('_', '-')} (of the teacher)": value for name, value in asdict(job.facts).items()},
    }


def _check_outputs(job: Job) -> None:
    """Every output is refused where it exists, is read from, or is another output. Raises OutputRefused, UsageError."""
    inputs = [*files_of(job.checkpoint), *data_files(job.data)]
    inputs += files_of(job.teacher) if job.teacher else ()
    inputs += tokenizer_files(job.checkpoint)
    inputs += tokenizer_files(Path(job.tokenizer)) if job.tokenizer else ()
    outputs = _outputs(job)
    saved = run_file(job.output)
    if saved.exists() and not (job.resume or job.force):
        raise OutputRefused(
            f"a run that would write {job.output} is saved in {saved}",
            hint="--resume goes on with it, --force begins anew",
        )
    own: Collection[str] = ()  # that the interrupted run has written
    if job.resume:
        own = outputs_of(saved) if saved.exists() else _begun_log(job)
    for output in outputs:
        check_output(output, inputs=tuple(inputs), force=job.force or str(output.resolve()) in own)
    check_output(saved, inputs=tuple(inputs), force=True)
    if any(_same(a, b) for a, b in itertools.combinations([*outputs, saved], 2)):
        raise UsageError("two of -o, --log and --plot are the same file", hint="give each a name of its own")
    check_suffix(job.output)


def _begun_log(job: Job) -> tuple[str, ...]:
    """The log, where a run for this output began it and did not end: it was killed before it was saved."""
    if job.log is None or job.output.exists() or not job.log.is_file():
        return ()
    try:
        whole_lines = job.log.read_text(encoding="utf-8").split("\n")[:-1]
        rows = [json.loads(line) for line in whole_lines]
        begun = [row[OUTPUT] for row in rows if row["event"] == "started"]
        ended = any(row["event"] == "finished" for row in rows)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # not a log of ours
        return ()
    return (str(job.log.resolve()),) if not ended and begun == [str(job.output.resolve())] else ()


def _outputs(job: Job) -> list[Path]:
    return [path for path in (job.output, job.log, job.plot) if path is not None]


def _same(a: Path, b: Path) -> bool:
    return a.resolve() == b.resolve() or (a.exists() and b.exists() and a.samefile(b))


def _teacher(job: Job, path: Path, stored: Stored) -> tuple[OldGPT, tuple[str, ...]]:
    """The old model, and the warnings about it. Raises UsageError for a modern one."""
    loaded = load_whole(path, facts=job.facts, weights=job.weights, successor=stored)
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


def _log(log: TextIO | None, *rows: Mapping[str, Any]) -> None:
    if log is not None:
        try:
            log.writelines(json.dumps(row) + "\n" for row in rows)
            log.flush()
        except OSError as error:
            raise OutputRefused(f"the log cannot be written: {error.strerror}", hint="check the space there") from error


def _metadata(model: ModernGPT, stored: Stored, finished: Finished, settings: Mapping[str, Any]) -> dict[str, str]:
    """The metadata of the checkpoint, and what was done to it here."""
    return model_metadata(
        model.config,
        sha256=stored.sha256,
        dialect=stored.dialect,
        facts=stored.facts,
        init=stored.init,
        calibration=stored.calibration,
        vocabulary=stored.vocabulary,
        history=(
            *stored.history,
            {
                "steps": finished.steps,
                "tokens": finished.tokens,
                "loss": {"before": finished.before, "best": finished.best, "old": finished.old},
                "settings": {n: value for n, value in settings.items() if n != "checkpoint_every"},
            },
        ),
    )
