"""Finding a lab, its parameters and its profiles."""

import ast
import contextlib
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from course_lib.runs.parameters import ParameterError, Rule, check_values, did_you_mean, read_rules
from course_lib.system.nbformat_import import leave_addresses_out

__all__ = ["Lab", "UnknownLabError", "find_lab", "match_lab"]


class UnknownLabError(ValueError):
    """No such lab; the message lists those there are."""


@dataclass(frozen=True)
class Lab:
    """A numbered lab: its name (``01_single_gpu``) and its notebook."""

    name: str
    notebook: Path

    def profiles(self) -> dict[str, dict[str, Any]]:
        """The parameter sets of ``profiles.yaml`` beside the notebook, by name; without one, `laptop` alone."""
        try:
            return yaml.safe_load((self.notebook.parent / "profiles.yaml").read_text())
        except FileNotFoundError:
            return {"laptop": {}}  # the notebook's own values

    def parameters(self, profile: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """The notebook's defaults, overlaid by a profile, overlaid by `overrides`.

        Values in `overrides` may be text, as from a command line; it is read as YAML and must have the default's type.

        Raises
        ------
        ParameterError
            Unknown profile or parameter, or a value of the wrong type.
        """
        profiles = self.profiles()
        if profile not in profiles:
            raise ParameterError(f"{self.name} has no profile {profile!r}; it has {', '.join(profiles)}")
        return self.overlaid(self.defaults(), {**profiles[profile], **overrides})

    def overlaid(self, values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """`values`, all of the notebook's parameters, overlaid by `overrides`; raises as `parameters` does."""
        values = dict(values)
        for name, value in overrides.items():
            if name not in values:
                hint = did_you_mean(name, values)
                raise ParameterError(
                    f"{self.name} has no parameter {name!r}; {hint + ' It' if hint else 'it'} has {', '.join(values)}"
                )
            values[name] = _like(name, value, values[name])
        return values

    def defaults(self) -> dict[str, Any]:
        """The values in the cell tagged ``parameters``."""
        return {
            statement.targets[0].id: ast.literal_eval(statement.value)
            for statement in ast.parse(self._parameters_cell()).body
            if isinstance(statement, ast.Assign)
        }

    def rules(self) -> dict[str, Rule]:
        """The rules of its parameters, from the comments of the same cell."""
        return read_rules(self._parameters_cell())

    def check(self, values: Mapping[str, Any]) -> None:
        """Raise `ParameterError` for the first parameter that is invalid on this machine."""
        check_values(values, self.rules())

    def _parameters_cell(self) -> str:
        leave_addresses_out()
        import nbformat

        notebook = nbformat.read(self.notebook, as_version=4)
        cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
        if len(cells) != 1:
            raise ParameterError(f"{self.notebook} has {len(cells)} cells tagged `parameters`; one is needed")
        return cells[0].source


def _like(name: str, value: Any, default: Any) -> Any:
    if isinstance(value, str) and not isinstance(default, str):
        try:
            value = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ParameterError(f"{name} = {value!r} cannot be read") from None
    if isinstance(default, float) and not isinstance(value, bool):
        with contextlib.suppress(TypeError, ValueError):
            return float(value)  # also of text: YAML 1.1 reads 1e-3 as text
    if type(value) is not type(default):
        raise ParameterError(f"{name} = {value!r}: a value like {default!r} ({type(default).__name__}) is needed")
    return value


def find_lab(name: str) -> Lab:
    """Find a lab by ``1``, ``01`` or ``01_single_gpu``, or by the path of a notebook or of its folder.

    A name means the copy in the working folder or in one above it: ``01_single_gpu/`` as ``lab start`` makes it, or the
    notebook itself; then ``labs/`` there; then ``labs/`` of the checkout that course_lib is in. A name must not run
    another person's code. Submissions below nbgrader's ``submitted/`` and ``autograded/`` are therefore found by path
    only, and so are the contents of a folder above in which everybody may write, such as ``/tmp``.

    Raises
    ------
    UnknownLabError
    """
    path = Path(name)
    if path.suffix == ".ipynb":
        if not path.is_file():
            raise UnknownLabError(f"no notebook {name} in {Path.cwd()}")
        return Lab(path.stem, path.resolve())
    if name == "." or "/" in name:
        notebook = path.resolve() / f"{path.resolve().name}.ipynb"
        if notebook.is_file():
            return Lab(notebook.stem, notebook)
    known: set[str] = set()
    for folder in [Path.cwd(), *Path.cwd().parents, Path(__file__).resolve().parents[2]]:
        if not {"submitted", "autograded"}.isdisjoint(folder.parts):
            continue
        if folder in Path.cwd().parents and folder.stat().st_mode & stat.S_IWOTH:
            continue
        for pattern in ("", "[0-9][0-9]_*/", "labs/[0-9][0-9]_*/"):
            labs = {notebook.stem: notebook for notebook in folder.glob(f"{pattern}[0-9][0-9]_*.ipynb")
                    if pattern == "" or notebook.stem == notebook.parent.name}  # fmt: skip
            with contextlib.suppress(UnknownLabError):
                match = match_lab(name, labs)
                return Lab(match, labs[match])
            known |= labs.keys()
    if not known:
        raise UnknownLabError(f"no lab in {Path.cwd()} or above; `lab start {name or '01'}` puts one here")
    raise UnknownLabError(f"no lab {name!r}; there are {', '.join(sorted(known))}; `lab start` puts another here")


def match_lab(name: str, known: Iterable[str]) -> str:
    """The one of `known` that is meant by ``1``, ``01`` or ``01_single_gpu``.

    Raises
    ------
    UnknownLabError
    """
    number = f"{int(name):02d}" if name.isascii() and name.isdigit() else None
    names = sorted(known)  # 01_single_gpu before 01_single_gpu-Copy1
    for lab in names:
        if name == lab or number == lab[:2]:
            return lab
    raise UnknownLabError(f"no lab {name!r}; there are {', '.join(names)}")
