"""Hostile files, made by hand: each is refused with a short sentence, soon, or gives what an honest reader sees."""

import io
import pickle
import struct
import time
import zipfile

import pytest
import tiny
import torch

from modernize.checkpoint import open_checkpoint
from modernize.errors import InputRefused, UnreadableFile, UnsafeFile
from modernize.facts import Facts
from modernize.recognise import recognise

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
