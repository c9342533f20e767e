"""A hub that is killed leaves nothing, and starts again on what it had."""

import contextlib
import signal
import time

import psutil
import pytest
import requests
from running_hub import RunningHub, missing
from visitor import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SECONDS = 30


@pytest.fixture(scope="module")
def hub():
    """One of its own: it does not survive."""
    if lack := missing():
        pytest.skip(lack)
    running = RunningHub()
    yield running
    with contextlib.suppress(psutil.Error, ValueError):
        running.process_of_hub().send_signal(signal.SIGCONT)
    if running.state.exists():
        running.stop()


def student_at_work(hub):
    """A student with a kernel, and a process that does not listen when it is asked to end."""
    student = Visitor(hub, hub.student_a)
    student.start_server()
    student.by_token("POST", f"/user/{student.name}/api/kernels", json={"name": "python3"}).raise_for_status()
    student.run(
        "import json, subprocess\n"
        "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM HUP INT; while :; do sleep 1; done'])\n"
        "open('said.part', 'w').write(json.dumps('started'))\n"
    )
    lines = hub.processes().values()
    for part in ("configurable-http-proxy", "idle-culler", "jupyterhub_config.py", "ipykernel", "trap"):
        assert any(part in line for line in lines), part
    assert sum("jupyterhub-singleuser" in line for line in lines) >= 2  # formgrader's and the student's


def left(hub, seconds=SECONDS):
    """What is there still after `seconds`; empty as soon as nothing is."""
    end = time.monotonic() + seconds
    while (found := hub.processes()) and time.monotonic() < end:
        time.sleep(0.3)
    return found


def test_a_hub_that_is_killed_takes_everything_with_it_and_starts_again(hub):
    student_at_work(hub)
    address = hub.address
    hub.process_of_hub().kill()
    assert hub.wait(SECONDS) != 0
    assert any("error: the hub ended" in line for line in hub.said)
    assert left(hub, 0) == {}  # `make hub` has waited for them
    with pytest.raises(requests.ConnectionError):
        requests.get(f"{address}/hub/health", timeout=5)
    hub.start()
    assert hub.address == address
    Visitor(hub, hub.student_a).start_server()


def test_killed_together_with_its_starter_it_is_tidied_away_by_the_next_start(hub):
    student_at_work(hub)
    before = hub.processes()
    process = hub.process_of_hub()
    starter = process.parent()
    process.suspend()  # so that it cannot tidy up when its starter dies
    starter.kill()
    process.kill()
    hub.wait(SECONDS)
    orphans = {pid for pid in left(hub, 2) if pid in before}
    assert len(orphans) >= 4  # proxy, culler, formgrader's server, the student's
    hub.start()
    assert not orphans & set(hub.processes())
    Visitor(hub, hub.student_a).start_server()


def test_cleaning_up_ends_a_hub_that_has_just_lost_its_starter(hub):
    """Until it has ended, that hub starts the server that grades again whenever it is ended."""
    student_at_work(hub)
    hub.process_of_hub().parent().kill()
    hub.wait(SECONDS)
    assert any("jupyterhub_config.py" in line for line in hub.processes().values())
    hub.clean()
