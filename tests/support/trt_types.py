"""The types that a surface is made of: enums, classes, methods and properties, as pybind11 makes them."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any, NamedTuple


class Signature(NamedTuple):
    """A dumped signature: parameters as (name, type, whether it may be left out), and what it returns."""

    parameters: tuple[tuple[str, str, bool], ...]
    returns: str


@cache
def signature(text: str) -> Signature:
    """Read `(name: type = default, ...) -> type`."""
    inside, _, returns = text[1:].rpartition(") -> ")
    parts = re.split(r", (?=\w+: )", inside) if inside else []
    split = (re.fullmatch(r"(\w+): (.*?)( = .*)?", part) for part in parts)
    parameters = tuple((match[1], match[2], match[3] is not None) for match in split if match)
    return Signature(parameters, returns)


class EnumType(type):
    @property
    def __members__(cls: Any) -> dict[str, Any]:
        return {name: type.__getattribute__(cls, name) for name in cls._surface.api["enums"][cls._path]}

    def __getattribute__(cls, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("_"):
            super().__getattribute__("_surface").touched.add(f"{super().__getattribute__('_path')}.{name}")
        return found

    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(f"{cls.__name__}.{name} cannot be set")


class EnumValue:
    _surface: Any
    _path: str

    def __new__(cls, value: int) -> Any:
        return next(one for one in cls.__members__.values() if int(one) == value)  # type: ignore[attr-defined]

    @classmethod
    def _of(cls, name: str, value: int) -> Any:
        made = object.__new__(cls)
        made.__dict__.update(name=name, value=value)
        return made

    def __int__(self) -> int:
        return int(self.__dict__["value"])

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and int(self) == int(other)

    def __hash__(self) -> int:
        return int(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.__dict__['name']}"


def is_users(value: Any) -> bool:
    return isinstance(value, Instance) and "_path" not in vars(type(value))


class ClassType(type):
    def __init__(cls, name: str, bases: tuple[Any, ...], namespace: dict[str, Any]) -> None:
        super().__init__(name, bases, namespace)
        if "_path" in namespace or bases == ():
            return
        base: Any = next(one for one in cls.__mro__ if "_path" in vars(one))
        methods = base._surface.api["classes"][base._path]["methods"]
        for member, function in namespace.items():
            if member.startswith("_") or not callable(function):
                continue
            if member not in methods:
                raise AttributeError(f"{base._path} has no method {member!r} that could be overridden")
            base._surface.touched.add(f"{base._path}.{member}")
            wanted = signature(methods[member][0]).parameters
            inspect.signature(function).bind(None, *[None for _ in wanted])  # TensorRT calls by position

    def __getattribute__(cls, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("_") and hasattr(cls, "_path"):
            cls._surface.touched.add(f"{cls._path}.{name}")
        return found

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__call__(*args, **kwargs)
        if not made._state.get("ready"):
            raise TypeError(f"{cls._path}.__init__() must be called when overriding __init__")
        return made


class Instance(metaclass=ClassType):
    """Base of all classes of a surface."""

    _surface: Any
    _path: str
    _state: dict[str, Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = bytes.__new__(cls, *args) if issubclass(cls, bytes) else object.__new__(cls)
        made.__dict__["_state"] = {}
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        member = inspect.getattr_static(type(self), name, None)
        narrowed = name == "__class__" and issubclass(value, type(self))  # how the bindings' users downcast
        if not isinstance(member, Property) and not is_users(self) and not narrowed:
            raise AttributeError(f"{self._path} of {self._surface.api['version']} has no attribute {name!r}")
        object.__setattr__(self, name, value)


def outline(value: Any) -> Any:
    """The value, or of a surface's object only the name of its class."""
    return value._path if isinstance(value, Instance) else value


def make_init(overloads: list[str]) -> Any:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        name = f"{self._path}.__init__"
        self._surface.touched.add(self._path)
        self._surface.invoke(name, overloads, self, args, kwargs)
        self._state["ready"] = True

    return __init__


class Method:
    def __init__(self, dotted: str, overloads: list[str]) -> None:
        self._dotted = dotted
        self._overloads = overloads

    def __get__(self, target: Any, owner: Any) -> Any:
        if target is None:
            return self
        surface = target._surface
        surface.touched.add(self._dotted)
        return lambda *args, **kwargs: surface.invoke(self._dotted, self._overloads, target, args, kwargs)


class Property:
    def __init__(self, dotted: str, kind: str, settable: bool) -> None:
        self._dotted = dotted
        self._kind = kind
        self._settable = settable

    def __get__(self, target: Any, owner: Any) -> Any:
        if target is None:
            return self
        surface, name = target._surface, self._dotted.rpartition(".")[2]
        surface.touched.add(self._dotted)
        if name in target._state and self._dotted not in surface.returns:
            return surface.convert(self._kind, surface.deref(target._state[name]))
        return surface.convert(self._kind, surface.evaluate(self._dotted, self._kind, target, is_call=False))

    def __set__(self, target: Any, value: Any) -> None:
        surface, name = target._surface, self._dotted.rpartition(".")[2]
        surface.touched.add(self._dotted)
        if not self._settable:
            raise AttributeError(f"property {self._dotted!r} has no setter")
        if not surface._accepts(self._kind, value):
            raise TypeError(f"{self._dotted}: {value!r} is no {self._kind}")
        surface.calls.append((self._dotted, {"value": outline(value)}))
        target._state[name] = surface.hold(value)
