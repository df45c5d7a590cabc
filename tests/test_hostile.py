"""Hostile pickles, made by hand: each is refused with a short sentence, soon, or gives what an honest reader sees."""

import collections
import enum
import io
import json
import pickle
import struct
import sys
import time

import numpy as np
import pytest
import tiny
import torch
from hostile import (
    BIG,
    FACTS,
    KEYS,
    LONG,
    OBJECT,
    PLACEHOLDER,
    PRIME,
    SECONDS,
    SENTENCE,
    SPEC,
    array,
    call,
    fields,
    file_with,
    get,
    hf_folder,
    integer,
    members,
    module,
    named,
    nested,
    numbers,
    put,
    read,
    refused,
    storage,
    tensor,
    text,
    write_zip,
)
from safetensors.torch import save_file
from torch import nn

from modernize.checkpoint import limits, open_checkpoint
from modernize.errors import AmbiguousInput, BadData, InputRefused, UnknownLayout, UnreadableFile, UnsafeFile
from modernize.recognise import recognise
from modernize.tokenizer import VocabularyTokenizer, find_tokenizer

# ------------------------------------------------------------------------------------------ bombs

BOMBS = {
    "more than 4,096 characters": {
        "paths of paths": text("x" * 2000)
        + put(1)
        + (b"0" + named("pathlib", "Path") + b"(" + get(1) * 2 + b"tR" + put(1)) * 40,
        "a long path": LONG + b"0(" + (named("pathlib", "Path") + b"(" + get(1) * 1000 + b"tR") * 9 + b"t",
    },
    "more than could ever be shown": {
        "pairs of pairs": b"N" + put(1) + (b"0" + get(1) * 2 + b"\x86" + put(1)) * 60,
        "lists of lists": b"N" + put(1) + (b"0](" + get(1) * 2 + b"e" + put(1)) * 60,
        "sets in tuples": b"(N\x91" + put(1) + (b"0" + get(1) * 2 + b"\x86" + put(1)) * 60,
        "arguments": b"N"
        + put(1)
        + (b"0" + get(1) * 2 + b"\x86" + put(1)) * 60
        + b"0"
        + named("a", "B")
        + get(1)
        + b"\x81",
        "fields": b"N"
        + put(1)
        + (b"0" + get(1) * 2 + b"\x86" + put(1)) * 60
        + b"0"
        + OBJECT
        + b"}"
        + text("a")
        + get(1)
        + b"sb",
    },
    "never be looked through": {
        "objects many times in objects": BIG
        + b"0"
        + OBJECT
        + fields({f"{n}": b"N" for n in range(1500)})
        + b"b"
        + put(2)
        + b"0"
        + OBJECT
        + fields({f"{n}": get(2) for n in range(1500)})
        + b"b",
        "dictionaries many times": fields({f"{n}": b"N" for n in range(1500)})
        + put(2)
        + b"0"
        + fields({f"{n}": get(2) for n in range(1500)}),
    },
    "copied over and over": {
        "dictionaries of one dictionary": BIG
        + b"0("
        + (named("collections", "OrderedDict") + get(1) + b"\x85R") * 2000
        + b"t",
        "objects of one state": BIG + b"0(" + (OBJECT + get(1) + b"b") * 2000 + b"t",
        "objects of one set of keywords": BIG + b"0(" + (named("a", "B") + b")" + get(1) + b"\x92") * 2000 + b"t",
        "bytes of one text": LONG
        + b"0("
        + (named("_codecs", "encode") + b"(" + get(1) + text("latin1") + b"tR") * 3000
        + b"t",
        "lists of one list": b"("
        + b"N" * 100_000
        + b"l"
        + put(1)
        + b"0("
        + (named("collections", "deque") + get(1) + b"\x85R") * 2000
        + b"t",
        "arrays of the same bytes": b"B"
        + struct.pack("<I", 1_000_000)
        + bytes(1_000_000)
        + put(1)
        + b"0("
        + array(">") * 2000
        + b"t",
    },
    "in one dictionary twice": {
        "a key": b"}(" + text("a") + b"N" + text("a") + b"Nu",
        "a key and then the same": b"}" + text("a") + b"Ns" + text("a") + b"Ns",
        "a number and the same as another": b"}(K\x01N\x88Nu",
        "a key of an object": OBJECT + b"(" + text("a") + b"N" + text("a") + b"Nu",
        "a key of pairs": call("collections", "OrderedDict", b"](" + (text("a") + b"N\x86") * 2 + b"e"),
        "a key of a marked one": b"(" + (text("a") + b"N") * 2 + b"d",
    },
    "numbers as keys": {
        "numbers": b"(" + b"".join(integer(n * PRIME) + b"N" for n in range(60_000)) + b"d",
        "numbers far apart": b"(" + b"".join(integer(n * 2**20) + b"N" for n in range(60_000)) + b"d",
        "numbers in a set": b"\x8f(" + b"".join(integer(n * 2**20) for n in range(60_000)) + b"\x90",
        "numbers in a frozen set": b"(" + b"".join(integer(n * PRIME) for n in range(60_000)) + b"\x91",
    },
    "is made of a list": {
        "numbers in a set that is called": named("builtins", "set")
        + b"("
        + b"".join(integer(n * PRIME) for n in range(60_000))
        + b"l\x85R",
        "numbers of pairs": named("collections", "OrderedDict")
        + b"("
        + b"".join(integer(n * PRIME) + b"N\x86" for n in range(60_000))
        + b"l\x85R",
    },
    "not the next one": {
        "what is remembered": b"N" + b"".join(f"p{n * PRIME}\n".encode() for n in range(60_000)),
        "what is remembered far apart": b"N" + b"".join(put(n * 1024) for n in range(60_000)),
    },
    "a tensor begins at": {
        "tensors as keys": storage()
        + put(1)
        + b"0("
        + b"".join(
            call(
                "torch._utils",
                "_rebuild_tensor_v2",
                get(1),
                integer(n * PRIME),
                b"K\x00\x85",
                b"K\x01\x85",
                b"\x89",
                b"}",
            )
            + b"N"
            for n in range(20_000)
        )
        + b"d",
    },
    "deeper than 100": {
        "a deep list": nested(100_000, b"]", b"a"),
        "a deep tuple": nested(101, b"", b"\x85"),
        "a deep dictionary": nested(200, b"}" + text("a"), b"s"),
        "a deep state": OBJECT + nested(200, b"}" + text("a"), b"s") + b"b",
    },
    "is used as a key": {"a deep key": b"}" + nested(200, b"", b"\x85") + b"Ns", "a list as a key": b"}]Ns"},
    "holds itself": {
        "a list": b"]" + put(1) + get(1) + b"a",
        "a tuple": b"]" + put(1) + get(1) + b"\x85a",
        "a dictionary": b"}" + put(1) + text("a") + get(1) + b"s",
    },
    "whole number of": {
        "a long number": b"\x8b\x01\x04\0\0" + b"\xff" * 1025,
        "a longer number": b"\x8b\xff\xff\xff\x7f" + b"\xff" * 255,
        "a number that has no bytes": b"\x8b\xff\xff\xff\xff" + b"\xff" * 255,
    },
    "has no end": {"a line of digits": b"L" + b"9" * 100_000 + b"L\n", "a line": b"V" + b"x" * 100_000 + b"\n"},
    "more than 512": {"the name of a class": text("x" * 100_000) + text("y") + b"\x93"},
    "instructions": {"many instructions": b"N0" * 600_000 + b"N"},
    "ends too early": {
        "a text that is not there": b"\x8d" + struct.pack("<Q", 2**62) + b"x",
        "bytes that are not there": b"\x8e" + struct.pack("<Q", 2**40) + b"x",
        "a frame that is not there": b"\x95" + struct.pack("<Q", 2**40) + b"N",
    },
    "bytes are made of": {"bytes from a number": named("builtins", "bytearray") + integer(3 * 10**9) + b"\x85R"},
    "of more than 50,000": {
        "one module in many": module()
        + put(1)
        + (b"0" + module(modules=fields({f"{n}": get(1) for n in range(40)})) + put(1)) * 5,
        "one dictionary of many modules": fields({f"{n}": b"N" for n in range(4000)})
        + put(1)
        + b"0"
        + fields({f"{n}": module(parameters=get(1)) for n in range(100)})
        + put(2)
        + b"0"
        + module(modules=get(2)),
    },
    "a part of itself": {
        "a module": OBJECT
        + put(1)
        + fields({"_parameters": b"}", "_modules": fields({"a": get(1)}), "_buffers": b"}"})
        + b"b",
    },
    "more than 512 characters": {"a long name of a module": module(modules=fields({"x" * 10_000: module()}))},
    "has the name 5": {"a number for the name of a module": module(modules=b"}K\x05" + module() + b"s")},
}


@pytest.mark.parametrize(("said", "name"), [(said, name) for said, bombs in BOMBS.items() for name in bombs])
def test_a_bomb_is_refused_before_it_takes_time_or_memory(tmp_path, said, name):
    refused(file_with(tmp_path / "m.pt", BOMBS[said][name]), said)


def test_an_array_in_many_places_is_one(tmp_path):
    one = b"B" + struct.pack("<I", 1_000_000) + bytes(1_000_000) + put(1) + b"0" + array("<") + put(2)
    everywhere = one + b"0}(" + b"".join(text(f"{n}") + get(2) for n in range(20_000)) + b"u"
    read(file_with(tmp_path / "m.pt", everywhere))


HARMLESS = {
    "a module around nothing": module(modules=b"}" + text("module") + b"K\x05s"),
    "a module around what is none": module(
        modules=b"}"
        + text("module")
        + OBJECT
        + put(1)
        + b"}("
        + text("_modules")
        + b"}"
        + text("module")
        + get(1)
        + b"subs"
    ),
    "a module with a list of buffers": module(_non_persistent_buffers_set=b"](N" + text("a") + b"e"),
    "objects that refer to one another": OBJECT
    + put(1)
    + OBJECT
    + put(2)
    + b"}"
    + text("parent")
    + get(1)
    + b"sb"
    + b"0}"
    + text("child")
    + get(2)
    + b"sb",
    "an object that is its own state": OBJECT + put(1) + get(1) + b"b",
    "objects in a long chain": b"N" + put(1) + (b"0" + OBJECT + b"}" + text("a") + get(1) + b"sb" + put(1)) * 20_000,
    "tuples as keys": b"}(" + b"K\x01K\x02\x86N" + b"K\x02K\x03\x86N" + b"u",
    "tokens by number": b"(" + b"".join(integer(n) + text(f"{n}") for n in range(60_000)) + b"d",
    "texts of Python 2": b"U\x02ab" + b"0T\x02\0\0\0ab",
    "a dictionary of attributes": named("collections", "OrderedDict")
    + b")R}("
    + text("items")
    + b"K\x05"
    + text("keys")
    + b"K\x06ub",
    "a function of torch's that is only named": named("torch.hub", "load"),
    "an object of a function": named("torch.hub", "load") + text("x") + b"\x85\x81",
    "a tensor of an unknown function": call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        named("torch.hub", "load"),
        named("torch", "Tensor"),
        text("x") + b"\x85",
        b"}",
    ),
    "a tensor of an unknown class": call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        named("torch._utils", "_rebuild_tensor_v2"),
        named("a", "B"),
        b")",
        b"}",
    ),
    "an empty tensor": tensor(size=(0, 4)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_nothing_is_let_go(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    read(file_with(tmp_path / "m.pt", HARMLESS[name]))
    assert [path.name for path in tmp_path.iterdir()] == ["m.pt"]


# ------------------------------------------------------------------------------------------ code

SHELL = text("touch canary")
GADGETS = {
    "REDUCE": call("posix", "system", SHELL),
    "REDUCE of another name": call("os", "system", SHELL),
    "STACK_GLOBAL": text("posix") + text("system") + b"\x93" + SHELL + b"\x85R",
    "INST": b"(" + SHELL + b"iposix\nsystem\n",
    "OBJ": b"(" + named("posix", "system") + SHELL + b"o",
    "OBJ of torch": b"(" + named("torch.hub", "load") + SHELL + b"o",
    "NEWOBJ": named("subprocess", "Popen") + SHELL + b"\x85\x81",
    "NEWOBJ_EX": named("subprocess", "Popen") + b")}" + text("args") + SHELL + b"s\x92",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "BUILD": named("subprocess", "Popen") + b")\x81}" + text("args") + SHELL + b"sb",
    "a dotted name": call("torch.serialization", "os.system", SHELL),
    "a dotted name that may be called": call("collections", "OrderedDict.fromkeys", SHELL),
    "Python 2's eval": call("__builtin__", "eval", text("open('canary', 'w')")),
    "Python 2's commands": call("commands", "getoutput", SHELL),
    "a method": call("builtins", "getattr", named("builtins", "dict"), text("update")),
    "operator": call("operator", "attrgetter", text("a")),
    "marshal": call("marshal", "loads", b"C\x01N"),
    "a function of code": call("types", "FunctionType", b"N", b"}"),
    "a pickle in a pickle": call("torch.storage", "_load_from_bytes", b"C\x02N."),
    "numpy's loader": call("numpy", "load", text("canary")),
    "joblib": call("joblib", "load", text("canary")),
    "partial": call("functools", "partial", named("posix", "system"), SHELL),
    "_reconstructor": call(
        "copyreg", "_reconstructor", named("subprocess", "Popen"), named("builtins", "object"), b"N"
    ),
    "_rebuild_from_type_v2": call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        named("posix", "system"),
        named("torch", "Tensor"),
        SHELL + b"\x85",
        b"}",
    ),
    "a call in a reference": b"("
    + text("storage")
    + named("torch", "FloatStorage")
    + call("posix", "system", SHELL)
    + text("cpu")
    + b"K\x01tQ",
    "a call as a key": b"}" + call("posix", "system", SHELL) + b"Ns",
    "a hook": call("torch.nn.modules.module", "register_module_forward_hook", named("torch.hub", "load")),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", GADGETS)
def test_no_instruction_calls_anything(tmp_path, monkeypatch, name, legacy):
    monkeypatch.chdir(tmp_path)
    refused(file_with(tmp_path / "m.pt", GADGETS[name], legacy=legacy), error=UnsafeFile)
    assert not (tmp_path / "canary").exists()


@pytest.mark.parametrize("place", range(5))
def test_no_pickle_of_a_legacy_file_calls_anything(tmp_path, monkeypatch, place):
    monkeypatch.chdir(tmp_path)
    path = file_with(tmp_path / "m.pt", b"N", legacy=True)
    stream, parts = io.BytesIO(path.read_bytes()), []
    for _ in range(3):
        start = stream.tell()
        pickle.load(stream)
        parts.append(stream.getvalue()[start : stream.tell()])
    parts += [stream.read()]
    parts[min(place, 3) : min(place, 3) + (place < 3)] = [
        b"\x80\x02" + call("collections", "OrderedDict") + b"0" + GADGETS["REDUCE"] + b"."
    ]
    path.write_bytes(b"".join(parts))
    refused(path, error=(UnsafeFile, UnreadableFile))
    assert not (tmp_path / "canary").exists()


# ------------------------------------------------------------------------------------------ tensors

TENSORS = {
    "a call of what was made": call("functools", "partial", named("torch.hub", "load")) + text("x") + b"\x85R",
    "a size that is true": tensor(size=numbers([b"\x88", 4])),
    "a size of floating point": tensor(size=numbers([b"G" + struct.pack(">d", 3.0), 4])),
    "a size of text": tensor(size=text("34")),
    "a size that is an object": tensor(size=OBJECT),
    "a negative size": tensor(size=(-3, 4)),
    "a size below nothing that is whole": tensor(size=(-3, -4)),
    "a size beyond any": tensor(size=(2**200,), stride=(1,)),
    "too many axes": tensor(size=(1,) * 17, stride=(1,) * 17),
    "fewer strides": tensor(stride=(4,)),
    "a negative stride": tensor(stride=(-4, 1)),
    "a stride that is true": tensor(stride=numbers([4, b"\x88"])),
    "a stride beyond the end": tensor(stride=(5, 1)),
    "a negative offset": tensor(offset=-1),
    "an offset beyond the end": tensor(offset=1),
    "an offset that is false": tensor(offset=b"\x89"),
    "an offset of text": tensor(offset=text("0")),
    "a storage that is none": tensor(held=b"N"),
    "a storage that is a tensor": tensor(held=tensor()),
    "a storage of numbers of another length": storage(numel=11),
    "a storage of another dtype": storage("IntStorage"),
    "a storage of no dtype": storage("Storage"),
    "a storage that is a tensor class": storage("Tensor"),
    "a storage with a number for its key": storage(key=b"K\x00"),
    "a storage with a path for its key": storage(key=text("../data/0")),
    "a storage that is not there": storage(key=text("99")),
    "a storage with a negative length": storage(numel=-1),
    "a storage with a huge length": storage(numel=2**60),
    "a storage with a length of text": storage(numel=text("12")),
    "a reference that is none": b"NQ",
    "a reference to something else": b"(" + text("module") + b"NNNNtQ",
    "a tensor without a stride": call("torch._utils", "_rebuild_tensor_v2", storage(), b"K\x00", numbers([3])),
    "a parameter of nothing": call("torch._utils", "_rebuild_parameter"),
    "a parameter of a text": call("torch._utils", "_rebuild_parameter", text("x")),
    "an item of a tensor": tensor() + b"K\x00K\x05s",
    "items for a tensor": tensor() + b"(K\x00e",
    "an item of a text": text("x") + b"K\x00a",
    "a call with a list": named("collections", "OrderedDict") + b"]R",
    "a state for a number": b"K\x05}b",
    "a mark in the place of a value": b"(" + text("x") + b"0R",
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_that_cannot_be_is_refused(tmp_path, name, legacy):
    path = file_with(tmp_path / "m.pt", b"N", legacy=legacy)
    ops = TENSORS[name]
    if legacy:  # keys of storages are others, and references have one part more
        first = path.read_bytes().partition(b"FloatStorage\n")[2]
        key = first[first.index(b"X") : first.index(b"X") + 5 + first[first.index(b"X") + 1]]
        ops = ops.replace(text("0"), key).replace(b"tQ", b"NtQ")
    refused(file_with(path, ops, legacy=legacy), error=(UnreadableFile, UnsafeFile))


OBJECTS = {
    "an object": OBJECT,
    "a class": named("torch", "Tensor"),
    "a text": text("x"),
    "nothing": b"N",
    "a storage": storage(),
    "a list of tensors": b"](" + tensor() + b"e",
    "a module": module(),
    "a tensor without data": call("torch._utils", "_rebuild_meta_tensor_no_storage"),
    "a tensor of another class": call(
        "torch._tensor",
        "_rebuild_from_type_v2",
        named("torch._utils", "_rebuild_tensor_v2"),
        named("a", "B"),
        b")",
        b"}",
    ),
    "a sparse tensor": call("torch._utils", "_rebuild_sparse_tensor", b"N"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_in_the_place_of_a_weight_is_refused(tmp_path, name):
    model = {**KEYS, "transformer.wpe.weight": PLACEHOLDER}
    torch.save({"model": model}, tmp_path / "n.pt")
    parts = [(n, d.replace(text(PLACEHOLDER), OBJECTS[name])) for n, d in members(tmp_path / "n.pt").items()]
    assert "wpe" in refused(write_zip(tmp_path / "m.pt", parts))


@pytest.mark.parametrize(
    "key", [b"K\x05", b"N", b"\x88", b"C\x01a", OBJECT, named("a", "B"), b"K\x01\x85", tensor(), text("\ud800")]
)
def test_an_object_in_the_place_of_a_name_is_refused(tmp_path, key):
    torch.save({"model": {**KEYS, PLACEHOLDER: torch.ones(2)}}, tmp_path / "n.pt")
    parts = [(n, d.replace(text(PLACEHOLDER), key)) for n, d in members(tmp_path / "n.pt").items()]
    refused(write_zip(tmp_path / "m.pt", parts))


@pytest.mark.parametrize("dtype", [torch.uint16, torch.complex64, torch.float8_e4m3fn, torch.bool, torch.int8])
def test_weights_of_an_odd_dtype_are_refused_in_whatever_files_they_lie(tmp_path, dtype):
    odd = {name: torch.zeros(t.shape, dtype=torch.uint8).to(torch.float32).to(dtype) for name, t in KEYS.items()}
    torch.save(odd, tmp_path / "m.pt")
    refused(tmp_path / "m.pt")
    for name in ("transformer.wte.weight", "lm_head.weight", "transformer.ln_f.weight"):
        torch.save({**KEYS, name: odd[name]}, tmp_path / "m.pt")
        refused(tmp_path / "m.pt", name.replace(".", r"\."))
    folder = tmp_path / "hf"
    folder.mkdir()
    keys = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("gpt2"))
    keys["transformer.wte.weight"] = keys["lm_head.weight"] = odd["transformer.wte.weight"]
    keys = {name: tensor.clone() for name, tensor in keys.items()}
    parts = {
        "a": {n: t for n, t in keys.items() if n != "lm_head.weight"},
        "b": {"lm_head.weight": keys["lm_head.weight"]},
    }
    for name, part in parts.items():
        save_file(part, folder / name)
    where = {name: file for file, part in parts.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_head": 2}')
    refused(folder, r"wte\.weight")


@pytest.mark.parametrize(
    "weight",
    [
        torch.ones(1).expand(2, 4),
        torch.ones(4).expand(2, 4),
        torch.ones(5).as_strided((2, 4), (1, 1)),
        torch.ones(1).expand(2**20, 2**20),
    ],
    ids=["one number", "one row", "rows that overlap", "four terabytes"],
)
def test_numbers_that_stand_for_several_elements_are_refused(tmp_path, weight):
    torch.save({**KEYS, "transformer.wpe.weight": weight}, tmp_path / "m.pt")
    with pytest.raises(UnreadableFile, match=r"wpe\.weight is an expanded tensor"):
        read(tmp_path / "m.pt")


def test_an_expanded_mask_that_is_dropped_is_no_obstacle(tmp_path):
    mask = torch.ones(2, 2).tril()[None, None]
    torch.save({**KEYS, "transformer.h.0.attn.bias": mask.expand(1, 1, 2, 2)}, tmp_path / "m.pt")
    read(tmp_path / "m.pt")
    torch.save({**KEYS, "transformer.h.0.attn.bias": torch.zeros(1).expand(1, 1, 2, 2)}, tmp_path / "m.pt")
    with pytest.raises(UnknownLayout, match="no causal mask"):
        read(tmp_path / "m.pt")


def test_numbers_that_stand_for_their_negatives_are_not_taken_as_they_are(tmp_path):
    turned = torch.randn(2, 4, dtype=torch.complex64).conj().imag
    assert turned.is_neg()
    torch.save({**KEYS, "transformer.wpe.weight": turned}, tmp_path / "m.pt")
    refused(tmp_path / "m.pt", r"wpe\.weight is a tensor whose numbers are to be conjugated or negated")


# ------------------------------------------------------------------------------------------ settings

DEEP: object = 1
for _ in range(90):
    DEEP = [DEEP]
VALUES = {
    "a deep list": DEEP,
    "a long list": [1] * 5000,
    "a long text": "x" * 1_000_000,
    "long texts": ["x" * 100_000] * 2000,
    "a huge number": 10**150,
    "a negative number": -(10**150),
    "floating point beyond all": float("inf"),
    "no number": float("nan"),
    "true": True,
    "a dictionary": {"a": {"b": [1] * 1000}},
    "an empty list": [],
    "a complex number": 1j,
    "a set": set(range(1000)),
    "an array": np.arange(1000.0),
    "a tensor": torch.ones(3),
    "raw bytes": b"x" * 100_000,
    "a class": nn.GELU,
    "an object": nn.GELU(),
    "half a character": "\ud800",
    "a command for the terminal": "\x1b[2J\x1b]0;x\x07",
    "digits": "9" * 100_000,
}
NAMES = (
    "n_layer", "n_head", "n_embd", "block_size", "vocab_size", "head_dim", "activation", "layer_norm_epsilon",
    "attn_scale", "norm_first", "post_norm", "use_rope", "position_encoding", "causal", "sliding_window", "attn_types",
    "n_kv_head", "norm_type", "residual_scale", "logit_softcap",
    "model_type", "tie_word_embeddings", "scale_attn_weights",
)  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_a_setting_of_any_value_leads_to_a_short_sentence_or_to_nothing(tmp_path, value):
    for name in NAMES:
        group = "config.json" if name in ("model_type", "tie_word_embeddings", "scale_attn_weights") else "config"
        torch.save({"model": KEYS, group: {"n_head": 2, "activation": "gelu", name: VALUES[value]}}, tmp_path / "m.pt")
        begun = time.process_time()
        try:
            found = recognise(open_checkpoint(tmp_path / "m.pt"))
            said = " ".join(found.warnings)
        except InputRefused as error:
            said = error.sentence + error.hint
        assert time.process_time() - begun < SECONDS
        assert len(said) < SENTENCE, name
        assert "\x1b" not in said


def test_settings_in_one_another_without_end_are_looked_through_so_far(tmp_path):
    words = "config args hparams cfg settings meta opt arch conf kwargs metadata init_args model_cfg gptconf gpt_config"
    endless = OBJECT + put(1) + fields({word: get(1) for word in words.split()}) + b"b"
    torch.save({"model": KEYS, "config": PLACEHOLDER}, tmp_path / "n.pt")
    parts = [(n, d.replace(text(PLACEHOLDER), endless)) for n, d in members(tmp_path / "n.pt").items()]
    assert len(read(write_zip(tmp_path / "m.pt", parts)).settings) <= limits.GROUPS


@pytest.mark.parametrize("depth", [120, 900, 100_000])
def test_json_in_settings_is_as_deep_as_can_be_shown(tmp_path, depth):
    deep = '{"activation": ' + "[" * depth + "]" * depth + "}"
    torch.save({"model": KEYS, "config": deep}, tmp_path / "m.pt")
    assert "config" not in read(tmp_path / "m.pt").settings
    folder = hf_folder(tmp_path / "hf")
    (folder / "config.json").write_text(deep)
    refused(folder, "deeper than 100|cannot be read")
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors", metadata={"config": deep})
    read(tmp_path / "m.safetensors")


def test_a_vocabulary_that_no_model_has_is_none(tmp_path):
    for stoi in (
        {"chars": "x" * 3_000_000},
        {"itos": ["x"] * 1_100_000},
        {"stoi": {"a": True}},
        {"stoi": {"x" * 600: 0}},
        {"itos": {True: "a"}},
    ):
        save_file(
            {n: t.clone() for n, t in KEYS.items()},
            tmp_path / "m",
            metadata={k: json.dumps(v) for k, v in stoi.items()},
        )
        assert read(tmp_path / "m").vocabulary == {}


def test_what_lies_beside_the_weights_is_named_shortly(tmp_path):
    beside = {("x" * 10_000) + str(n): torch.ones(2) for n in range(500)}
    torch.save({"model": KEYS, **beside}, tmp_path / "m.pt")
    (said,) = open_checkpoint(tmp_path / "m.pt").warnings
    assert "and 488 more" in said
    assert len(said) < SENTENCE
    torch.save({"x" * 100_000 + str(n): {"a.b": torch.ones(2)} for n in range(50)}, tmp_path / "m.pt")
    refused(tmp_path / "m.pt", "and 38 more", error=AmbiguousInput)
    torch.save({"x" * 100_000: 1, b"x" * 100_000: 2, 5: 3}, tmp_path / "m.pt")
    refused(tmp_path / "m.pt", "has no weights")
    torch.save({"model": {"x" * 100_000: [torch.ones(2)]}}, tmp_path / "m.pt")
    refused(tmp_path / "m.pt", "without their names")


@pytest.mark.parametrize("place", [5, "my.model", None, ("a", 1), b"a"])
def test_averaged_weights_under_any_key_are_found(tmp_path, place):
    torch.save({place: {f"ema.{name}": tensor for name, tensor in KEYS.items()}}, tmp_path / "m.pt")
    found = recognise(open_checkpoint(tmp_path / "m.pt", weights="ema"), FACTS)
    assert torch.equal(found.state()["wte.weight"], KEYS["transformer.wte.weight"])


# ------------------------------------------------------------------------------------------ meta.pkl


META = {
    "code": GADGETS["REDUCE"],
    "an object": OBJECT,
    "a place that is far away": b"N" + put(2**31),
    "many pairs of pairs": b"N" + put(1) + (b"0" + get(1) * 2 + b"\x86" + put(1)) * 60,
    "a deep list": nested(100_000, b"]", b"a"),
    "a list": b"]",
    "a text that is not there": b"X\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("name", META)
def test_a_vocabulary_beside_the_weights_is_read_as_carefully(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meta.pkl").write_bytes(b"\x80\x02" + META[name] + b".")
    with pytest.raises(BadData) as caught:
        find_tokenizer(None, vocabulary={}, beside=tmp_path / "m.pt", vocab_size=3)
    assert len(caught.value.sentence) < 1000
    assert not (tmp_path / "canary").exists()


def test_a_token_of_a_million_characters_makes_no_text_slow():
    tokenizer = VocabularyTokenizer({"a": 0, "": 1, "x" * 1_000_000: 2, "ab": 3}, "it")
    begun = time.process_time()
    assert list(tokenizer.encode("aab" * 20_000)) == [0, 3] * 20_000
    assert time.process_time() - begun < SECONDS


@pytest.mark.parametrize("protocol", range(6))
def test_a_vocabulary_of_any_protocol_is_read(tmp_path, protocol):
    meta = {"vocab_size": 3, "stoi": {"a": 0, "é": 1, "\n": 2}, "itos": {0: "a", 1: "é", 2: "\n"}}
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(meta, protocol))
    found = find_tokenizer(None, vocabulary={}, beside=tmp_path / "m.pt", vocab_size=3)
    assert list(found.encode("é\na")) == [1, 2, 0]


# ------------------------------------------------------------------------------------------ honest files


class Node:
    """A configuration whose parts know where they hang, as OmegaConf's do."""

    def __init__(self, parent=None):
        self.parent, self.children, self.own = parent, {}, self
        self.n_head = 2


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.ModuleList([nn.LayerNorm(4)])
        self.register_buffer("mask", torch.tril(torch.ones(3, 3)).bool())
        self.register_parameter("none", None)


NODE = Node()
NODE.children = {"a": Node(NODE), "b": Node(NODE)}
BASE = torch.arange(24.0).reshape(4, 6)
HONEST = {
    "views": {"t": BASE.t(), "a.part": BASE[1:3, 2:5], "row": BASE[2], "step": BASE[::2, ::3], "one": BASE[1, 1]},
    "shared": {"a.w": BASE, "b.w": BASE, "c.w": BASE[:2]},
    "empty": {"a.x": torch.tensor(1.5), "a.empty": torch.empty(0), "a.b": torch.empty(0, 4), "a.c": torch.empty(3, 0)},
    "parameters": {"a.w": nn.Parameter(BASE), "a.b": nn.Buffer(BASE[0])},
    "a module": Parts(),
    "parallel": nn.DataParallel(Parts()),
    "ordered": collections.OrderedDict(a=BASE, b=BASE[0]),
    **{
        str(dtype): {"a.w": BASE.to(dtype), "a.t": BASE.to(dtype).t()}
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int8, torch.uint8, torch.int16,
                      torch.int32, torch.int64, torch.complex64, torch.complex128)
    },
}  # fmt: skip
BESIDE = {
    "config": NODE,
    "merges": {(n, n + 1): n for n in range(300)},
    "ids": {n * 64 + 2**46: n for n in range(300)},
    "numpy": [
        np.float64(1),
        np.arange(6).reshape(2, 3),
        np.array(["a"]),
        np.array([{}], dtype=object),
        np.zeros((0, 3)),
    ],
    "random": [np.random.default_rng(0), np.random.get_state(), torch.get_rng_state()],
    "odd": [..., NotImplemented, torch.strided, slice(1), range(2), torch.float32, torch.Size([2])],
    "optimizer": torch.optim.AdamW(Parts().parameters()).state_dict(),
    "callbacks": {"ModelCheckpoint{'monitor': None}": {"best": torch.tensor(1.0)}},
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_file_gives_what_torch_gives(tmp_path, name, legacy):
    for protocol in (2, 3, 4, 5):
        whole = {"model": HONEST[name], **BESIDE}
        torch.save(whole, tmp_path / "m.pt", _use_new_zipfile_serialization=not legacy, pickle_protocol=protocol)
        theirs = torch.load(tmp_path / "m.pt", weights_only=False)["model"]
        theirs = theirs.state_dict() if isinstance(theirs, nn.Module) else theirs
        checkpoint = open_checkpoint(tmp_path / "m.pt")
        assert list(checkpoint.raw_names.values()) == list(theirs)
        for raw in theirs:
            own = checkpoint.source.read(raw)
            assert (own.dtype, own.shape) == (theirs[raw].dtype, theirs[raw].shape)
            assert torch.equal(own, theirs[raw])
        assert len(checkpoint.sha256()) == 64


@pytest.mark.parametrize(
    "value", [nn.functional.gelu, nn.GELU, torch.nn.GELU(), enum.Enum("Color", "RED", module=__name__).RED]
)
def test_what_stands_beside_the_weights_is_let_go_or_named(tmp_path, monkeypatch, value):
    monkeypatch.setattr(sys.modules[__name__], "Color", type(value), raising=False)
    torch.save({"model": KEYS, "x": value}, tmp_path / "m.pt")
    if isinstance(value, enum.Enum):
        assert "asks to call" in refused(tmp_path / "m.pt", r"Color, and", error=UnsafeFile)
    else:
        read(tmp_path / "m.pt")


def test_pairs_of_tokens_as_keys_are_no_obstacle(tmp_path):
    torch.save({"model": KEYS, "merges": {(n, n + 1): n for n in range(30_000)}}, tmp_path / "m.pt")
    read(tmp_path / "m.pt")


def test_a_file_that_was_packed_again_is_the_same(tmp_path):
    torch.save({"model": KEYS}, tmp_path / "n.pt")
    read(write_zip(tmp_path / "m.pt", members(tmp_path / "n.pt").items()))
