"""Hostile files, made by hand: each is refused with a short sentence, soon, or gives what an honest reader sees."""

import collections
import enum
import io
import json
import os
import pickle
import struct
import sys
import time
import zipfile

import numpy as np
import pytest
import tiny
import torch
from safetensors.torch import save_file
from torch import nn

from modernize.checkpoint import open_checkpoint
from modernize.errors import AmbiguousInput, BadData, InputRefused, UnknownLayout, UnreadableFile, UnsafeFile
from modernize.facts import Facts
from modernize.recognise import recognise
from modernize.stored import stored_in
from modernize.tokenizer import find_tokenizer

SPEC = tiny.spec(n_layer=1, n_head=2, n_embd=4, n_inner=4, block_size=2, vocab_size=3)
KEYS = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("nanogpt"))
FACTS = Facts(n_head=2, activation="gelu")
PLACEHOLDER = "what is put here instead"
SECONDS, SENTENCE = 5.0, 4000

# ------------------------------------------------------------------------------------------ how they are made


def text(word):
    raw = word.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def named(module, name):
    return f"c{module}\n{name}\n".encode()


def call(module, name, *args):
    return named(module, name) + b"(" + b"".join(args) + b"tR"


def put(number):
    return b"r" + struct.pack("<I", number)


def get(number):
    return b"j" + struct.pack("<I", number)


def integer(number):
    raw = number.to_bytes(max(1, number.bit_length() // 8 + 1), "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts:
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def file_with(path, ops, *, beside=PLACEHOLDER, legacy=False, **more):
    """A good model, with these instructions where a value beside it stands; the checksums are right."""
    torch.save({"model": KEYS, **more, "beside": beside}, path, _use_new_zipfile_serialization=not legacy)
    if legacy:
        path.write_bytes(path.read_bytes().replace(text(PLACEHOLDER), ops, 1))
        return path
    return write_zip(path, [(n, d.replace(text(PLACEHOLDER), ops, 1)) for n, d in members(path).items()])


def refused(path, match=None, *, error=InputRefused):
    """The sentence of a refusal that comes soon."""
    begun = time.process_time()
    with pytest.raises(error, match=match) as caught:
        recognise(open_checkpoint(path), FACTS)
    assert time.process_time() - begun < SECONDS
    assert caught.value.hint
    assert len(caught.value.sentence + caught.value.hint) < SENTENCE
    return caught.value.sentence


def read(path):
    """What a good model gives, whatever stands beside it; soon."""
    begun = time.process_time()
    state = recognise(open_checkpoint(path), FACTS).state()
    assert time.process_time() - begun < SECONDS
    assert torch.equal(state["wte.weight"], KEYS["transformer.wte.weight"])
    return open_checkpoint(path)


# ------------------------------------------------------------------------------------------ bombs

PRIME = 2**61 - 1  # what Python's hash of a whole number is taken modulo
BIG = b"(" + b"".join(text(f"{n}") + b"N" for n in range(50_000)) + b"d" + put(1)  # a dictionary, remembered
LONG = text("x" * 1_000_000) + put(1)
OBJECT = named("train", "Config") + b")\x81"


def storage(kind="FloatStorage", key=b"", numel=12):
    reference = text("storage") + named("torch", kind) + (key or text("0")) + text("cpu")
    return b"(" + reference + (numel if isinstance(numel, bytes) else integer(numel)) + b"tQ"


def numbers(values):
    return b"(" + b"".join(v if isinstance(v, bytes) else integer(v) for v in values) + b"t"


def tensor(*, held=None, offset=0, size=(3, 4), stride=(4, 1), function="_rebuild_tensor_v2"):
    offset = offset if isinstance(offset, bytes) else integer(offset)
    size = size if isinstance(size, bytes) else numbers(size)
    stride = stride if isinstance(stride, bytes) else numbers(stride)
    return call("torch._utils", function, held or storage(), offset, size, stride, b"\x89", b"}")


def nested(times, before, after, inner=b"N"):
    return before * times + inner + after * times


def array(order):
    kind = call("numpy", "dtype", text("f8"), b"\x89", b"\x88") + b"(K\x03" + text(order) + b"NNNJ\xff\xff\xff\xff"
    kind += b"J\xff\xff\xff\xffK\x00tb"
    made = call("numpy._core.multiarray", "_reconstruct", named("numpy", "ndarray"), b"K\x00\x85", b"C\x01b")
    return made + b"(K\x01" + numbers([125_000]) + kind + b"\x89" + get(1) + b"tb"


def fields(values):
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def module(modules=b"}", parameters=b"}", **more):
    state = {"_parameters": parameters, "_modules": modules, "_buffers": b"}", **more}
    return named("train", "Model") + b")\x81" + fields(state) + b"b"


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
        "a long number": b"\x8a\xff" + b"\xff" * 255,
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
    "a call of what was made": call("functools", "partial", named("torch.hub", "load")) + SHELL + b"\x85R",
    "a hook": call("torch.nn.modules.module", "register_module_forward_hook", named("torch.hub", "load")),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("name", GADGETS)
def test_no_instruction_calls_anything(tmp_path, monkeypatch, name, legacy):
    monkeypatch.chdir(tmp_path)
    refused(file_with(tmp_path / "m.pt", GADGETS[name], legacy=legacy), error=(UnsafeFile, UnreadableFile))
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
    words = ("config", "args", "hparams", "model", "cfg", "settings", "meta", "opt", "arch", "conf", "kwargs", "n_head")
    endless = OBJECT + put(1) + fields({word: get(1) for word in words}) + b"b"
    torch.save({"model": KEYS, "config": PLACEHOLDER}, tmp_path / "n.pt")
    parts = [(n, d.replace(text(PLACEHOLDER), endless)) for n, d in members(tmp_path / "n.pt").items()]
    read(write_zip(tmp_path / "m.pt", parts))


@pytest.mark.parametrize("depth", [120, 900, 100_000])
def test_json_in_settings_is_as_deep_as_can_be_shown(tmp_path, depth):
    deep = '{"activation": ' + "[" * depth + "]" * depth + "}"
    torch.save({"model": KEYS, "config": deep}, tmp_path / "m.pt")
    read(tmp_path / "m.pt")
    folder = hf_folder(tmp_path / "hf")
    (folder / "config.json").write_text(deep)
    refused(folder, "deeper than 100|cannot be read")
    save_file({n: t.clone() for n, t in KEYS.items()}, tmp_path / "m.safetensors", metadata={"config": deep})
    read(tmp_path / "m.safetensors")


def test_a_vocabulary_that_no_model_has_is_none(tmp_path):
    for stoi in ({"chars": "x" * 3_000_000}, {"itos": ["x"] * 1_100_000}, {"stoi": {"a": True}}, {"itos": {True: "a"}}):
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


# ------------------------------------------------------------------------------------------ archives


def hf_folder(folder, **config):
    folder.mkdir()
    keys = tiny.as_dialect(tiny.jittered(SPEC), SPEC, tiny.dialect("gpt2"))
    save_file({n: t.clone() for n, t in keys.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_head": 2, **config}))
    return folder


def changed(raw, magic, name, at, new):
    """A field `at` bytes into the record of a member, `new` bytes in its place."""
    start = 0
    while True:
        start = raw.index(magic, start)
        length = 46 if magic == b"PK\x01\x02" else 30
        if name.encode() in raw[start + length : start + length + len(name) + 20]:
            return raw[: start + at] + new + raw[start + at + len(new) :]
        start += 4


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
FIELDS = {
    "flags of a member": (LOCAL, 6, b"\x01\x00"),
    "flags in the directory": (CENTRAL, 8, b"\x01\x08"),
    "patched data": (CENTRAL, 8, b"\x20\x08"),
    "compression of a member": (LOCAL, 8, b"\x08\x00"),
    "compression in the directory": (CENTRAL, 10, b"\x08\x00"),
    "checksum of a member": (LOCAL, 14, b"\1\2\3\4"),
    "checksum in the directory": (CENTRAL, 16, b"\1\2\3\4"),
    "no checksum in the directory": (CENTRAL, 16, b"\0\0\0\0"),
    "size of a member": (LOCAL, 18, b"\x08\0\0\0\x08\0\0\0"),
    "size in the directory": (CENTRAL, 20, b"\x08\0\0\0\x08\0\0\0"),
    "packed size in the directory": (CENTRAL, 20, b"\x08\0\0\0"),
    "size of zip64 without zip64": (CENTRAL, 20, b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    "length of a name": (LOCAL, 26, b"\x05\x00"),
    "length of a name in the directory": (CENTRAL, 28, b"\x05\x00"),
    "length of an extra field": (LOCAL, 28, b"\xff\xff"),
    "length of an extra field in the directory": (CENTRAL, 30, b"\xff\xff"),
    "comment of a member": (CENTRAL, 32, b"\x05\x00"),
    "disk of a member": (CENTRAL, 34, b"\x01\x00"),
    "place of a member": (CENTRAL, 42, b"\0\0\0\0"),
    "place beyond the end": (CENTRAL, 42, b"\xff\xff\xff\x7f"),
    "disk of the end": (END, 4, b"\x01\x00"),
    "count here": (END, 8, b"\x01\x00"),
    "count": (END, 8, b"\x01\x00\x01\x00"),
    "size of the directory": (END, 12, b"\x01\0\0\0"),
    "place of the directory": (END, 16, b"\x01\0\0\0"),
    "length of a comment": (END, 20, b"\x02\x00"),
}


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_of_an_archive_that_disagrees_with_another_is_refused(tmp_path, name):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    magic, at, new = FIELDS[name]
    raw = (tmp_path / "m.pt").read_bytes()
    (tmp_path / "m.pt").write_bytes(changed(raw, magic, "" if magic == END else "/data/1", at, new))
    refused(tmp_path / "m.pt", error=UnreadableFile)


def test_a_checksum_that_was_taken_out_of_every_place_is_missed(tmp_path):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    raw, at = (tmp_path / "m.pt").read_bytes(), KEYS["transformer.wpe.weight"].numpy().tobytes()
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        crcs = [info.CRC for info in archive.infolist() if archive.read(info) == at]
    for crc in crcs:
        raw = raw.replace(struct.pack("<I", crc), bytes(4))
    (tmp_path / "m.pt").write_bytes(raw.replace(at, at[:-1] + b"\1"))
    refused(tmp_path / "m.pt", "some have none")


def with_extra(name, extra, **more):
    info = zipfile.ZipInfo(name)
    info.extra = extra
    for key, value in more.items():
        setattr(info, key, value)
    return info


ARCHIVES = {
    "a second root": lambda parts: [*parts, ("other/data.pkl", b"N.")],
    "no root": lambda parts: [(name.partition("/")[2], data) for name, data in parts],
    "a member beside the root": lambda parts: [*parts, ("readme", b"")],
    "a folder": lambda parts: [*parts, ("archive/data/", b"")],
    "a folder with bytes": lambda parts: [*parts, ("archive/x/", b"x")],
    "a member twice": lambda parts: [*parts, parts[0]],
    "a storage twice": lambda parts: [*parts, ("archive/data/0", b"x" * 48)],
    "a path upwards": lambda parts: [*parts, ("archive/../data.pkl", b"N.")],
    "a path of the root": lambda parts: [*parts, ("/archive/x", b"")],
    "a path of Windows": lambda parts: [*parts, ("archive/a\\b", b"")],
    "a path with a dot": lambda parts: [*parts, ("archive/./data.pkl", b"N.")],
    "a long name": lambda parts: [*parts, ("archive/" + "x" * 60_000, b"")],
    "a byte order of others": lambda parts: [
        *[p for p in parts if "byteorder" not in p[0]],
        ("archive/byteorder", b"big"),
    ],
    "a long byte order": lambda parts: [
        *[p for p in parts if "byteorder" not in p[0]],
        ("archive/byteorder", b"little" + b" " * 100_000),
    ],
    "a pickle behind the pickle": lambda parts: [(n, d + b"N." if n.endswith("data.pkl") else d) for n, d in parts],
    "no pickle": lambda parts: [p for p in parts if not p[0].endswith("data.pkl")],
    "an empty pickle": lambda parts: [(n, b"" if n.endswith("data.pkl") else d) for n, d in parts],
    "a storage missing": lambda parts: [p for p in parts if not p[0].endswith("data/1")],
    "a storage too long": lambda parts: [(n, d + bytes(4) if n.endswith("data/1") else d) for n, d in parts],
    "zip64 without need": lambda parts: [
        *parts,
        (with_extra("archive/x", struct.pack("<2H2Q", 1, 16, 2**40, 2**40)), b"x"),
    ],
    "zip64 cut short": lambda parts: [*parts, (with_extra("archive/x", struct.pack("<2HI", 1, 8, 5)), b"x")],
    "an extra field beyond its end": lambda parts: [
        *parts,
        (with_extra("archive/x", struct.pack("<2H", 7, 500)), b"x"),
    ],
    "a comment": lambda parts: [*parts, (with_extra("archive/x", b"", comment=b"x"), b"x")],
    "compressed": lambda parts: [*parts, (with_extra("archive/x", b"", compress_type=zipfile.ZIP_DEFLATED), b"x")],
}


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_an_archive_that_torch_would_not_write_is_refused(tmp_path, name):
    torch.save({"model": KEYS}, tmp_path / "archive.pt")
    parts = ARCHIVES[name](list(members(tmp_path / "archive.pt").items()))
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for member, data in parts:
            archive.writestr(member if isinstance(member, zipfile.ZipInfo) else zipfile.ZipInfo(member), data)
    if name == "zip64 without need":
        read(tmp_path / "m.pt")
    else:
        refused(tmp_path / "m.pt", error=UnreadableFile)


@pytest.mark.parametrize("change", [
    lambda raw: b"x" + raw, lambda raw: raw + b"x", lambda raw: raw + raw, lambda raw: raw[:-2] + b"\x01\x00x",
    lambda raw: raw[:30_000] + bytes(16) + raw[30_000:], lambda raw: raw + b"PK\x05\x06" + bytes(18),
])  # fmt: skip
def test_bytes_around_and_between_members_are_refused(tmp_path, change):
    torch.save({"model": KEYS}, tmp_path / "m.pt")
    (tmp_path / "m.pt").write_bytes(change((tmp_path / "m.pt").read_bytes()))
    refused(tmp_path / "m.pt", error=UnreadableFile)


def test_a_storage_is_of_one_dtype(tmp_path):
    path = file_with(tmp_path / "m.pt", b"(" + tensor() + tensor(held=storage("IntStorage")) + b"t")
    refused(path, "described in two ways")


# ------------------------------------------------------------------------------------------ legacy files


def legacy(path, *, protocol=1001, facts=None, keys=None, tail=b"", sizes=None, rest=None):
    """A legacy file with parts of it changed."""
    torch.save({"model": KEYS}, path, _use_new_zipfile_serialization=False)
    stream = io.BytesIO(path.read_bytes())
    said = [pickle.load(stream) for _ in range(3)]
    start = stream.tell()
    end = path.read_bytes().index(b".\x80\x02]", start) + 1
    root = path.read_bytes()[start:end]
    stream.seek(end)
    order = pickle.load(stream)
    parts = [said[0], protocol, {**said[2], **(facts or {})}]
    changed_keys = order if keys is None else keys(order)
    rest = stream.read() if rest is None else rest
    if sizes is not None:
        rest = sizes + rest[8:]
    path.write_bytes(
        b"".join(pickle.dumps(part, 2) for part in parts) + root + pickle.dumps(changed_keys, 2) + rest + tail
    )
    return path


LEGACY = {
    "another protocol": ({"protocol": 1000}, "protocol is 1000"),
    "a protocol of text": ({"protocol": "1001"}, "protocol is 1001"),
    "a big-endian machine": ({"facts": {"little_endian": False}}, "big-endian"),
    "a machine that is 1": ({"facts": {"little_endian": 1}}, "big-endian"),
    "no keys": ({"keys": lambda keys: []}, "stand behind"),
    "no keys and no bytes": ({"keys": lambda keys: [], "rest": b""}, "is not in the file"),
    "a key missing": ({"keys": lambda keys: keys[1:]}, "and does not"),
    "a key twice": ({"keys": lambda keys: [*keys, keys[0]]}, "list of storages"),
    "a key of no storage": ({"keys": lambda keys: [*keys, "5"]}, "belongs to no tensor"),
    "keys in another order": ({"keys": lambda keys: keys[::-1]}, "and does not"),
    "keys that are numbers": ({"keys": lambda keys: list(range(len(keys)))}, "has the key 0"),
    "keys in a dictionary": ({"keys": dict.fromkeys}, "list of storages"),
    "bytes behind": ({"tail": b"x"}, "1 bytes stand behind"),
    "another file behind": ({"tail": b"PK\x03\x04" + bytes(600)}, "stand behind"),
    "a size too large": ({"sizes": struct.pack("<q", 2**40)}, "and does not"),
    "a negative size": ({"sizes": struct.pack("<q", -1)}, "and does not"),
}


@pytest.mark.parametrize("name", LEGACY)
def test_a_legacy_file_whose_parts_disagree_is_refused(tmp_path, name):
    read(legacy(tmp_path / "m.pt"))
    change, said = LEGACY[name]
    refused(legacy(tmp_path / "m.pt", **change), said, error=UnreadableFile)


# ------------------------------------------------------------------------------------------ safetensors


def safetensors_of(path, header, data=None, *, length=None):
    """A file with this header, a text or what becomes one."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = bytes(16) if data is None else data
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + body)
    return path


ROW = {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}
ROW_TEXT = json.dumps(ROW).encode()
HEADERS = {
    "a name twice": b'{"a": ' + ROW_TEXT + b', "a": ' + ROW_TEXT + b"}",
    "a name twice, once escaped": b'{"a": ' + ROW_TEXT + b', "\\u0061": ' + ROW_TEXT + b"}",
    "a field twice": b'{"a": {"dtype": "F32", "dtype": "I32", "shape": [4], "data_offsets": [0, 16]}}',
    "metadata twice": b'{"__metadata__": {}, "__metadata__": {}, "a": ' + ROW_TEXT + b"}",
    "overlapping": {"a": ROW, "b": {**ROW, "shape": [2], "data_offsets": [8, 16]}},
    "the same bytes": {"a": ROW, "b": ROW},
    "a gap": {"a": {**ROW, "shape": [1], "data_offsets": [0, 4]}, "b": {**ROW, "shape": [2], "data_offsets": [8, 16]}},
    "bytes in front": {"a": {**ROW, "shape": [3], "data_offsets": [4, 16]}},
    "bytes behind": {"a": {**ROW, "shape": [3], "data_offsets": [0, 12]}},
    "bytes that are not there": {"a": {**ROW, "shape": [5], "data_offsets": [0, 20]}},
    "a size of floating point": {"a": {**ROW, "shape": [4.0]}},
    "a size that is true": {"a": {**ROW, "shape": [4, True]}},
    "a negative size": {"a": {**ROW, "shape": [-2, -2]}},
    "a size that overflows": {"a": {**ROW, "shape": [2**62, 4]}},
    "a size of text": {"a": {**ROW, "shape": ["4"]}},
    "no size": {"a": {**ROW, "shape": None}},
    "an offset of floating point": {"a": {**ROW, "data_offsets": [0, 16.0]}},
    "a negative offset": {"a": {**ROW, "data_offsets": [-16, 0]}},
    "offsets that are turned": {"a": {**ROW, "data_offsets": [16, 0]}},
    "one offset": {"a": {**ROW, "data_offsets": [16]}},
    "an offset of NaN": b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, NaN]}}',
    "an offset of too many digits": b'{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0, ' + b"9" * 5000 + b"]}}",
    "a dtype of nobody": {"a": {**ROW, "dtype": "F128"}},
    "a dtype in small letters": {"a": {**ROW, "dtype": "f32"}},
    "a dtype that is none": {"a": {**ROW, "dtype": ["F32"]}},
    "an empty tensor that is huge": {"a": ROW, "b": {**ROW, "shape": [0, 2**62], "data_offsets": [16, 16]}},
    "too many axes": {"a": {**ROW, "shape": [4] + [1] * 20}},
    "a row too much": {"a": {**ROW, "x": 1}},
    "a row too few": {"a": {"dtype": "F32", "shape": [4]}},
    "a row that is none": {"a": [ROW]},
    "metadata that are a list": {"__metadata__": ["x"], "a": ROW},
    "metadata of numbers": {"__metadata__": {"x": 1}, "a": ROW},
    "metadata in one another": {"__metadata__": {"x": {"y": "z"}}, "a": ROW},
    "a long name": {"x" * 100_000: ROW},
    "half a character": {"\ud800": ROW},
    "a long alias": {"__metadata__": {"x" * 100_000: "a"}, "a": ROW},
    "an alias of half a character": {"__metadata__": {"\ud800": "a"}, "a": ROW},
    "many aliases": {"__metadata__": {f"x{n}": "a" for n in range(60_000)}, "a": ROW},
    "many tensors": {"a": ROW, **{f"x{n}": {**ROW, "shape": [0], "data_offsets": [16, 16]} for n in range(50_001)}},
    "a list": [ROW],
    "deep": b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps({"a": ROW}).encode(),
    "a space in front": b" " + json.dumps({"a": ROW}).encode(),
    "no UTF-8": json.dumps({"a": ROW}).encode("utf-16"),
    "bytes behind its end": json.dumps({"a": ROW}).encode() + b"{}",
    "a zero behind its end": json.dumps({"a": ROW}).encode() + b"\0",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_another_reader_could_read_otherwise_is_refused(tmp_path, name):
    safetensors_of(tmp_path / "good", {"a": ROW})
    open_checkpoint(tmp_path / "good").read("a")
    begun = time.process_time()
    with pytest.raises(UnreadableFile) as caught:
        open_checkpoint(safetensors_of(tmp_path / "m", HEADERS[name]))
    assert time.process_time() - begun < SECONDS
    assert len(caught.value.sentence) < 1000


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 2**24 + 1, 100_000, 0, 1])
def test_a_header_of_another_length_is_refused(tmp_path, length):
    with pytest.raises(UnreadableFile):
        open_checkpoint(safetensors_of(tmp_path / "m", {"a": ROW}, length=length))
    if length == 2**24 + 1:
        with pytest.raises(UnreadableFile, match="more than 16,777,216"):
            open_checkpoint(safetensors_of(tmp_path / "m", json.dumps({"a": ROW}).encode().ljust(length)))


def modern(path, **change):
    """A modern file whose metadata say this."""
    tiny.save_modern(path)
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    plain = json.loads(header["__metadata__"]["modernize"])
    for place, value in change.items():
        holder, *rest = place.split("__")
        if rest:
            plain[holder][rest[0]] = value
        else:
            plain[holder] = value
    header["__metadata__"]["modernize"] = json.dumps(plain)
    return safetensors_of(path, header, raw[8 + length :])


MODERN = {
    "a trillion layers": {"config__n_layer": 10**12},
    "layers that are true": {"config__n_layer": True},
    "a layer more": {"config__n_layer": 3},
    "a width beyond all": {"config__n_embd": 10**400},
    "a width of text": {"config__n_embd": "x" * 100_000},
    "an epsilon beyond all": {"config__norm_eps": 10**400},
    "an epsilon without end": {"config__norm_eps": float("inf")},
    "biases that are a text": {"config__biases": "q"},
    "biases that are lists": {"config__biases": [["q"]]},
    "an activation that is a list": {"config__activation": ["gelu"]},
    "a tie that is 1": {"config__tied": 1},
    "no configuration": {"config": None},
    "a configuration of lists": {"config": [["n_layer", 2]]},
    "a token without end": {"vocabulary": {"a": float("inf")}},
    "a token of text": {"vocabulary": {"a": "x"}},
    "tokens in a list": {"vocabulary": ["a"]},
    "heads of text": {"source__facts": {"n_head": "4"}},
    "an activation of a number": {"source__facts": {"activation": 5}},
    "facts in a list": {"source__facts": ["n_head"]},
    "a schema of text": {"schema": "x" * 100_000},
    "runs that are numbers": {"finetunes": [5]},
    "losses that are numbers": {"finetunes": [{"loss": 5}]},
    "a calibration that is a number": {"calibration": 5},
}


@pytest.mark.parametrize("name", MODERN)
def test_metadata_of_a_modern_file_that_cannot_be_are_refused(tmp_path, name):
    assert stored_in(open_checkpoint(modern(tmp_path / "m")))
    path, begun = modern(tmp_path / "m", **MODERN[name]), time.process_time()
    with pytest.raises(UnreadableFile) as caught:
        stored_in(open_checkpoint(path))
    assert time.process_time() - begun < SECONDS
    assert len(caught.value.sentence) < 1000


# ------------------------------------------------------------------------------------------ folders and files


INDEXED = {
    "upwards": "../model.safetensors",
    "absolute": "/etc/passwd",
    "into a folder": "x/model.safetensors",
    "of Windows": "..\\model.safetensors",
    "zero": "a\0b",
    "half a character": "\ud800",
    "a command": "\x1b[2J",
    "long": "x" * 5000,
    "long and round": "é" * 200,
    "dots": "..",
    "a dot": ".",
    "nothing": "",
    "a folder": "folder",
    "a pipe": "pipe",
    "a device": "device",
    "a loop": "loop",
    "a dangling link": "dangling",
    "the index itself": "model.safetensors.index.json",
    "the configuration": "config.json",
    "a number": 5,
    "a list": ["model.safetensors"],
}


@pytest.fixture
def folder(tmp_path):
    """A folder in shards, with things in it that are no files."""
    made = hf_folder(tmp_path / "hf")
    (made / "model.safetensors").rename(made / "shard")
    (made / "folder").mkdir()
    os.mkfifo(made / "pipe")
    for name, target in (("device", "/dev/zero"), ("loop", "loop"), ("dangling", "nowhere")):
        (made / name).symlink_to(target)
    return made


def index(made, where, **more):
    plain = {"weight_map": where, **more}
    said = where if isinstance(where, str) else json.dumps(plain)
    (made / "model.safetensors.index.json").write_text(said)
    return made


def names_in(made):
    return list(open_checkpoint(made / "shard").tensors)


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_reads_nothing_but_files_of_its_folder(folder, name):
    names = names_in(folder)
    read_folder = recognise(open_checkpoint(index(folder, dict.fromkeys(names, "shard")))).state()
    assert torch.equal(read_folder["wte.weight"], KEYS["transformer.wte.weight"])
    refused(index(folder, {**dict.fromkeys(names, "shard"), names[0]: INDEXED[name]}), error=UnreadableFile)
    refused(index(folder, {**dict.fromkeys(names, "shard"), "x": INDEXED[name]}), error=UnreadableFile)


def test_an_index_of_thousands_is_refused_soon(folder):
    refused(index(folder, {f"x{n}": f"shard{n}" for n in range(40_000)}), "not there")
    refused(index(folder, {f"x{n}": "shard" for n in range(60_000)}), "more than 50,000")
    refused(index(folder, '{"weight_map": {"a": "shard", "a": "shard"}}'), "twice")
    refused(index(folder, {"x" * 5000: "shard"}), "longer than 512")
    refused(index(folder, {"x": "shard"} | {"\ud800": "shard"}), "no whole text")
    (folder / "model.safetensors.index.json").write_bytes(b" " * (2**24 + 1))
    refused(folder, "more than 16,777,216")


@pytest.mark.parametrize(
    "place", ["config.json", "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"]
)
@pytest.mark.parametrize("what", ["pipe", "device", "folder", "loop", "dangling"])
def test_what_is_no_file_is_never_waited_for(folder, place, what):
    index(folder, dict.fromkeys(names_in(folder), "shard"))
    (folder / place).unlink(missing_ok=True)
    (folder / what).rename(folder / place)
    begun = time.process_time()
    try:
        state = recognise(open_checkpoint(folder)).state()
        assert torch.equal(state["wte.weight"], KEYS["transformer.wte.weight"])
    except UnreadableFile as error:
        assert place in str(error) or "holds" in str(error) or "config.json" in str(error)
    with pytest.raises(UnreadableFile):
        open_checkpoint(folder / place)
    assert time.process_time() - begun < SECONDS


def test_a_configuration_beside_a_file_that_is_a_pipe_is_not_waited_for(tmp_path):
    made = hf_folder(tmp_path / "hf")
    (made / "config.json").unlink()
    os.mkfifo(made / "config.json")
    open_checkpoint(made / "model.safetensors")


@pytest.mark.parametrize("kind", [[], {}, ["llama"], 5, True, None, "x" * 100_000, "gpt2\0"])
def test_a_model_type_of_any_value_is_no_obstacle(tmp_path, kind):
    path = hf_folder(tmp_path / "hf", model_type=kind)
    try:
        recognise(open_checkpoint(path))
    except InputRefused as error:
        assert len(error.sentence) < 1000
        assert isinstance(error, UnknownLayout)


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
