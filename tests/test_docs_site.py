"""The documentation site: it builds without a warning, its links lead somewhere, it gives away nothing, it needs no network."""

import ast
import base64
import importlib
import importlib.util
import inspect
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

if importlib.util.find_spec("furo") is None:
    pytest.skip("the site's generator is not installed: `make docs` installs it", allow_module_level=True)

# DESIGN's "Public names": what labs, checks and outside tests lean on.
PUBLIC_NAMES = {
    "course_lib.models": "WideResNet HomeworkResNet cifar_resnet resnet50v2 resnet152v2 ParallelSGDNet",
    "course_lib.optim": "NovoGrad KFAC linear_scaling sqrt_scaling",
    "course_lib.distributed": (
        "launch ring_all_reduce trace_messages MessageTrace.messages MessageTrace.bytes_sent NaiveDataParallel"
        " OverlappedDataParallel BucketedDataParallel NaiveDataParallel.finish_gradient_synchronization"
        " OverlappedDataParallel.finish_gradient_synchronization BucketedDataParallel.finish_gradient_synchronization"
        " ShardedOptimizer ShardedDataParallel ShardedDataParallel.finish_gradient_synchronization"
        " ShardedDataParallel.gather_full_parameters ColumnParallelLinear RowParallelLinear Pipeline"
    ),
    "course_lib.metrics": "speedup efficiency",
    "assessment_print": "assessment_print",
}
ANSWERS = "course_lib/exercises/answers"
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
PIXEL = base64.b64encode(bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360000000020001e221bc330000000049454e44ae426082"
)).decode()  # fmt: skip


class Page(HTMLParser):
    """Ids, links, loaded resources, pictures and text of one page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded, self.pictures, self.text = set(), [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag in ("script", "img", "iframe", "source") and "src" in attributes:
            self.loaded.append(attributes["src"])
        if tag == "link" and attributes.get("rel") not in ("canonical", "author"):
            self.loaded.append(attributes["href"])
        if tag == "img":
            self.pictures.append((attributes["src"], (attributes.get("alt") or "").strip()))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def executed(tmp_path_factory, repository):
    """A folder as `lab run` leaves it: lab 01 with its solutions, and an output of every kind below one of them."""
    notebook = json.loads((repository / "labs/01_single_gpu/01_single_gpu.ipynb").read_text())
    cell = next(cell for cell in notebook["cells"] if "BEGIN SOLUTION" in "".join(cell["source"]))
    cell["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": ["printed by the run\n"]},
        {"output_type": "stream", "name": "stderr", "text": ["a warning of the run\n"]},
        {"output_type": "display_data", "metadata": {"image/png": {"alt": "a figure of the run"}}, "data": {"image/png": PIXEL}},
        {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<b>markup of the run</b>"}},
        {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["traceback of the run"]},
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp("executed") / "01_single_gpu"
    folder.mkdir()
    (folder / "01_single_gpu.ipynb").write_text(json.dumps(notebook))
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "01_single_gpu.ipynb").write_text(
        json.dumps(notebook).replace("printed by the run", "half a run")
    )
    return folder.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory, repository, executed):
    """The built site. Without a network, where this machine can take one away."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, repository / "docs/site/build.py", "-o", folder, "--executed", executed]
    alone = ["unshare", "--net"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode == 0:
        command = [*alone, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site): Page(path) for path in sorted(site.rglob("*.html"))}


def test_every_link_and_anchor_inside_the_site_exists(site, pages):
    missing = []
    for name, page in pages.items():
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / name.parent / unquote(parts.path)).resolve() if parts.path else site / name
            ids = pages[target.relative_to(site)].ids if target.suffix == ".html" and target.is_file() else None
            if not target.is_file() or (parts.fragment and ids is not None and unquote(parts.fragment) not in ids):
                missing.append(f"{name}: {link}")
    assert missing == []


def test_no_page_loads_anything_from_a_network(site, pages):
    remote = re.compile(r"""^(https?:)?//""")
    assert [(name, url) for name, page in pages.items() for url in page.loaded if remote.match(url)] == []
    style = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"')\s]+)""")
    assert [
        (path.name, style.findall(path.read_text())) for path in site.rglob("*.css") if style.search(path.read_text())
    ] == []


def test_every_picture_has_alternative_text(pages):
    pictures = [(name, *picture) for name, page in pages.items() for picture in page.pictures]
    assert len(pictures) > 8
    assert [picture for picture in pictures if not picture[2]] == []


def test_every_public_name_is_documented(pages):
    ids = set().union(*(page.ids for page in pages.values()))
    wanted = {f"{module}.{name}" for module, names in PUBLIC_NAMES.items() for name in names.split()}
    assert wanted - ids == set()


def test_all_that_the_labs_modules_name_as_public_is_documented(repository, pages):
    ids = set().union(*(page.ids for page in pages.values()))
    cells = [cell for path in repository.glob("labs/*/*.ipynb") for cell in json.loads(path.read_text())["cells"]]
    code = [
        re.sub(r"^\s*[%!].*", "", "".join(cell["source"]), flags=re.M) for cell in cells if cell["cell_type"] == "code"
    ]
    imports = [node for text in code for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    imported = {
        (node.module, name.name) for node in imports for name in node.names if node.module.startswith("course_lib")
    }
    wanted = set()
    for module, name in imported:
        value = getattr(importlib.import_module(module), name, None) or importlib.import_module(f"{module}.{name}")
        wanted.add(f"module-{value.__name__}" if inspect.ismodule(value) else f"{module}.{name}")
        used = value if inspect.ismodule(value) else sys.modules[module]
        wanted |= {f"{used.__name__}.{one}" for one in getattr(used, "__all__", ())}
    assert len(wanted) > 150
    assert wanted - ids == set()


def plain(text):
    """Letters and digits alone, so that markup, quotes and line breaks make no difference."""
    return re.sub(r"[^0-9a-zα-ωσ]+", "", text.lower())


def secret_and_public_lines(repository):
    """Lines that only an author may read, and the text that everybody may; told apart here without the release's code."""
    secret, public = [], []
    begin, end = (
        re.compile(r"BEGIN (SOLUTION|HIDDEN TESTS|MARK SCHEME)"),
        re.compile(r"END (SOLUTION|HIDDEN TESTS|MARK SCHEME)"),
    )
    for path in sorted(repository.glob("labs/*/*.ipynb")):
        for cell in json.loads(path.read_text())["cells"]:
            source = "".join(cell["source"])
            inside = whole = cell["metadata"].get("nbgrader", {}).get("solution", False) and not begin.search(source)
            for line in source.split("\n"):
                if begin.search(line):
                    inside = True
                elif end.search(line):
                    inside = whole
                else:
                    (secret if inside else public).append(line)
    for path in sorted((repository / ANSWERS).rglob("*.py")):
        secret += path.read_text().split("\n")
    for path in sorted(set((repository / "course_lib").rglob("*.py")) - set((repository / ANSWERS).rglob("*.py"))):
        nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, DOCUMENTED))
        public += [ast.get_docstring(node) or "" for node in nodes]  # the library that students have
    for pattern in ("docs/**/*.md", "docs/results/*.json", "labs/*.md", "deploy/*/*.md", "*.md"):
        public += [path.read_text() for path in sorted(repository.glob(pattern))]
    return secret, plain("".join(public))


def test_no_solution_and_no_model_answer_is_on_the_site(site, pages, repository):
    secret, public = secret_and_public_lines(repository)
    lines = {plain(line) for line in secret}
    lines = {line for line in lines if len(line) >= 25 and line not in public}
    assert len(lines) > 1500
    shown = {name: plain("".join(page.text)) for name, page in pages.items()}
    for path in site.rglob("*"):
        if path.suffix in (".js", ".txt", ".json", ".ipynb", ".md", ".rst") and "mathjax" not in str(path).lower():
            shown[path.relative_to(site)] = plain(path.read_text(encoding="utf-8"))
    assert [(str(name), line) for name, text in shown.items() for line in lines if line in text] == []


def test_outputs_of_an_executed_lab_are_shown_below_the_release_s_code(pages):
    page = next(page for name, page in pages.items() if name.name == "01_single_gpu.html")
    text = "".join(page.text)
    assert "printed by the run" in text and "YOUR CODE HERE" in text
    assert "a figure of the run" in [alt for _, alt in page.pictures]
    assert not re.search(r"(a warning|markup|traceback) of the run|half a run", text)


def test_a_folder_without_executed_labs_is_one_clear_line(tmp_path, repository):
    command = [sys.executable, repository / "docs/site/build.py", "-o", tmp_path / "site", "--executed", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no executed notebook of a lab" in done.stderr and not (tmp_path / "site").exists()


def test_a_folder_that_is_no_site_is_not_replaced(tmp_path, repository):
    (tmp_path / "thesis.txt").write_text("mine")
    command = [sys.executable, str(repository / "docs/site/build.py"), "-o", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "is no site" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"
