"""Stand-ins for TensorRT's Python modules, made from what the bindings say of themselves.

`Surface("tensorrt-11.4.0.106").module` has the names of that version (as far as `tests/data/trt_api` holds
them) and no others: whatever a version lacks raises AttributeError when it is read, set or overridden, a
property without a setter cannot be set, and a call whose arguments fit none of the dumped signatures raises
TypeError, as pybind11 does. What the objects do is in `trt_behaviour.py`.

Loggers, allocators, monitors and profilers must outlive all that was made with them. The bindings keep some
of them alive; these keep none, and using one that is gone raises ReferenceError instead of crashing.
"""

from __future__ import annotations

import gzip
import inspect
import json
import re
import types
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from tests.support.paths import DATA
from tests.support.trt_behaviour import BEHAVIOUR, DUNDERS
from tests.support.trt_types import (
    ClassType,
    EnumType,
    EnumValue,
    Instance,
    Method,
    Property,
    is_users,
    make_init,
    outline,
    signature,
)

DUMPS = DATA / "trt_api"
_ALIASES = {"IParserError": "ParserError", "IEngineInspector": "EngineInspector", "IBuilder": "Builder"}
_OUTPUT_ALLOCATOR = {
    "reallocate_output": ["(tensor_name: str, memory: capsule, size: int, alignment: int) -> capsule"],
    "reallocate_output_async": [
        "(tensor_name: str, memory: capsule, size: int, alignment: int, stream: int) -> capsule"
    ],
    "notify_shape": ["(tensor_name: str, shape: Dims) -> None"],
}
"""From 10.0 on only the docstring of the class names what may be overridden."""
_MEMBERS = ("methods", "properties", "values")


@cache
def _text(dump: str) -> bytes:
    return gzip.decompress((DUMPS / f"{dump}.json.gz").read_bytes())


def load(dump: str) -> dict[str, Any]:
    """A dump as it lies in the data folder; see the README there."""
    api: dict[str, Any] = json.loads(_text(dump))
    return api


class Surface:
    """One version's surface, and a record of what of it was used.

    `returns` replaces what members do, by dotted name: a value, an exception to raise, or a function of the
    object and the arguments. `without` takes one name away, as if this version did not have it.
    `touched` collects the dotted names that were looked up, `calls` each call with its arguments (of objects
    only the class, so that they can go).
    """

    def __init__(self, dump: str, returns: Mapping[str, Any] | None = None, without: str = "") -> None:
        self.api = load(dump)
        if not self.api["classes"]["IOutputAllocator"]["methods"]:
            self.api["classes"]["IOutputAllocator"]["methods"] = dict(_OUTPUT_ALLOCATOR)
        self.returns = {name: value for name, value in (returns or {}).items() if self._known(name)}
        if without:
            self._remove(without)
        self.touched: set[str] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.dangling: list[str] = []  # uses of collected objects where no exception can tell
        self._types: dict[str, Any] = {}
        self.module = _Module(self)

    def names(self, cls: str) -> set[str]:
        """The members of a class or an enum; empty if there is no such class."""
        found = self.api["classes"].get(cls, {})
        return {name for kind in _MEMBERS for name in found.get(kind, ())} | set(
            self.api["enums"].get(cls, ())
        )

    def members(self) -> set[str]:
        """The members of all classes together."""
        return {name for cls in self.api["classes"] for name in self.names(cls)}

    def has(self, dotted: str) -> bool:
        """Whether this version has a name: `Builder`, `Builder.reset`, `BuilderFlag.TF32`."""
        cls, _, member = dotted.rpartition(".")
        if cls:
            return member in self.names(cls)
        return any(dotted in self.api[kind] for kind in ("classes", "enums", "functions"))

    def called(self, dotted: str) -> list[dict[str, Any]]:
        """The arguments of every call of a member, by parameter name."""
        return [arguments for name, arguments in self.calls if name == dotted]

    def _known(self, dotted: str) -> bool:
        return dotted.endswith(".__init__") or self.has(dotted)

    def _remove(self, dotted: str) -> None:
        cls, _, member = dotted.rpartition(".")
        for kind in ("classes", "enums", "functions"):
            self.api[kind].pop(dotted, None)
        self.api["enums"].get(cls, {}).pop(member, None)
        found = self.api["classes"].get(cls, {"bases": ()})
        for name in (cls, *found["bases"]):
            for kind in _MEMBERS:
                self.api["classes"].get(name, {}).get(kind, {}).pop(member, None)

    # ── types ───────────────────────────────────────────────────────────────────────────────────────────

    def type(self, name: str) -> Any:
        """The class or enum of that name."""
        if name not in self._types:
            enum = self.api["enums"].get(name)
            self._types[name] = self._make_enum(name, enum) if enum is not None else self._make_class(name)
        return self._types[name]

    def member(self, enum: str, name: str) -> Any:
        """A member of an enum, without leaving a trace in `touched`."""
        return type.__getattribute__(self.type(enum), name)

    def _make_enum(self, path: str, values: Mapping[str, int]) -> Any:
        enum = EnumType(path.rpartition(".")[2], (EnumValue,), {"_surface": self, "_path": path})
        for name, value in values.items():
            first = next(other for other, same in values.items() if same == value)
            type.__setattr__(enum, name, enum._of(first, value))
        return enum

    def _make_class(self, name: str) -> Any:
        found = self.api["classes"][name]
        bases = tuple(self.type(base) for base in found["bases"][:1]) or (Instance,)
        namespace: dict[str, Any] = {"_surface": self, "_path": name, "__init__": make_init(found["init"])}
        for member, overloads in found["methods"].items():
            namespace[member] = Method(f"{name}.{member}", overloads)
        for member, (kind, settable) in found["properties"].items():
            namespace[member] = Property(f"{name}.{member}", kind, settable)
        for member, kind in found["values"].items():
            nested = f"{name}.{member}", f"{name}.{kind}"
            known = [path for path in nested if path in self.api["enums"]]
            namespace[member] = self.type(known[0]) if known else None
            if known == [nested[1]]:
                namespace[member] = self.member(known[0], member)
        if name == "IHostMemory":
            bases = (*bases, bytes)  # the one class with the buffer protocol
        return ClassType(name, bases, namespace | DUNDERS.get(name, {}))

    def make(self, path: str, payload: bytes = b"", /, **state: Any) -> Any:
        """An object as TensorRT itself hands it out."""
        cls = self.type(path)
        made = cls.__new__(cls, payload)
        made._state.update(state, ready=True)
        return made

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────

    def invoke(self, dotted: str, overloads: Sequence[str], target: Any, args: Any, kwargs: Any) -> Any:
        """Call a member (or, with no target, a function) as pybind11 would."""
        arguments, returns = self._bind(dotted, overloads, args, kwargs)
        self.calls.append((dotted, {name: outline(value) for name, value in arguments.items()}))
        return self.convert(returns, self.evaluate(dotted, returns, target, arguments.values()))

    def evaluate(
        self, dotted: str, returns: str, target: Any, arguments: Iterable[Any] = (), *, is_call: bool = True
    ) -> Any:
        """What a member gives: what the test says, else what `trt_behaviour` says, else a bland value."""
        if dotted in self.returns:
            told = self.returns[dotted]
            if isinstance(told, BaseException):
                raise told
            return told(target, *arguments) if callable(told) else told
        if dotted in BEHAVIOUR:
            return BEHAVIOUR[dotted](self, target, *arguments)
        return self._bland(returns, is_call=is_call)

    def convert(self, kind: str, value: Any) -> Any:
        """Shapes leave TensorRT as Dims, which are no tuples."""
        if kind == "Dims" and isinstance(value, (tuple, list)):
            return self.make("Dims", dims=tuple(value))
        if kind.lower() == "list[dims]":
            return [self.convert("Dims", dims) for dims in value]
        return value

    def call_back(self, reference: Any, method: str, **arguments: Any) -> Any:
        """Call what Python code overrode, with the arguments in the order that this version dumps."""
        target = self.deref(reference)
        found: Any = next(base for base in type(target).__mro__ if "_path" in vars(base))
        text = self.api["classes"][found._path]["methods"][method][0]
        overriding = inspect.getattr_static(type(target), method)
        if isinstance(overriding, Method):
            raise NotImplementedError(f'Tried to call pure virtual function "{found._path}::{method}"')
        dumped = signature(text)
        result = overriding(target, *[arguments[name] for name, _, _ in dumped.parameters])
        kind = "int" if "apsule" in dumped.returns else dumped.returns  # addresses come as integers
        if kind != "None" and not self._accepts(kind, result):
            raise TypeError(f"{found._path}.{method} returned {result!r}, not {kind}")
        return result

    def hold(self, value: Any) -> Any:
        """Objects of Python's own classes are held weakly."""
        return weakref.ref(value) if is_users(value) else value

    def deref(self, value: Any) -> Any:
        """What `hold` was given."""
        if not isinstance(value, weakref.ref):
            return value
        alive = value()
        if alive is None:
            raise ReferenceError("TensorRT uses an object that Python has collected")
        return alive

    def _bind(
        self, dotted: str, overloads: Sequence[str], args: Any, kwargs: Any
    ) -> tuple[dict[str, Any], str]:
        for text in overloads:
            dumped = signature(text)
            names = [name for name, _, _ in dumped.parameters]
            given = dict(zip(names, args, strict=False)) | kwargs
            unknown = len(args) > len(names) or not set(kwargs) <= set(names[len(args) :])
            missing = any(name not in given and not optional for name, _, optional in dumped.parameters)
            kinds = {name: kind for name, kind, _ in dumped.parameters}
            if not unknown and not missing and all(self._accepts(kinds[n], v) for n, v in given.items()):
                return {name: given[name] for name in names if name in given}, dumped.returns
        known = "; ".join(overloads) or "none, it cannot be made from Python"
        raise TypeError(f"{dotted}: incompatible arguments {args} {kwargs}; supported: {known}")

    def _accepts(self, kind: str, value: Any) -> bool:
        kind = _ALIASES.get(kind, kind)
        element = re.fullmatch(r"(?:[Ll]ist|Sequence)\[(.*)\]", kind)
        if element:
            return isinstance(value, (list, tuple)) and all(self._accepts(element[1], one) for one in value)
        if kind in self.api["enums"]:
            return type(value) is self.type(kind)
        if kind == "Dims":
            return self._accepts("list[int]", list(value) if type(value) is self.type("Dims") else value)
        if kind in self.api["classes"]:
            return value is None or isinstance(value, self.type(kind))
        accepted = {
            "int": hasattr(value, "__index__"),
            "SupportsInt": hasattr(value, "__index__"),
            "float": isinstance(value, (int, float)),
            "SupportsFloat": isinstance(value, (int, float)),
            "str": isinstance(value, str),
            "bool": isinstance(value, bool),
            "buffer": isinstance(value, (bytes, bytearray, memoryview)),
            "capsule": value is None or isinstance(value, Instance) or type(value).__name__ == "PyCapsule",
            "list": isinstance(value, list),
            "tuple": isinstance(value, tuple),
        }
        accepted |= {"Buffer": accepted["buffer"], "CapsuleType": accepted["capsule"]}
        return accepted.get(kind, True)

    def _bland(self, kind: str, *, is_call: bool) -> Any:
        kind = _ALIASES.get(kind, kind)
        if kind in self.api["enums"]:
            return self.member(kind, next(iter(self.api["enums"][kind])))
        if kind in self.api["classes"]:
            return self.make(kind) if is_call else None
        plain = {"bool": is_call, "int": 0, "float": 0.0, "str": ""}
        return [] if kind.lower().startswith(("list", "tuple")) else plain.get(kind)


class _Module(types.ModuleType):
    def __init__(self, surface: Surface) -> None:
        super().__init__(surface.api["module"])
        self.__version__ = surface.api["version"]
        self._surface = surface

    def __getattr__(self, name: str) -> Any:
        surface = self._surface
        if not surface.has(name):
            raise AttributeError(
                f"{self.__name__} {self.__version__} has no {name!r}, or dump_surface.py does not keep it"
            )
        surface.touched.add(name)
        if name in surface.api["functions"]:
            overloads = surface.api["functions"][name]
            return lambda *args, **kwargs: surface.invoke(name, overloads, None, args, kwargs)
        return surface.type(name)
