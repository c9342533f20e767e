"""``lab data``: stage data sets, list them, check them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from data_prep.errors import Damaged, DataError, NotStaged, UnknownDataset
from data_prep.root import data_root

_root = click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="The data root. Default: $LAB_DATA, else data/ of a checkout, else ~/.local/share/distributed-training-labs.",
)
_names = click.argument("names", nargs=-1, required=True, metavar="NAME...")


@click.group()
def data() -> None:
    """Stage the data sets, once for everybody."""


@data.command("list")
@_root
def list_command(root: Path | None) -> None:
    """Show which sets are staged, their sources and their provenance."""
    from data_prep import made_up

    root = data_root(root)
    click.echo(f"data root: {root}")
    for name in _known(root):
        click.echo(f"{name:<20} {_state(name, root)}")
    for name in made_up.MADE_UP:
        click.echo(f"{name:<23} made on demand, synthetic")


@data.command()
@_names
@_root
@click.option(
    "--mirror",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with the official files, plain or gzipped; tried first.",
)
def fetch(names: tuple[str, ...], root: Path | None, mirror: Path | None) -> None:
    """Stage the data sets NAME... that are not staged yet."""
    from data_prep import catalogue, staging

    with _bad_names():
        for name in names:
            catalogue.entry(name)
    _each(names, lambda name: staging.fetch(name, root, mirror=mirror, report=click.echo))


@data.command()
@_names
@_root
def verify(names: tuple[str, ...], root: Path | None) -> None:
    """Hash every file of the staged data sets NAME... again."""

    from data_prep import staged

    def check(name: str) -> None:
        files = staged.verify(name, root)
        click.echo(f"{name}: {len(files)} files have not changed since they were staged")

    with _bad_names():
        _each(names, check)


@data.command()
@click.argument("name")
@_root
@click.option(
    "--files",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the set's files, in the official layout, into this folder; stage nothing.",
)
def synth(name: str, root: Path | None, files: Path | None) -> None:
    """Make a small synthetic set in place of NAME, for tests and for machines without data."""

    from data_prep import staging

    def make(name: str) -> None:
        if files is None:
            staging.synthesize(name, root, report=click.echo)
            return
        try:
            staging.synthesizable(name).synthesize(files)
        except OSError as error:
            raise DataError(f"{name}: cannot write in {files} ({error.strerror or error}): choose another") from error
        click.echo(f"{name}: a synthetic set in its official layout is in {files}")

    with _bad_names():
        _each((name,), make)


def _each(names: tuple[str, ...], work) -> None:
    """Do `work` for every name, also after one has failed; the last failure ends the command."""
    failure = None
    for name in dict.fromkeys(names):
        try:
            work(name)
        except UnknownDataset:
            raise
        except DataError as error:
            if failure is not None:
                click.echo(f"Error: {failure}", err=True)
            failure = error
    if failure is not None:
        raise click.ClickException(str(failure)) from failure


@contextmanager
def _bad_names() -> Iterator[None]:
    try:
        yield
    except UnknownDataset as error:
        raise click.BadParameter(str(error), param_hint="NAME") from error


def _known(root: Path) -> list[str]:
    """The catalogue's names, then those of other folders that hold a staged set."""
    from data_prep import catalogue, staged

    others = sorted(path.parent.name for path in root.glob(f"[!.]*/{staged.DESCRIPTION}"))
    return list(dict.fromkeys([*catalogue.CATALOGUE, *others]))


def _state(name: str, root: Path) -> str:
    from data_prep import staged

    try:
        dataset = staged.read(name, root)
    except NotStaged:
        return f"not staged: run `lab data fetch {name}`"
    except Damaged as error:
        return f"damaged: {error}"
    counts = " + ".join(f"{len(dataset.arrays[f'{split}_labels'])}" for split in ("train", "test"))
    state = "staged" if dataset.path.parent == root else "shipped"
    return f"{state:<8} {counts:<14} {dataset.provenance:<10} from {dataset.source}"
