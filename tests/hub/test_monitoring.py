"""The dashboard and the scrape: names that are asked for are names that are emitted."""

import json
import re

import pytest
import yaml
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families
from test_hub_configuration import configure  # noqa: F401

from autograde.batch.queue_metrics import write_queue_metrics
from autograde.reports.report.queue_page import STATES


@pytest.fixture
def monitoring(deploy):
    return deploy.parent / "monitoring"


@pytest.fixture
def asked(monitoring):
    """The names of metrics in the dashboard, each with its labels' values."""
    dashboard = json.loads((monitoring / "grafana.json").read_text())
    places = [tuple(panel["gridPos"].values()) for panel in dashboard["panels"]]
    assert len(set(places)) == len({panel["id"] for panel in dashboard["panels"]}) == len(places)
    found = {}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            for name, labels in re.findall(r"((?:lab|jupyterhub)_\w+)(?:\{(.*?)\})?", target["expr"]):
                found.setdefault(name, []).extend(re.findall(r'(\w+)(?:=|=~|!=)"(.*?)"', labels))
    return found


def test_the_queue_s_names_are_emitted(asked, tmp_path):
    write_queue_metrics(tmp_path / "q.prom", dict.fromkeys(STATES, 3), 1.5, 2)
    families = text_string_to_metric_families((tmp_path / "q.prom").read_text())
    emitted = {sample.name for family in families for sample in family.samples}
    assert {name for name in asked if name.startswith("lab_")} == emitted
    states = {state for _, value in asked["lab_queue_submissions"] for state in value.split("|")}
    assert states and states <= STATES.keys()
    assert [path.name for path in tmp_path.iterdir()] == ["q.prom"]


def test_the_hub_s_names_are_jupyterhub_s(asked):
    metrics = pytest.importorskip("jupyterhub.metrics", reason="needs deploy/jupyterhub/requirements-hub.txt")
    kinds = {family.name: family.type for family in REGISTRY.collect()}
    emitted = {name: "" for name in kinds} | {
        f"{name}_{end}": name
        for name, kind in kinds.items()
        if kind == "histogram"
        for end in ("bucket", "count", "sum")
    }
    wanted = {name for name in asked if name.startswith("jupyterhub_")}
    assert wanted and wanted <= emitted.keys()
    values = {each.value for each in metrics.ActiveUserPeriods} | {each.value for each in metrics.ServerSpawnStatus}
    assert {value for name in wanted for _, value in asked[name]} <= values


def test_prometheus_may_read_the_numbers_and_nothing_else(configure, monitoring):  # noqa: F811
    assert "prometheus" not in [each["name"] for each in configure().JupyterHub.services]
    config = configure(f'[network]\nmetrics_token = "{"t" * 64}"\n')
    assert {"name": "prometheus", "api_token": "t" * 64} in config.JupyterHub.services
    (role,) = [each for each in config.JupyterHub.load_roles if "prometheus" in each.get("services", ())]
    assert role["scopes"] == ["read:metrics"]
    jobs = yaml.safe_load((monitoring / "prometheus.yml").read_text())["scrape_configs"]
    assert jobs[0]["metrics_path"] == "/hub/metrics" and "credentials_file" in jobs[0]["authorization"]


def test_the_hub_s_service_writes_the_queue_s_numbers(configure):  # noqa: F811
    text = '[course]\ngrade_on_submission = ["01_a"]\nmetrics = "/m/q.prom"\n'
    assert configure(text).JupyterHub.services[-1]["command"][-2:] == ["--metrics", "/m/q.prom"]
