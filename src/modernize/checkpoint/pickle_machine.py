"""A pickle, read instruction by instruction (opcodes.py). Nothing is imported and nothing is called.

A class or function that a pickle names stays a Name. Where the pickle calls one, `calls` has a function of ours for the
few that stand for values (pickle_names.py); any other call is refused. Objects of unknown classes become Records.
What is read counts against limits.py, and what a length announces is compared with the bytes that are left.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from modernize.checkpoint import limits
from modernize.checkpoint.budget import Budget
from modernize.checkpoint.faults import CutShort, Damaged, TooMuch, Unsafe, shown
from modernize.checkpoint.nesting import check_nesting
from modernize.checkpoint.numpy_values import Array, DType
from modernize.checkpoint.opcodes import OPCODES, STOP, UNSAFE
from modernize.checkpoint.pickle_names import Call, check_name, current
from modernize.checkpoint.records import Misfit, Name, Record, View

_MARK = object()
_MEMO_GAP = 256  # programs number what they remember from 0 or 1 on, one by one
_STATELESS = (View, Misfit, dict, list, str, type(None))  # a state that is put on one of these is of no use


class PickleMachine:
    """One pickle in `data`, from `at` on; after `run`, `at` is where it ended.

    `calls` are the functions that stand for those that the pickle may call, `persistent` answers what it refers to
    outside of itself. The actions of opcodes.py are its methods of the same names, with an underscore in front.
    """

    def __init__(
        self,
        data: memoryview,
        at: int = 0,
        *,
        calls: Mapping[Name, Call],
        persistent: Callable[[object], object] | None = None,
    ) -> None:
        self.at = self._start = at
        self._budget = Budget()
        self._data, self._calls, self._persistent = data, calls, persistent
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:  # noqa: ANN401  (whatever the file holds)
        """What the pickle describes. Raises Damaged, TooMuch, Unsafe."""
        for _ in range(limits.OPCODES):
            code = self._take(1)[0]
            if code == STOP:
                root = self._pop()
                if self._stack:
                    raise Damaged("its pickle ends with values left over")
                check_nesting(root)
                return root
            if code in UNSAFE:
                raise Unsafe(f"uses the pickle instruction {UNSAFE[code]}")
            if code not in OPCODES:
                raise Damaged(f"its pickle has {code:#04x} at byte {self.at - 1}, which is no instruction")
            opcode = OPCODES[code]
            getattr(self, f"_{opcode.action}")(*self._argument(opcode.argument))
        raise TooMuch(f"a pickle of more than {limits.OPCODES:,} instructions")

    # ---------------------------------------------------------------------------------- bytes and stack

    def _argument(self, form: str) -> tuple[Any, ...]:
        if form == "line":
            return (_text(self._line()),)
        if form == "raw line":
            return (self._line(),)
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, count: int) -> memoryview:
        end = self.at + count
        if end > len(self._data):
            raise CutShort("its pickle ends too early")
        taken = self._data[self.at : end]
        self.at = end
        return taken

    def _line(self) -> bytes:
        near = bytes(self._data[self.at : self.at + limits.LINE])
        length = near.find(b"\n")
        if length < 0:
            raise (Damaged if len(near) == limits.LINE else CutShort)("a line in its pickle has no end")
        self.at += length + 1
        return near[:length]

    def _pop(self) -> Any:  # noqa: ANN401
        self._top()
        return self._stack.pop()

    def _top(self) -> Any:  # noqa: ANN401
        if not self._stack or self._stack[-1] is _MARK:
            raise Damaged("its pickle uses a value where there is none")
        return self._stack[-1]

    def _pop_mark(self) -> list[Any]:
        """Take everything above the last mark."""
        for place in range(len(self._stack) - 1, -1, -1):
            if self._stack[place] is _MARK:
                above = self._stack[place + 1 :]
                del self._stack[place:]
                return above
        raise Damaged("its pickle has an end without a beginning")

    # ---------------------------------------------------------------------------------- the machine itself

    def _protocol(self, number: int) -> None:
        if number > 5:
            raise Damaged(f"its pickle is of protocol {number}")

    def _frame(self, length: int) -> None:
        if length > len(self._data) - self.at:
            raise CutShort("its pickle ends too early")

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _mark(self) -> None:
        self._push(_MARK)

    def _drop(self) -> None:
        if not self._stack:
            raise Damaged("its pickle drops a value where there is none")
        self._stack.pop()

    def _copy(self) -> None:
        self._push(self._top())

    def _get(self, number: int | str) -> None:
        number = _converted(int, number)
        if number not in self._memo:
            raise Damaged(f"its pickle refers to value {shown(number)}, which is not there")
        self._push(self._memo[number])

    def _put(self, number: int | str) -> None:
        number = int(_converted(int, number))
        if not 0 <= number <= len(self._memo) + _MEMO_GAP:
            raise Damaged(f"its pickle remembers a value as number {shown(number)}, which is not the next one")
        self._memo[number] = self._top()

    def _memoize(self) -> None:
        self._put(len(self._memo))

    # ---------------------------------------------------------------------------------- plain values

    def _none(self) -> None:
        self._push(None)

    def _true(self) -> None:
        self._push(True)

    def _false(self) -> None:
        self._push(False)

    def _integer_line(self, line: str) -> None:
        self._push(line == "01" if line in {"00", "01"} else _converted(int, line.removesuffix("L")))

    def _float_line(self, line: str) -> None:
        self._push(_converted(float, line))

    def _long(self, length: int) -> None:
        if not 0 <= length <= limits.INTEGER:
            raise TooMuch(f"a whole number of {length} bytes, more than {limits.INTEGER}")
        self._push(int.from_bytes(self._take(length), "little", signed=True))

    def _unicode_line(self, line: bytes) -> None:
        try:
            self._push(line.decode("raw-unicode-escape"))
        except UnicodeDecodeError as error:
            raise Damaged("a text in its pickle cannot be decoded") from error

    def _unicode(self, length: int) -> None:
        self._push(_text(bytes(self._take(length))))

    def _old_text(self, length: int) -> None:
        """A text of Python 2, UTF-8 to torch, or its bytes, as numpy had them."""
        raw = bytes(self._take(length))
        try:
            self._push(raw.decode("utf-8"))
        except UnicodeDecodeError:
            self._push(raw)

    def _bytes(self, length: int) -> None:
        self._push(bytes(self._take(length)))

    # ---------------------------------------------------------------------------------- containers

    def _empty_tuple(self) -> None:
        self._push(())

    def _tuple1(self) -> None:
        self._push((self._pop(),))

    def _tuple2(self) -> None:
        second, first = self._pop(), self._pop()
        self._push((first, second))

    def _tuple3(self) -> None:
        third, second, first = self._pop(), self._pop(), self._pop()
        self._push((first, second, third))

    def _tuple(self) -> None:
        self._push(tuple(self._pop_mark()))

    def _empty_list(self) -> None:
        self._push([])

    def _list(self) -> None:
        self._push(self._pop_mark())

    def _append(self) -> None:
        self._extend([self._pop()])

    def _appends(self) -> None:
        self._extend(self._pop_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Record):
            target = target.items_held
        if not isinstance(target, list):
            raise Damaged(f"its pickle puts items into {shown(target)}")
        target.extend(values)

    def _empty_dict(self) -> None:
        self._push({})

    def _dict(self) -> None:
        values = self._pop_mark()
        self._push({})
        self._insert(values)

    def _set_item(self) -> None:
        value, key = self._pop(), self._pop()
        self._insert([key, value])

    def _set_items(self) -> None:
        self._insert(self._pop_mark())

    def _insert(self, values: list[Any]) -> None:
        target = self._top()
        if isinstance(target, Record):
            target = target.fields
        if not isinstance(target, dict) or len(values) % 2:
            raise Damaged(f"its pickle puts keys into {shown(target)}")
        for raw, value in zip(values[::2], values[1::2], strict=True):
            key = self._budget.key(raw)
            if key in target:
                raise Damaged(f"{shown(key)} is in one dictionary twice")
            target[key] = value

    def _empty_set(self) -> None:
        self._budget.made_set()
        self._push(set())

    def _add_items(self) -> None:
        members = self._pop_mark()
        target = self._top()
        if not isinstance(target, set):
            raise Damaged(f"its pickle puts members into {shown(target)}")
        target.update(map(self._budget.key, members))

    def _frozen_set(self) -> None:
        self._push(frozenset(map(self._budget.key, self._pop_mark())))

    # ---------------------------------------------------------------------------------- names and objects

    def _name_lines(self, module: str) -> None:
        self._name(module, _text(self._line()))

    def _name_stack(self) -> None:
        name, module = self._pop(), self._pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise Damaged("its pickle names a class by what is no text")
        self._name(module, name)

    def _name(self, module: str, name: str) -> None:
        if len(module) + len(name) > limits.NAME:
            raise TooMuch(f"the name of a class of {len(module) + len(name):,} characters, more than {limits.NAME}")
        found = current(Name(module, name))
        if found not in self._calls:
            check_name(found)
        self._push(found)

    def _call(self) -> None:
        args, called = self._pop(), self._pop()
        if not isinstance(args, tuple) or not isinstance(called, Name):
            raise Damaged(f"its pickle calls {shown(called)} with {shown(args)}")
        if called not in self._calls:
            raise Unsafe(f"asks to call {shown(str(called))}")
        made = self._calls[called](args)
        self._budget.copied(made, self.at - self._start)
        self._push(made)

    def _new(self) -> None:
        args, kind = self._pop(), self._pop()
        if not isinstance(kind, Name) or not isinstance(args, tuple):
            raise Damaged(f"its pickle makes an object of {shown(kind)}")
        self._push(Record(kind, args))

    def _new_with_keywords(self) -> None:
        keywords = self._pop()
        self._new()
        if not isinstance(keywords, dict):
            raise Damaged("its pickle makes an object with keywords that are none")
        self._budget.copied(keywords, self.at - self._start)
        self._top().fields.update(keywords)

    def _build(self) -> None:
        state, target = self._pop(), self._top()
        if isinstance(target, Array | DType):
            target.set_state(state)
            self._budget.copied(target, self.at - self._start)
        elif isinstance(target, Record):
            # (fields, slots) is what objects with __slots__ have; anything else is a state of the class's own making
            for part in state if isinstance(state, tuple) and len(state) == 2 else (state,):
                if isinstance(part, dict | Record):
                    self._budget.copied(part, self.at - self._start)
                    target.fields.update(part)
        elif not isinstance(target, _STATELESS):
            raise Damaged(f"its pickle gives a state to {shown(target)}")

    def _refer(self) -> None:
        if self._persistent is None:
            raise Damaged("its pickle refers to data outside of it")
        self._push(self._persistent(self._pop()))


def _text(raw: bytes) -> str:
    """UTF-8, also with the halves of characters that pickle writes."""
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise Damaged("a text in its pickle is no UTF-8") from error


def _converted(kind: Any, line: Any) -> Any:  # noqa: ANN401  (int or float)
    try:
        return kind(line)
    except ValueError as error:
        raise Damaged(f"{shown(line)} in its pickle is no number") from error
