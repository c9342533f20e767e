"""What JupyterLab's status bar asks of a real server: memory and processors, beside what the site allows."""

import pytest
from hub_load_student import KernelSocket, Student
from visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def student(hub):
    student = Student(hub, hub.student_b)
    student.start_server()
    return student


def usage(student):
    answer = student.by_token("GET", f"/user/{student.name}/api/metrics/v1")
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_status_bar_is_told_use_and_limit(student):
    said = usage(student)
    assert said["limits"]["memory"]["rss"] == said["limits"]["memory"]["pss"] == 6 * GIB  # the demo's memory_gib
    assert said["limits"]["memory"]["warn"] is False
    assert 50 * MIB < said["rss"] < GIB
    assert 0 < said["pss"] <= said["rss"]
    assert said["cpu_count"] >= 1
    assert said["cpu_percent"] >= 0


def test_what_a_kernel_holds_is_counted(student):
    number = student.open_kernel("some.ipynb")
    kernel = KernelSocket(student, number)
    try:
        assert kernel.execute("1")[2] is None
        before = usage(student)["rss"]
        assert kernel.execute(f"held = b'x' * {300 * MIB}")[2] is None
        assert 300 * MIB < usage(student)["rss"] - before < 400 * MIB
    finally:
        kernel.close()
        student.by_token("DELETE", f"/user/{student.name}/api/kernels/{number}")


def test_nobody_elses_use_is_told(hub, student):
    other = Visitor(hub, hub.student_a)
    assert other.by_token("GET", f"/user/{student.name}/api/metrics/v1").status_code in (302, 403, 404)
    assert Visitor(hub).get(f"/user/{student.name}/api/metrics/v1").status_code in (403, 404)
