"""Which classes and functions a pickle may name, and the few that it may call, with what stands here in their place.

A function of the standard library that is on no list is refused as soon as it is named: nothing beside weights needs
one. Names of other packages and programs are inert; calling one is refused, an object of one is a Record.
"""

import sys
from collections.abc import Callable
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.faults import Damaged, TooMuch, Unsafe, shown
from modernize.checkpoint.numpy_values import Array, DType, from_buffer, scalar
from modernize.checkpoint.records import Misfit, Name, Record, View, is_small, view_of

Call = Callable[[tuple[Any, ...]], Any]

# modules that have moved since a file was written -> where they are now
_MOVED = {
    "__builtin__": "builtins", "copy_reg": "copyreg", "UserDict": "collections",
    "numpy.core.multiarray": "numpy._core.multiarray", "numpy.core.numeric": "numpy._core.numeric",
    "pathlib._local": "pathlib",
}  # fmt: skip
# of the standard library: they may be named, and are objects without any effect
_HARMLESS = {
    "argparse": ("Namespace",),
    "types": ("SimpleNamespace",),
    "builtins": (
        "object", "type", "int", "float", "bool", "complex", "str", "bytes", "list", "tuple", "dict", "set",
        "frozenset", "NoneType", "long", "unicode", "Ellipsis", "NotImplemented",
    ),
    "collections": ("OrderedDict", "defaultdict", "deque", "Counter", "UserDict"),
    "datetime": ("datetime", "date", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "functools": ("partial",),
    "math": ("sqrt", "tanh", "exp", "cos", "inf", "pi"),
    "pathlib": ("Path", "PurePath", "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),
    "random": ("Random",),
    "typing": ("Any", "Optional", "Union", "List", "Dict", "Tuple", "Callable", "Literal"),
    "uuid": ("UUID",),
}  # fmt: skip


def current(name: Name) -> Name:
    """The same name where it is today."""
    return Name(_MOVED.get(name.module, name.module), name.name)


def check_name(name: Name) -> None:
    """Raises Unsafe for what belongs to the standard library and is none of the harmless things."""
    package = name.module.partition(".")[0]
    if package in sys.stdlib_module_names and name.name not in _HARMLESS.get(name.module, ()):
        raise Unsafe(f"names {shown(str(name))}")


# ------------------------------------------------------------------------------------------ plain values


def _dictionary(args: tuple[Any, ...]) -> dict[Any, Any]:
    """OrderedDict, of nothing or of pairs; Counter, of a dictionary. What comes later is put in by the pickle."""
    found = _only(args)
    if found is None:
        return {}
    if isinstance(found, dict):
        return dict(found)
    pairs = found if isinstance(found, list | tuple) else None
    if pairs is None or not all(isinstance(p, list | tuple) and len(p) == 2 and _is_key(p[0]) for p in pairs):
        raise Damaged(f"a dictionary is made of {shown(found)}")
    if len({key for key, _ in pairs}) < len(pairs):
        raise Damaged("a key is in one dictionary twice")
    return dict(pairs)


def _only(args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    if len(args) > 1:
        raise Damaged(f"a dictionary or a set is made of {len(args)} things")
    return args[0] if args else None


def _is_key(key: object) -> bool:
    return isinstance(key, str | bytes) or (isinstance(key, int | float) and is_small(key))


def _empty_dictionary(args: tuple[Any, ...]) -> dict[Any, Any]:
    """defaultdict: what was in it follows, and nothing is made up."""
    return {}


def _sequence(args: tuple[Any, ...]) -> list[Any]:
    """deque: what was in it, if not yet, follows."""
    return list(args[0]) if args and isinstance(args[0], list | tuple) else []


def _members(args: tuple[Any, ...]) -> set[Any]:
    found = _only(args) or ()
    if not isinstance(found, list | tuple) or not all(_is_key(key) or isinstance(key, Name) for key in found):
        raise Damaged(f"a set is made of {shown(found)}")
    return set(found)


def _raw_bytes(args: tuple[Any, ...]) -> bytes:
    """Bytes and bytearray from bytes, or from a text of Latin-1; never from a number, which would only allocate."""
    if not args:
        return b""
    if isinstance(args[0], bytes) and len(args) == 1:
        return args[0]
    if isinstance(args[0], str) and args[1:] in (("latin1",), ("latin-1",)):
        try:
            return args[0].encode("latin-1")
        except UnicodeEncodeError as error:
            raise Damaged("bytes are written as a text that they are not") from error
    raise Damaged(f"bytes are made of {shown(args[0])}")


def _complex(args: tuple[Any, ...]) -> complex:
    if len(args) != 2 or not all(isinstance(part, int | float) for part in args):
        raise Damaged("a complex number is not made of two numbers")
    return complex(*map(float, args))


def _path(args: tuple[Any, ...]) -> str:
    """A path of any system: its parts, joined."""
    if sum(len(part) for part in args if isinstance(part, str)) > limits.LINE:
        raise TooMuch(f"a path of more than {limits.LINE:,} characters")
    return "/".join(part if isinstance(part, str) else shown(part) for part in args).replace("//", "/")


def _tuple(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if args and isinstance(args[0], list | tuple) else ()


def _nothing(args: tuple[Any, ...]) -> None:
    """For what is made of code and is not needed."""


def _type_of(args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """`Optional[int]`, as a type is written beside a field: the first of the two names. Raises Unsafe for others."""
    if len(args) == 2 and isinstance(args[0], Name) and args[0].module in ("typing", "builtins"):
        return args[0]
    raise Unsafe("asks to call operator.getitem")


def _object(args: tuple[Any, ...]) -> Record:
    """copyreg._reconstructor(class, base, state), which objects had before protocol 2."""
    if len(args) != 3 or not isinstance(args[0], Name):
        raise Damaged("an object is made of no class")
    return Record(args[0], fields=dict(args[2]) if isinstance(args[2], dict) else {})


def _record_of(kind: Name) -> Call:
    return lambda args: Record(kind, args)


# ------------------------------------------------------------------------------------------ tensors


def _tensor(args: tuple[Any, ...]) -> View | Misfit:
    """_rebuild_tensor(_v2)(storage, offset, shape, stride, …)."""
    if len(args) < 4:
        raise Damaged("a tensor is not described in full")
    storage, offset, shape, stride = args[:4]
    return _as_stored(view_of(storage, offset, shape, stride), args[6:7])


def _tensor_with_dtype(args: tuple[Any, ...]) -> View | Misfit:
    """_rebuild_tensor_v3(storage, offset, shape, stride, requires_grad, hooks, dtype, …), of bytes without a dtype."""
    if len(args) < 7 or not isinstance(args[6], Name) or args[6].module != "torch":
        raise Damaged("a tensor is not described in full")
    storage, offset, shape, stride = args[:4]
    return _as_stored(view_of(storage, offset, shape, stride, args[6].name), args[7:8])


def _as_stored(view: View | Misfit, metadata: tuple[Any, ...]) -> View | Misfit:
    """The same, unless it says that its numbers stand for their conjugates or negatives."""
    if any(metadata):
        return Misfit(what="a tensor whose numbers are to be conjugated or negated", shape=view.shape, dtype=view.dtype)
    return view


def _first(args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """A parameter: its tensor."""
    if not args or not isinstance(args[0], View | Misfit):
        raise Damaged(f"a parameter is made of {shown(args[0] if args else None)}")
    return args[0]


def _of_type(args: tuple[Any, ...]) -> Any:  # noqa: ANN401
    """_rebuild_from_type_v2(function, class, arguments, state): a tensor with attributes, or of a class of its own."""
    if len(args) < 3 or not all(isinstance(part, Name) for part in args[:2]) or not isinstance(args[2], tuple):
        raise Damaged("a tensor is not described in full")
    if args[1] in _TENSOR_CLASSES and args[0] in CALLS:
        return CALLS[args[0]](args[2])
    return Misfit(what=f"an object of the class {shown(str(args[1]))}")


def _misfit(what: str) -> Call:
    return lambda args: Misfit(what=what)


_TENSOR_CLASSES = frozenset(
    Name(*place)
    for place in (
        ("torch", "Tensor"),
        ("torch.nn.parameter", "Parameter"),
        ("torch.nn.parameter", "Buffer"),
    )
)


def _calls() -> dict[Name, Call]:
    utils = "torch._utils"
    rows: list[tuple[str, str, Call]] = [
        ("collections", "OrderedDict", _dictionary),
        ("collections", "Counter", _dictionary),
        ("collections", "defaultdict", _empty_dictionary),
        ("collections", "deque", _sequence),
        ("builtins", "set", _members),
        ("builtins", "frozenset", _members),
        ("builtins", "bytes", _raw_bytes),
        ("builtins", "bytearray", _raw_bytes),
        ("builtins", "complex", _complex),
        ("builtins", "slice", _nothing),
        ("builtins", "range", _nothing),
        ("builtins", "xrange", _nothing),
        ("_codecs", "encode", _raw_bytes),
        ("copyreg", "_reconstructor", _object),
        *(("pathlib", name, _path) for name in _HARMLESS["pathlib"]),
        *(
            (module, name, _record_of(Name(module, name)))
            for module in ("types", "datetime", "decimal", "fractions", "functools", "random")
            for name in _HARMLESS[module]
        ),
        ("numpy", "dtype", lambda args: DType(args[0] if args else "")),
        ("numpy._core.multiarray", "_reconstruct", lambda args: Array()),
        ("numpy._core.multiarray", "scalar", scalar),
        ("numpy._core.numeric", "_frombuffer", from_buffer),
        ("numpy.random.bit_generator", "__pyx_unpickle_SeedSequence", _nothing),
        *(
            ("numpy.random._pickle", name, _nothing)
            for name in ("__randomstate_ctor", "__generator_ctor", "__bit_generator_ctor")
        ),
        ("logging", "getLogger", _nothing),
        ("_operator", "getitem", _type_of),
        ("operator", "getitem", _type_of),
        ("torch", "Size", _tuple),
        ("torch", "device", lambda args: ":".join(map(shown, args))),
        ("torch.serialization", "_get_layout", _nothing),
        ("torch.nn.backends.thnn", "_get_thnn_function_backend", _nothing),  # in whole modules before torch 1.2
        (utils, "_rebuild_tensor", _tensor),
        (utils, "_rebuild_tensor_v2", _tensor),
        (utils, "_rebuild_tensor_v3", _tensor_with_dtype),
        (utils, "_rebuild_parameter", _first),
        (utils, "_rebuild_parameter_with_state", _first),
        *(
            (module, name, _of_type)
            for module in (utils, "torch._tensor", "torch.tensor")
            for name in ("_rebuild_from_type", "_rebuild_from_type_v2")
        ),
        (utils, "_rebuild_sparse_tensor", _misfit("a sparse tensor")),
        (utils, "_rebuild_sparse_csr_tensor", _misfit("a sparse tensor")),
        (utils, "_rebuild_nested_tensor", _misfit("a nested tensor")),
        (utils, "_rebuild_qtensor", _misfit("a quantized tensor")),
        (utils, "_rebuild_meta_tensor_no_storage", _misfit("a tensor without data (of the device meta)")),
        (utils, "_rebuild_device_tensor_from_numpy", _misfit("a tensor of another device")),
        (utils, "_rebuild_device_tensor_from_cpu_tensor", _misfit("a tensor of another device")),
        (utils, "_rebuild_xla_tensor", _misfit("a tensor of another device")),
        (utils, "_rebuild_mlc_tensor", _misfit("a tensor of another device")),
        (utils, "_rebuild_wrapper_subclass", _misfit("an object of a class of its own")),
    ]
    return {Name(module, name): call for module, name, call in rows}


CALLS = _calls()

_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16",
    "Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Untyped": "uint8", "_Untyped": "uint8",
    "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32",
}  # fmt: skip


def dtype_of_storage(kind: object) -> str:
    """`torch.FloatStorage` -> `float32`; storages without a dtype are of bytes. Raises Damaged, or Unsafe."""
    if isinstance(kind, Name) and kind.module in ("torch", "torch.cuda", "torch.storage"):
        found = _STORAGES.get(kind.name.removesuffix("Storage"), "")
        if found and kind.name.endswith("Storage"):
            return found
    raise Damaged(f"a storage is of the kind {shown(str(kind)) if isinstance(kind, Name) else shown(kind)}")
