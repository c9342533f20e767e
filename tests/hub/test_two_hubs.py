"""Two courses on a machine, a hub for each: neither knows the other's people, servers or submissions."""

import pytest
import requests
from running_hub import RunningHub, missing
from visitor import Visitor, is_login_page

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def hubs():
    if lack := missing():
        pytest.skip(lack)
    running = []
    try:
        for course in ("optimisation", "systems"):
            running.append(RunningHub(settings=f'[course]\nid = "{course}"\n'))
        yield running
    finally:
        for one in running:
            if one.state.exists():
                one.stop()


def test_two_courses_share_a_machine_and_nothing_else(hubs):
    one, other = hubs
    ada = Visitor(one, one.student_a)
    ada.start_server()
    assert not Visitor(other).sign_in(one.student_a, one.passwords[one.student_a])
    ada.hub = other  # with her cookies and her token, which a browser would not even send to another host name
    assert is_login_page(ada.get("/hub/home"))
    assert ada.by_token("GET", "/hub/api/users").status_code == 403
    ada.hub = one
    mine, theirs = (hub.checkout.parent for hub in hubs)
    seen = ada.run(
        "import json, os, sys\n"
        "found = {name: [os.path.exists(path) and os.access(path, os.R_OK) for path in json.load(open('probe.json'))]\n"
        "         for name in ['paths']}\n"
        "found['course'] = os.environ['COURSE_HUB_COURSE']\n"
        "open('said.part', 'w').write(json.dumps(found))\n",
        *(str(path) for path in (mine, theirs, other.home(other.student_a), other.state / "exchange/systems/inbound")),
    )
    assert seen == {"paths": [False] * 4, "course": "optimisation"}
    assert requests.get(f"{other.address}/services/systems/", timeout=60).status_code in (200, 403)
    one.stop()
    grace = Visitor(other, other.instructor)
    assert grace.by_token("GET", "/services/systems/api/status").status_code == 200
    assert grace.get("/services/optimisation/").status_code == 404
