"""Objects in torch files: configurations and whole modules give their fields, and nothing is ever called."""

import argparse
import collections
import copyreg
import dataclasses
import datetime
import decimal
import functools
import pathlib
import pickle
import types
import uuid

import pytest
import tiny
import torch
from torch import nn

from modernize.checkpoint import open_checkpoint
from modernize.errors import UnreadableFile, UnsafeFile
from modernize.facts import Facts
from modernize.recognise import recognise

SPEC = tiny.spec()
STATE = tiny.jittered(SPEC)
KEYS = tiny.as_dialect(STATE, SPEC, tiny.dialect("nanogpt"))
FORMS = pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])


def save(path, value, *, legacy=False, protocol=2):
    torch.save(value, path, _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
    return path


def same(state):
    return list(state) == list(STATE) and all(torch.equal(state[n], STATE[n]) for n in STATE)


class GPTConfig:
    n_layer = 2  # a class attribute is not in the file

    def __init__(self):
        self.n_head, self.dropout, self.activation = 4, 0.1, "gelu"


class Slotted:
    __slots__ = ("activation", "n_head")

    def __init__(self):
        self.n_head, self.activation = 4, "gelu"


@dataclasses.dataclass
class Fields:
    n_head: int = 4
    activation: str = "gelu"


class Attributes(dict):
    """As lightning's AttributeDict and EasyDict: the keys of a dict are the fields."""


class Old:
    def __reduce_ex__(self, protocol):
        return copyreg._reconstructor, (Old, object, None), {"n_head": 4, "activation": "gelu"}


class Node:
    """As omegaconf's AnyNode: a value, and the object around it."""

    def __init__(self, value, parent):
        self._val, self._parent = value, parent


class DictConfig:
    """As omegaconf's: its nodes refer back to it."""

    def __init__(self, **values):
        self._metadata, self._parent = Fields(), None
        self._content = {name: Node(value, self) for name, value in values.items()}


class ConfigDict:
    """As ml_collections'."""

    def __init__(self, **values):
        self._locked, self._fields = False, values


class BaseModel:
    """As pydantic's, whose state has the fields under their Python name."""

    def __init__(self, **values):
        self.__dict__ = values

    def __getstate__(self):
        return {"__dict__": self.__dict__, "__pydantic_fields_set__": set(), "__pydantic_extra__": None}


CONFIGS = {
    "class": GPTConfig(),
    "slots": Slotted(),
    "dataclass": Fields(),
    "namespace": argparse.Namespace(n_head=4, activation="gelu"),
    "simple namespace": types.SimpleNamespace(n_head=4, activation="gelu"),
    "dict": Attributes(n_head=4, activation="gelu"),
    "before protocol 2": Old(),
    "omegaconf": DictConfig(n_head=4, activation="gelu"),
    "ml_collections": ConfigDict(n_head=4, activation="gelu"),
    "pydantic": BaseModel(n_head=4, activation="gelu"),
}


@FORMS
@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_pickled_configuration_gives_its_fields(tmp_path, config, protocol, legacy):
    path = save(tmp_path / "m.pt", {"model": KEYS, "config": config}, legacy=legacy, protocol=protocol)
    checkpoint = open_checkpoint(path)
    assert {name: checkpoint.settings["config"][name] for name in ("n_head", "activation")} == {
        "n_head": 4, "activation": "gelu",
    }  # fmt: skip
    assert same(recognise(checkpoint).state())


def test_what_programs_keep_beside_weights_is_no_obstacle(tmp_path):
    beside = {
        "when": datetime.datetime(2024, 1, 2, tzinfo=datetime.UTC) if hasattr(datetime, "UTC") else 1,
        "took": datetime.timedelta(1), "id": uuid.UUID(int=5), "lr": decimal.Decimal("0.1"),
        "schedule": functools.partial(math_sqrt, 2), "where": pathlib.PurePosixPath("/a/b"), "kinds": {"a", "b"},
        "frozen": frozenset({1}), "counts": collections.Counter("ab"), "device": torch.device("cuda", 1),
        "size": torch.Size([2, 3]), "dtype": torch.bfloat16, "complex": 1j, "range": range(3), "raw": b"\x00\xff",
        "array": bytearray(b"ab"), "ordered": collections.OrderedDict(a=1), "big": 2**200, "none": None,
        "function": save, "class": GPTConfig, "deep": [[[[()]]]], "optimizer": torch.optim.SGD([torch.ones(2)], 0.1),
    }  # fmt: skip
    for protocol in (2, 4, 5):
        checkpoint = open_checkpoint(save(tmp_path / "m.pt", {"model": KEYS, **beside}, protocol=protocol))
        assert same(recognise(checkpoint, Facts(n_head=4, activation="gelu")).state())
        assert checkpoint.settings[""]["where"] == "/a/b"


def math_sqrt(x):
    return x


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.n_head = config.n_head
        self.register_buffer("bias", torch.tril(torch.ones(1, 1, 16, 16)))
        self.register_buffer("scratch", torch.ones(3), persistent=False)


class Block(nn.Module):
    def __init__(self, config, act):
        super().__init__()
        self.ln_1, self.ln_2, self.attn = nn.LayerNorm(32), nn.LayerNorm(32), Attention(config)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(32, 128), "c_proj": nn.Linear(128, 32), "act": act})


class GPT(nn.Module):
    def __init__(self, config, act=None):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(61, 32),
                "wpe": nn.Embedding(16, 32),
                "h": nn.ModuleList([Block(config, act or nn.GELU(approximate="tanh")) for _ in range(2)]),
                "ln_f": nn.LayerNorm(32, eps=1e-6),
            }
        )
        self.lm_head = nn.Linear(32, 61, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight


def judged(path, module):
    """The tensors that a file gives are those of the module's own state_dict()."""
    checkpoint, wanted = open_checkpoint(path), module.state_dict()
    assert list(checkpoint.raw_names.values()) == list(wanted)
    assert all(torch.equal(checkpoint.source.read(raw), wanted[raw]) for raw in checkpoint.raw_names.values())
    return checkpoint


@FORMS
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_whole_module_gives_its_weights_and_what_it_says_of_itself(tmp_path, legacy):
    torch.manual_seed(0)
    model = GPT(GPTConfig())
    checkpoint = judged(save(tmp_path / "m.pt", model, legacy=legacy), model)
    assert checkpoint.settings["config"]["n_head"] == 4
    assert checkpoint.settings[""] == {"activation": "gelu_tanh", "n_head": 4}
    judged(
        save(tmp_path / "m.pt", {"model": nn.DataParallel(model), "epoch": 3}, legacy=legacy), nn.DataParallel(model)
    )


def test_a_module_is_converted_without_being_asked_for_facts(tmp_path):
    torch.manual_seed(0)
    model = GPT(types.SimpleNamespace(n_head=4), act=nn.ReLU())
    found = recognise(open_checkpoint(save(tmp_path / "m.pt", model)))
    assert (found.spec.n_head, found.spec.activation, found.spec.tied) == (4, "relu", True)
    own = open_checkpoint(save(tmp_path / "s.pt", {"model": model.state_dict(), "config": {"n_head": 4}}))
    state = recognise(own, Facts(activation="relu")).state()
    assert all(torch.equal(tensor, state[name]) for name, tensor in found.state().items())


class Call:
    """Pickles as a call of a function."""

    def __init__(self, function, *args):
        self.what = function, args

    def __reduce__(self):
        return self.what


CALLS = {
    "builtins.open": (open, "canary", "w"),
    "builtins.getattr": (getattr, "a", "upper"),
    "builtins.exec": (exec, "open('canary', 'w')"),
    "pickle.loads": (pickle.loads, b"N."),
    "torch.load": (torch.load, "x.pt"),
    "torch.hub.load": (torch.hub.load, "a"),
    "math_sqrt": (math_sqrt, 4),
}


@FORMS
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_refused_by_name(tmp_path, monkeypatch, name, legacy):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "m.pt", {"model": KEYS, "x": Call(*CALLS[name])}, legacy=legacy)
    with pytest.raises(UnsafeFile, match=name.rpartition(".")[2]) as caught:
        open_checkpoint(tmp_path / "m.pt")
    assert "state_dict()" in caught.value.hint
    assert "weights_only" not in caught.value.sentence + caught.value.hint
    assert not (tmp_path / "canary").exists()


def test_functions_of_the_standard_library_are_refused_as_soon_as_they_are_named(tmp_path):
    save(tmp_path / "m.pt", {"model": KEYS, "x": pathlib.os.system})
    with pytest.raises(UnsafeFile, match=r"names posix\.system|names nt\.system"):
        open_checkpoint(tmp_path / "m.pt")


class Weight(torch.Tensor):
    pass


def test_a_weight_of_a_class_of_its_own_is_named(tmp_path):
    save(tmp_path / "m.pt", {**KEYS, "transformer.wpe.weight": KEYS["transformer.wpe.weight"].as_subclass(Weight)})
    with pytest.raises(UnreadableFile, match=r"transformer\.wpe\.weight is an object of the class .*Weight"):
        open_checkpoint(tmp_path / "m.pt")


def test_attributes_of_a_tensor_are_let_go(tmp_path):
    keys = {name: nn.Parameter(tensor) for name, tensor in KEYS.items()}
    for tensor in keys.values():
        tensor.numel, tensor.shape_of = 5, "x"
    save(tmp_path / "m.pt", {"model": keys})
    assert same(recognise(open_checkpoint(tmp_path / "m.pt"), Facts(n_head=4, activation="gelu")).state())
