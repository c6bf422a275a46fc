"""Registries of folders: algorithms, tasks and architectures of dopsd and of entry points."""

import ast
import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from inspect import get_annotations, getattr_static, isfunction, signature
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Protocol

from dopsd.core.errors import Code, unknown
from dopsd.core.metrics import Metric
from dopsd.core.settings import Section


@dataclass
class Registry:
    """The folders of a package that hold a file `marker`, and the packages of its entry points.

    An entry point `my_algorithm = "my_package.my_algorithm"` in the group `package` names a package
    with the same files as a folder.
    """

    package: str  # the dotted name of the package, which is also the group of the entry points
    kind: str  # the singular noun for messages, such as "task"
    base: type[Section] = Section  # base class of the settings in a folder's config.py
    marker: str = "config"  # name of the module that makes a folder a member
    shared: tuple[str, ...] = ("common",)  # folders that are no members, because members share them
    rooms: tuple[str, ...] = ()  # folders whose own folders are members, named `<room>_<folder>`

    @cached_property
    def packages(self) -> dict[str, str]:
        """Dotted names of packages, by the names that params.yaml uses, sorted."""
        roots = import_module(self.package).__path__
        folders = self._below(self.package, "", list(roots))
        for room in self.rooms:
            inside = [str(Path(root, room)) for root in roots]
            folders |= self._below(f"{self.package}.{room}", f"{room}_", inside)
        plugins = {point.name: point.value for point in entry_points(group=self.package)}
        for name, module in plugins.items():  # names are keys, and folders in runs/
            if not re.fullmatch("[a-z0-9_]+", name) or name in self.shared or not module:
                raise Code.PLUGIN_BROKEN.error(
                    f"entry point {self.package}: {name} = {module}: expected a name of lowercase"
                    f" letters, digits and _, not {' or '.join(self.shared)}, and the package of"
                    " the plug-in"
                )
        if duplicates := sorted(folders.keys() & plugins.keys()):
            raise Code.PLUGIN_BROKEN.error(
                f"entry point {self.package}: {duplicates[0]} = {plugins[duplicates[0]]}: the name"
                " is taken; rename the entry point"
            )
        return dict(sorted((folders | plugins).items()))

    def _below(self, package: str, prefix: str, roots: list[str]) -> dict[str, str]:
        """Return the members in a package's folders, not imported: that may need torch."""
        return {
            f"{prefix}{module.name}": f"{package}.{module.name}"
            for module in iter_modules(roots)
            if module.name not in self.shared
            and any(Path(root, module.name, f"{self.marker}.py").is_file() for root in roots)
        }

    @property
    def names(self) -> list[str]:
        """Names of all members, sorted."""
        return list(self.packages)

    def position(self, name: str) -> int:
        """Return the index of a name: built-in names sorted, then plug-ins sorted.

        Colours go by it, so that a new plug-in changes the colour of no built-in member.
        """
        if name not in self.packages:
            raise Code.UNKNOWN_NAME.error(unknown(f"{self.kind} {name}", self.names))
        by_origin = {  # False sorts before True
            (not package.startswith(f"{self.package}."), member)
            for member, package in self.packages.items()
        }
        return [member for _, member in sorted(by_origin)].index(name)

    def file(self, name: str, file: str) -> str:
        """Return the dotted name of the module `file` in the folder `name`."""
        if name not in self.packages:
            raise Code.UNKNOWN_NAME.error(unknown(f"{self.kind} {name}", self.names))
        return f"{self.packages[name]}.{file}"

    def path(self, name: str, file: str) -> Path | None:
        """Return the path of a file in the folder `name`, which is not imported; None without one.

        To import a folder may need torch.
        """
        try:
            spec = find_spec(self.packages[name])
        except Exception:  # of a plug-in's code; using the plug-in reports it
            return None
        folders = (spec and spec.submodule_search_locations) or ()
        return next((path for f in folders if (path := Path(f, file)).is_file()), None)

    def metrics(self, name: str) -> dict[str, Metric]:
        """Return what the folder `name` logs of its own: `METRICS` of its config.py, if any."""
        return getattr(self.module(name, "config"), "METRICS", {})

    def module(self, name: str, file: str) -> ModuleType:
        """Import the module `file` of the folder `name`."""
        module = self.file(name, file)
        try:
            return import_module(module)
        except ModuleNotFoundError as error:
            if error.name and error.name.startswith(self.packages[name].partition(".")[0]):
                raise Code.PLUGIN_BROKEN.error(
                    f"{self.kind} {name}: {self.packages[name]} has no {file}.py ({error}); add it"
                ) from error
            raise
        except Exception as error:
            if module.startswith(f"{self.package}."):  # our own fault, not that of a plug-in
                raise
            reason = f"{type(error).__name__}: {error}"
            raise Code.PLUGIN_BROKEN.error(
                f"{self.kind} {name}: {module} cannot be imported ({reason})"
            ) from error

    def config_class(self, name: str) -> type[Any]:
        """Return the most derived class of settings that the folder's config.py defines."""
        module = self.module(name, "config")
        classes = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, self.base)
            and value.__module__ == module.__name__
        ]
        bases = {base for value in classes for base in value.__mro__[1:]}
        classes = [value for value in classes if value not in bases]
        if len(classes) != 1:
            raise Code.PLUGIN_BROKEN.error(
                f"{self.kind} {name}: {module.__name__} must define one subclass of"
                f" {self.base.__name__}, but defines {len(classes)}"
            )
        return classes[0]

    def member(self, name: str, file: str, member: str) -> Any:  # noqa: ANN401  # callers know its type
        """Return the attribute `member` of the module `file` in the folder `name`."""
        module = self.module(name, file)
        if not hasattr(module, member):
            raise Code.PLUGIN_BROKEN.error(
                f"{self.kind} {name}: {module.__name__} has no {member}; add it"
            )
        return getattr(module, member)

    def make(  # callers know the type: a protocol
        self, name: str, factory: str, protocol: type[Any], **arguments: object
    ) -> Any:  # noqa: ANN401
        """Call a folder's factory, and check the result against a protocol.

        Args:
            factory: module and function, such as `algorithm.build`.
            **arguments: arguments of the factory, passed by position in this order.
        """
        file, _, member = factory.partition(".")
        function = self.member(name, file, member)
        where = f"{self.kind} {name}: {self.packages[name]}.{factory}({', '.join(arguments)})"
        try:
            signature(function).bind(*arguments.values())
        except TypeError as error:
            raise Code.PLUGIN_BROKEN.error(f"{where}: wrong arguments ({error})") from error
        made = function(*arguments.values())
        missing = [m for m in members_of(protocol) if not hasattr(made, m)]
        if missing := sorted({*missing, *abstract_members(type(made))}):
            raise Code.PLUGIN_BROKEN.error(
                f"{where}: {type(made).__name__} has no {', '.join(missing)}; add the members of "
                f"{protocol.__module__}.{protocol.__name__}"
            )
        return made


def members_of(protocol: type[Any]) -> list[str]:
    """Return the public members of a protocol and of the protocols that it extends."""
    classes = [kind for kind in protocol.__mro__ if Protocol in kind.__bases__]
    names = [name for kind in classes for name in (*get_annotations(kind), *vars(kind))]
    return sorted({name for name in names if not name.startswith("_")})


def abstract_members(kind: type) -> list[str]:
    """Return the abstract methods of its base classes that a class does not define."""
    members = {name: getattr_static(kind, name) for name in dir(kind)}
    return sorted(
        name
        for name, member in members.items()
        if isfunction(member) and "__isabstractmethod__" in vars(member)
    )


def first_line(module: str) -> str:
    """Return the first line of a module's docstring, without importing it; empty without one."""
    spec = find_spec(module)
    text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
