"""What names and shapes cannot tell: heads, activation, attention scale, epsilon.

A fact comes from the user's option, from the settings in the file, or from what the dialect's programs are known to
do, in this order. What was assumed although another value is possible gives a warning; what nothing says is asked for,
all of it at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from modernize.checkpoint import Checkpoint
from modernize.checkpoint.faults import quoted
from modernize.choices import Activation, AttnScale, Norm
from modernize.dialects import DIALECTS, Cover, Dialect
from modernize.dialects.demands import contradiction
from modernize.dialects.setting_names import activation, heads_told, look_up, number, whole_number
from modernize.dialects.table import AssumedField
from modernize.errors import BadTensors, MissingFact, UnknownLayout, UsageError
from modernize.outline import width_of
from modernize.spec import ACTIVATIONS, ATTN_SCALES, GPTSpec
from modernize.strangers import modern_folder

ASSUMED_FIELDS: tuple[AssumedField, ...] = ("activation", "attn_scale", "norm_eps", "norm")
QKV = "q,k,v"  # the order in which most programs keep query, key and value in one tensor
CHOICES = {"activation": ACTIVATIONS, "attn_scale": ATTN_SCALES, "norm": ("pre", "post")}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the user says of a file; None where nothing is said.

    `qkv_order` is the order in which fused projections keep query, key and value.
    """

    dialect: str | None = None
    n_head: int | None = None
    activation: Activation | None = None
    attn_scale: AttnScale | None = None
    norm_eps: float | None = None
    norm: Norm | None = None
    qkv_order: str = QKV

    def or_else(self, known: Mapping[str, Any]) -> "Facts":
        """What the user says, and what is known where he says nothing."""
        unsaid = {name for name, value in vars(self).items() if value is None or (name, value) == ("qkv_order", QKV)}
        return replace(self, **{name: value for name, value in known.items() if name in unsaid})


@dataclass
class Findings:
    """The facts of one file, the warnings about them, and what is still to be asked for (option -> why)."""

    values: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    asked: dict[str, str] = field(default_factory=dict)


def find_facts(checkpoint: Checkpoint, covers: Sequence[Cover], said: Facts) -> Findings:
    """All facts of a checkpoint that fits these covers.

    Raises:
        MissingFact: what nothing says, with the options to pass.
        BadTensors, UnknownLayout: a setting that contradicts the keys, or that cannot be carried over.
    """
    found = Findings()
    _find_heads(checkpoint, covers[0], said, found)
    for name in ASSUMED_FIELDS:
        given = getattr(said, name)
        setting, where = look_up(checkpoint.settings, name)
        if given is not None:
            if name == "norm_eps" and not 0 <= given < 1:
                raise UsageError(f"--norm-eps {given} is not between 0 and 1", hint="1e-5 is usual")
            found.values[name] = given
        elif setting is not None and not _is_certain(covers, name):
            width = width_of(checkpoint, covers[0])
            sizes = (width // found.values.get("n_head", width), width)
            found.values[name] = _understood(checkpoint, name, setting, where, sizes=sizes)
        else:
            _assume(covers, name, found)
    if found.values.pop("norm", "pre") == "post":
        raise UnknownLayout(
            f"{checkpoint.path} is a post-norm model: its norms stand behind attention and MLP, in the stream itself",
            hint="only pre-norm models can be converted; if its norms stand before, pass --norm pre",
        )
    if found.asked:
        raise MissingFact(
            f"{checkpoint.path}: {'; '.join(found.asked.values())}",
            hint=f"pass {' and '.join(found.asked)}, as in the program that trained it; with DATA that it knows, "
            "`modernize inspect --data` finds them out",
        )
    return found


def open_facts(checkpoint: Checkpoint, covers: Sequence[Cover], said: Facts) -> tuple[str, ...]:
    """Names of the facts that neither the user nor the file says, and that its dialects' programs don't settle; where
    norms stand, copies of every program change.
    """
    names = [
        name
        for name in ("activation", "attn_scale", "norm")
        if getattr(said, name) is None
        and look_up(checkpoint.settings, name)[0] is None
        and (name == "norm" or _in_doubt(covers, name))
    ]
    heads = covers[0].n_head or said.n_head or heads_told(checkpoint.settings, width_of(checkpoint, covers[0]))[0]
    return (*names, *(() if heads else ("n_head",)))


def own_values(covers: Sequence[Cover]) -> dict[str, Any]:
    """What the programs of all these dialects are known to do, where they agree."""
    values = {
        name: {a.value for c in covers for a in c.dialect.assumptions if a.field == name} for name in ASSUMED_FIELDS
    }
    return {name: next(iter(found)) for name, found in values.items() if len(found) == 1}


def _in_doubt(covers: Sequence[Cover], name: AssumedField) -> bool:
    assumptions = [a for c in covers for a in c.dialect.assumptions if a.field == name]
    sure = len({a.value for a in assumptions}) == 1 and not any(a.doubt for a in assumptions)
    return not sure and not _is_certain(covers, name)


def _is_certain(covers: Sequence[Cover], name: AssumedField) -> bool:
    return any(a.certain for c in covers for a in c.dialect.assumptions if a.field == name)


def _assume(covers: Sequence[Cover], name: AssumedField, found: Findings) -> None:
    """What the dialects' programs do; asked for where the dialects that fit disagree."""
    readings = {a.value: (c.dialect, a.doubt) for c in covers for a in c.dialect.assumptions if a.field == name}
    option = f"--{name.replace('_', '-')}"
    if not readings:
        found.asked[f"{option} {'|'.join(CHOICES[name])}"] = f"nothing says which {name} it has"
        return
    if len(readings) > 1:
        listed = " and ".join(f"{dialect.name} ({name} {value})" for value, (dialect, _) in readings.items())
        found.asked[f"{option} {'|'.join(str(value) for value in readings)}"] = (
            f"the names fit {listed}, and nothing says which"
        )
        return
    ((value, (_, doubt)),) = readings.items()
    found.values[name] = value
    if doubt:
        found.warnings.append(f"{name} is assumed to be {value} ({doubt}); {option} changes it")


def _understood(
    checkpoint: Checkpoint, name: AssumedField, setting: object, where: str, *, sizes: tuple[int, int]
) -> object:
    """A setting's value as a fact, in a model with these sizes of a head and of the whole.

    Raises UnknownLayout where it is none that can be carried over.
    """
    if name == "activation" and activation(setting):
        return activation(setting)
    if name == "attn_scale" and (scale := _scale(setting, *sizes)):
        return scale
    if name == "norm_eps" and (eps := number(setting)) is not None and 0 <= eps < 1:
        return eps
    if name == "norm" and isinstance(setting, bool):
        return "pre" if setting else "post"
    if name == "norm" and setting in CHOICES[name]:
        return setting
    known = CHOICES.get(name, ("a small positive number",))
    raise UnknownLayout(
        f"{checkpoint.path}: {where} is {quoted(setting)}, and {name} can only be {', '.join(known)}",
        hint=f"if the file is wrong about it, pass --{name.replace('_', '-')}",
    )


def _scale(setting: object, head_dim: int, n_embd: int) -> AttnScale | None:
    """By what scores are divided, by its name or by the number itself; TransformerLens writes -1 for the usual."""
    if setting in ATTN_SCALES:
        return setting
    value = number(setting)
    if value is None:
        return None
    if value == -1 or _near(value, head_dim):
        return "head"
    return "embd" if _near(value, n_embd) else None


def _near(value: float, size: int) -> bool:
    """Whether it is the root of a size, as what divides or what multiplies."""
    return any(math.isclose(value, size**power, rel_tol=1e-3) for power in (0.5, -0.5))


def _find_heads(checkpoint: Checkpoint, cover: Cover, said: Facts, found: Findings) -> None:
    """Number of heads: by the keys where there is one matrix per head, else from the option, else from the settings."""
    told, where = heads_told(checkpoint.settings, width_of(checkpoint, cover))
    if cover.n_head:
        for name, value in (("--n-head", said.n_head), (where, told)):
            if value not in (None, cover.n_head):
                raise BadTensors(
                    f"{checkpoint.path} has {cover.n_head} heads by its keys, but {name} says {value}",
                    hint=f"leave --n-head out or pass --n-head {cover.n_head}",
                )
        found.values["n_head"] = cover.n_head
    elif said.n_head is not None:
        if said.n_head < 1:
            raise UsageError(f"--n-head {said.n_head} is no number of heads", hint="12 is usual")
        found.values["n_head"] = said.n_head
        if told not in (None, said.n_head):
            found.warnings.append(f"{where} says {told} heads; --n-head {said.n_head} was taken")
    elif told is not None and told < 1:
        raise BadTensors(
            f"{checkpoint.path}: {where} says {told}, which is no number of heads",
            hint="pass the right number with --n-head",
        )
    elif told is not None:
        found.values["n_head"] = told
    elif where:
        setting, _ = look_up(checkpoint.settings, "n_head")
        found.asked["--n-head N"] = f"{where} is {quoted(setting)}, which is no number of heads"
    else:
        found.asked["--n-head N"] = "nothing says how many heads it has, and its tensors cannot tell"


def check_settings(
    checkpoint: Checkpoint, spec: GPTSpec, said: Facts, dialect: Dialect, *, has_head: bool
) -> list[str]:
    """Settings against tensors and options: a warning where these can be right, an error where something is missing or
    more is computed than can be carried over (BadTensors, UnknownLayout).
    """
    warnings = []
    kind = checkpoint.settings.get("config.json", {}).get("model_type")
    if said.dialect and kind is not None and kind not in dialect.model_types:
        warnings.append(f"config.json says model_type {quoted(kind)}; --dialect {said.dialect} was taken")
    for name in ("n_layer", "n_embd", "block_size", "vocab_size"):
        setting, where = look_up(checkpoint.settings, name)
        told, real = whole_number(setting), getattr(spec, name)
        if told in (None, real):
            continue
        if name in ("n_layer", "n_embd"):
            raise BadTensors(
                f"{checkpoint.path}: {where} says {told}, but the tensors have {name} {real}",
                hint="the file and its settings do not belong together, or a part is missing; get a whole one",
            )
        warnings.append(f"{where} says {told}, but the tensors have {name} {real}; the tensors were believed")
    odd = contradiction(checkpoint.settings, spec, dict(dialect.must_be))
    if odd:
        raise UnknownLayout(
            f"{checkpoint.path}: {odd.where} is {quoted(odd.value)}, and only {odd.only} can be carried over",
            hint=f"{odd.but}if the file is wrong about it, save it without that setting",
        )
    _check_config_json(checkpoint, has_head=has_head)
    if checkpoint.settings.get("config.json", {}).get("tie_word_embeddings") is True and not spec.tied:
        warnings.append("config.json says tie_word_embeddings true, but the head differs; the tensors were believed")
    return warnings


def dialects_of(checkpoint: Checkpoint, said: Facts) -> tuple[Dialect, ...]:
    """The one that the user names; else those that go with the model type of a Hugging Face configuration; else all.

    Raises UsageError for a name that is none, UnknownLayout for a type that no dialect goes with, and for settings that
    change what is computed.
    """
    config = cast(dict[str, Any], checkpoint.settings.get("config.json", {}))
    kind = config.get("model_type")
    if said.dialect is not None:
        fitting = tuple(d for d in DIALECTS if d.name == said.dialect)
        if not fitting:
            raise UsageError(
                f"--dialect {said.dialect} is not known; there are {', '.join(d.name for d in DIALECTS)}",
                hint="`modernize dialects` lists them",
            )
    elif kind is None:
        return DIALECTS
    else:
        fitting = tuple(d for d in DIALECTS if kind in d.model_types)
    said_of_it, hint = modern_folder(config)
    if not fitting and said_of_it:
        raise UnknownLayout(f"{checkpoint.path} {said_of_it}", hint=hint)
    if not fitting:
        known = ", ".join(kind for d in DIALECTS for kind in d.model_types)
        raise UnknownLayout(
            f"{checkpoint.path} is a {quoted(kind)} model by its config.json, and only {known} are known there",
            hint="`modernize dialects` lists what can be converted; if it is one of these, --dialect says so",
        )
    for name, value in (row for d in fitting for row in d.must_be):
        if config.get(name, value) != value:
            raise UnknownLayout(
                f"{checkpoint.path}: config.json says {name} {quoted(config[name])}, which cannot be carried over",
                hint=f"only models with {name} {value!r} can be converted",
            )
    return fitting


def _check_config_json(checkpoint: Checkpoint, *, has_head: bool) -> None:
    """A head that a Hugging Face configuration says must be there."""
    config = cast(dict[str, Any], checkpoint.settings.get("config.json", {}))
    if config.get("tie_word_embeddings") is False and not has_head:
        raise BadTensors(
            f"{checkpoint.path} has no head, but config.json says tie_word_embeddings false",
            hint="save the language model (GPT2LMHeadModel), not the base model",
        )
