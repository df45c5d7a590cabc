"""The instructions of a pickle that are followed: for each byte what pickletools calls it, what PickleMachine does, and
the argument that stands behind it (a format of `struct`, or a `line` of UTF-8 or of raw bytes, or nothing).

Protocols 0 to 5, without STRING and PERSID, which no program writes beside tensors, and out-of-band buffers.
"""

from typing import NamedTuple


class Opcode(NamedTuple):
    """One instruction."""

    name: str
    action: str  # a method of PickleMachine, without its underscore
    argument: str


_ROWS: tuple[tuple[bytes, str, str, str], ...] = (
    # the machine itself
    (b"\x80", "PROTO", "protocol", "<B"),
    (b"\x95", "FRAME", "frame", "<Q"),
    (b"(", "MARK", "mark", ""),
    (b"0", "POP", "drop", ""),
    (b"1", "POP_MARK", "pop_mark", ""),
    (b"2", "DUP", "copy", ""),
    (b"g", "GET", "get", "line"),
    (b"h", "BINGET", "get", "<B"),
    (b"j", "LONG_BINGET", "get", "<I"),
    (b"p", "PUT", "put", "line"),
    (b"q", "BINPUT", "put", "<B"),
    (b"r", "LONG_BINPUT", "put", "<I"),
    (b"\x94", "MEMOIZE", "memoize", ""),
    # plain values
    (b"N", "NONE", "none", ""),
    (b"\x88", "NEWTRUE", "true", ""),
    (b"\x89", "NEWFALSE", "false", ""),
    (b"I", "INT", "integer_line", "line"),
    (b"L", "LONG", "integer_line", "line"),
    (b"F", "FLOAT", "float_line", "line"),
    (b"J", "BININT", "push", "<i"),
    (b"K", "BININT1", "push", "<B"),
    (b"M", "BININT2", "push", "<H"),
    (b"G", "BINFLOAT", "push", ">d"),
    (b"\x8a", "LONG1", "long", "<B"),
    (b"\x8b", "LONG4", "long", "<i"),
    (b"V", "UNICODE", "unicode_line", "raw line"),
    (b"X", "BINUNICODE", "unicode", "<I"),
    (b"\x8c", "SHORT_BINUNICODE", "unicode", "<B"),
    (b"\x8d", "BINUNICODE8", "unicode", "<Q"),
    (b"T", "BINSTRING", "old_text", "<I"),
    (b"U", "SHORT_BINSTRING", "old_text", "<B"),
    (b"B", "BINBYTES", "bytes", "<I"),
    (b"C", "SHORT_BINBYTES", "bytes", "<B"),
    (b"\x8e", "BINBYTES8", "bytes", "<Q"),
    (b"\x96", "BYTEARRAY8", "bytes", "<Q"),
    # containers
    (b")", "EMPTY_TUPLE", "empty_tuple", ""),
    (b"\x85", "TUPLE1", "tuple1", ""),
    (b"\x86", "TUPLE2", "tuple2", ""),
    (b"\x87", "TUPLE3", "tuple3", ""),
    (b"t", "TUPLE", "tuple", ""),
    (b"]", "EMPTY_LIST", "empty_list", ""),
    (b"l", "LIST", "list", ""),
    (b"a", "APPEND", "append", ""),
    (b"e", "APPENDS", "appends", ""),
    (b"}", "EMPTY_DICT", "empty_dict", ""),
    (b"d", "DICT", "dict", ""),
    (b"s", "SETITEM", "set_item", ""),
    (b"u", "SETITEMS", "set_items", ""),
    (b"\x8f", "EMPTY_SET", "empty_set", ""),
    (b"\x90", "ADDITEMS", "add_items", ""),
    (b"\x91", "FROZENSET", "frozen_set", ""),
    # names and objects
    (b"c", "GLOBAL", "name_lines", "line"),
    (b"\x93", "STACK_GLOBAL", "name_stack", ""),
    (b"R", "REDUCE", "call", ""),
    (b"\x81", "NEWOBJ", "new", ""),
    (b"\x92", "NEWOBJ_EX", "new_with_keywords", ""),
    (b"b", "BUILD", "build", ""),
    (b"Q", "BINPERSID", "refer", ""),
)
OPCODES = {code[0]: Opcode(name, action, argument) for code, name, action, argument in _ROWS}
STOP = ord(".")
# what only running code could answer
UNSAFE = {ord("i"): "INST", ord("o"): "OBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4"}
