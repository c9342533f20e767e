"""Pages of the library's reference: the public names of the modules that labs import, from their docstrings.

griffe reads the source and imports nothing; napoleon reads the numpy-style docstrings.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import griffe
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import NumpyDocstring

__all__ = ["api_pages", "modules_of_labs"]

PACKAGE = "course_lib"
OUTSIDE = ("assessment_print",)  # modules beside the package that labs import
# Types are prose here ("Tensor ``(3,)``, on the device"), so no word of them is made a link.
STYLE = Config(napoleon_use_param=False, napoleon_use_rtype=False)


def api_pages(repository: Path, notebooks: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Name and reStructuredText of each page: one for a package directly below `course_lib`, with its modules."""
    loader = griffe.GriffeLoader(search_paths=[repository], allow_inspection=False)
    for name in (PACKAGE, *OUTSIDE):
        loader.load(name)
    loader.resolve_aliases(implicit=True, external=False)
    packages: dict[str, list[str]] = {name: [name] for name in OUTSIDE}
    for module in sorted(modules_of_labs(notebooks, loader.modules_collection)):
        packages.setdefault(".".join(module.split(".")[:2]), []).append(module)
    for package, members in packages.items():
        lines, shown = _heading(package, "="), {}
        for module in dict.fromkeys([package, *members]):
            lines += _module(loader.modules_collection[module], shown, top=module == package)
        yield package.removeprefix(PACKAGE + "."), "\n".join(lines) + "\n"


def modules_of_labs(notebooks: Iterable[Path], modules: griffe.ModulesCollection) -> set[str]:
    """The library's modules from which labs import, or that they import as such."""
    found = set()
    for notebook in notebooks:
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] != "code":
                continue
            source = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
                    for name in (alias.name for alias in node.names):
                        is_module = name not in _public(modules[node.module]) and modules[node.module][name].is_module
                        found.add(f"{node.module}.{name}" if is_module else node.module)
    return found


def _module(module: griffe.Module, shown: dict[str, str], top: bool) -> list[str]:
    """A module's section. `shown` has what the page has already, and where: it is not described twice."""
    lines = [] if top else _heading(module.path, "-")
    lines += [f".. py:module:: {module.path}", f".. py:currentmodule:: {module.path}", ""]
    lines += [*_text(module.docstring), ""]
    for name in sorted(_public(module), key=str.lower):
        member = module[name].final_target if module[name].is_alias else module[name]
        if member.is_module:  # a function that has the name of its module
            member = member[name]
        earlier = shown.setdefault(member.path, f"{module.path}.{name}")
        if earlier == f"{module.path}.{name}":
            lines += _object(member, name)
        else:
            lines += [f".. py:data:: {name}", "", f"   The same as :py:obj:`{earlier}`.", ""]
    return lines


def _public(module: griffe.Module) -> set[str]:
    """`__all__`; where there is none, what an `__init__.py` imports by name."""
    listed = module.members.get("__all__")
    if listed is not None and listed.is_alias:
        module = listed.final_target.parent
    if module.exports is not None:
        return {str(name) for name in module.exports}
    return {
        name for name, member in module.members.items() if member.is_alias and member.target_path.startswith(PACKAGE)
    }


def _object(member: griffe.Object, name: str) -> list[str]:
    """The directive of one name, and below it, of a class, those of its public methods and attributes."""
    if member.is_function:
        lines = [f".. py:function:: {name}{_signature(member)}", "", *_indented(_text(member.docstring))]
    elif member.is_class:
        init = member.all_members.get("__init__") if "__init__" in member.members else None
        lines = [f".. py:class:: {name}{_signature(init, method=True) if init else ''}", ""]
        lines += _indented(_text(member.docstring))
        inherited = {key: value.final_target for key, value in member.inherited_members.items()}
        for inner_name, inner in (inherited | member.members).items():
            if not inner_name.startswith("_") and not inner.is_alias and f"   .. attribute:: {inner_name}" not in lines:
                lines += ["", *_indented(_inner(inner, inner_name))]
    else:
        lines = [f".. py:data:: {name}", "", *_indented(_text(member.docstring))]
    return [*lines, ""]


def _inner(member: griffe.Object, name: str) -> list[str]:
    text = _indented(_text(member.docstring))
    if member.is_function:
        return [f".. py:method:: {name}{_signature(member, method=True)}", "", *text, ""]
    kind = "property" if "property" in member.labels else "attribute"
    annotation = [f"   :type: {member.annotation}"] if member.annotation is not None else []
    return [f".. py:{kind}:: {name}", *annotation, "", *text, ""]


def _signature(function: griffe.Function, method: bool = False) -> str:
    """Parameters with their kinds, annotations and defaults, as in the source."""
    parameters = list(function.parameters)[1 if method and "staticmethod" not in function.labels else 0 :]
    shown: list[str] = []
    kind = griffe.ParameterKind
    for index, parameter in enumerate(parameters):
        before = parameters[index - 1].kind if index else None
        if before is kind.positional_only and parameter.kind is not before:
            shown.append("/")
        if parameter.kind is kind.keyword_only and before not in (kind.keyword_only, kind.var_positional):
            shown.append("*")
        stars = {kind.var_positional: "*", kind.var_keyword: "**"}.get(parameter.kind, "")
        text = stars + parameter.name
        if parameter.annotation is not None:
            text += f": {parameter.annotation}"
        if parameter.default is not None and not stars:
            text += f" = {parameter.default}" if parameter.annotation is not None else f"={parameter.default}"
        shown.append(text)
    returns = f" -> {function.returns}" if function.returns is not None and function.name != "__init__" else ""
    return f"({', '.join(shown)}){returns}"


def _text(docstring: griffe.Docstring | None) -> list[str]:
    if not docstring:
        return []
    text = re.sub(r"(``.*?``)|\|(?=\S)", lambda match: match[1] or r"\|", docstring.value)  # |t| is no substitution
    return NumpyDocstring(text, STYLE).lines()


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"   {line}" if line else "" for line in lines]


def _heading(text: str, underline: str) -> list[str]:
    return [text, underline * len(text), ""]
