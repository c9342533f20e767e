"""Notebooks that a test writes, executes in a warm kernel, and reads."""

import nbformat
import papermill


def write_notebook(folder, *sources):
    """Write a notebook with these cells; returns its path."""
    cells = [nbformat.v4.new_code_cell(source.strip("\n")) for source in sources]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=metadata), folder / "in.ipynb")
    return str(folder / "in.ipynb")


def outputs(folder):
    """The outputs of each executed cell."""
    cells = nbformat.read(folder / "out.ipynb", as_version=4).cells
    return [cell.outputs for cell in cells if cell.cell_type == "code"]


def printed(folder):
    """The text that each executed cell printed."""
    return ["".join(output.text for output in cell if output.output_type == "stream") for cell in outputs(folder)]


def execute(server, folder, *sources, **engine):
    """Execute cells in a warm kernel; returns what each printed."""
    papermill.execute_notebook(
        write_notebook(folder, *sources), str(folder / "out.ipynb"),
        engine_name="lab-warm", warm_server=server.path, progress_bar=False, **engine,
    )  # fmt: skip
    return printed(folder)
