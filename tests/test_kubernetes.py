"""What runs on Kubernetes is confined as its comments say. No cluster: the schemas of Kubernetes are in a package."""

import pytest
import yaml
from nbgrader.exchange.default import Exchange


@pytest.fixture
def documents(repository):
    return list(yaml.safe_load_all((repository / "deploy/kubernetes/grade.yaml").read_text()))


def test_the_job_that_grades_has_no_network_no_token_and_no_privilege(documents):
    job, policy = documents
    pod = job["spec"]["template"]
    assert policy["spec"]["podSelector"]["matchLabels"] == pod["metadata"]["labels"]
    assert policy["spec"].keys() == {"podSelector", "policyTypes"} and policy["spec"]["policyTypes"] == [
        "Ingress",
        "Egress",
    ]
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert spec["automountServiceAccountToken"] is False and spec["hostUsers"] is False
    assert spec["securityContext"]["runAsNonRoot"] and not spec.keys() & {"hostPID", "hostIPC", "hostNetwork"}
    assert not any("hostPath" in volume for volume in spec["volumes"])
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False and security["capabilities"] == {"drop": ["ALL"]}
    assert container["command"][:2] == ["lab", "grade"] and "--no-sandbox" not in container["command"]
    assert job["spec"]["activeDeadlineSeconds"] and container["resources"]["limits"].keys() >= {"cpu", "memory"}


def test_students_pods_do_not_see_what_grading_mounts(documents, repository):
    values = yaml.safe_load((repository / "deploy/kubernetes/values.yaml").read_text())
    storage = values["singleuser"]["storage"]
    claims = {
        each["persistentVolumeClaim"]["claimName"]
        for each in storage["extraVolumes"]
        if "persistentVolumeClaim" in each
    }
    assert claims == {"course-data", "course-exchange"}
    assert {each["name"] for each in storage["extraVolumes"]} == {each["name"] for each in storage["extraVolumeMounts"]}
    [exchange] = [each["mountPath"] for each in storage["extraVolumeMounts"] if each["name"] == "exchange"]
    assert exchange == Exchange().root  # the image has no settings of nbgrader
    for name, code in values["hub"]["extraConfig"].items():
        compile(code, name, "exec")


@pytest.mark.parametrize("version", ["1.33", "1.37"])
def test_kubernetes_schema_accepts_them(documents, version):
    validate = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate").validate
    for document in documents:
        document["metadata"].setdefault("name", document["metadata"].pop("generateName", None))
        validate(document, version, strict=True)
