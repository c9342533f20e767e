"""Signing in by an LMS: ltiauthenticator's own handlers with the hub's configuration, and launches that an LMS signs.

The last step, JupyterHub's database and cookie, is replaced: the answer is the name that would be signed in.
"""

import asyncio
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest

pytest.importorskip("ltiauthenticator", reason="needs deploy/jupyterhub/requirements-sign-on.txt and jupyterhub")
sys.path.append(str(Path(__file__).resolve().parents[1] / "autograde"))

import requests
from lti_platform import LEARNER, TEACHER, LtiPlatform, jwt, new_key, pem
from test_hub_configuration import configure  # noqa: F401
from tornado.httpserver import HTTPServer
from tornado.testing import bind_unused_port
from tornado.web import Application, HTTPError, RequestHandler
from traitlets.utils.importstring import import_item

SITE = """
[lti]
issuer = "https://lms.edu"
client_id = "tool-1"
deployment = "1"
authorize_url = "https://lms.edu/auth"
jwks_url = "https://lms.edu/jwks"
context = "7"
"""
CLAIM = "https://purl.imsglobal.org/spec/lti/claim/"


def alone(handler):
    """A handler of the hub that needs no database."""

    class Alone(handler):
        async def prepare(self):
            pass

        def set_default_headers(self):
            pass

        def finish(self, *content):
            return RequestHandler.finish(self, *content)

        def write_error(self, status_code, **kwargs):
            self.finish(str(kwargs["exc_info"][1]))

        def _set_cookie(self, key, value, encrypted=True, **kwargs):
            self.set_secure_cookie(key, value)

        async def login_user(self, data=None):
            signed_in = await self.authenticator.get_authenticated_user(self, data)
            if signed_in is None:
                raise HTTPError(403)
            return signed_in

        async def redirect_to_next_url(self, user):
            self.finish({"name": user["name"], "groups": user.get("groups"), "admin": user["admin"]})

    return Alone


@pytest.fixture
def lms(configure):  # noqa: F811
    """An LMS, and `hub`, the address of a hub that it may send people to."""
    lms, ready, loop = LtiPlatform(), threading.Event(), asyncio.new_event_loop()
    config = configure(SITE, 'authenticator = "lti"\n')
    config.LTI13Authenticator.jwks_endpoint = f"{lms.url}/jwks"
    authenticator = import_item(config.JupyterHub.authenticator_class)(config=config)

    def serve():
        asyncio.set_event_loop(loop)
        handlers = [(f"/hub/{path}", alone(handler)) for path, handler in authenticator.get_handlers(None)[:2]]
        hub = SimpleNamespace(server=SimpleNamespace(base_url="/hub/"))
        socket, port = bind_unused_port()
        HTTPServer(
            Application(handlers, app=None, authenticator=authenticator, cookie_secret="s" * 32, hub=hub)
        ).add_socket(socket)
        lms.hub = f"http://127.0.0.1:{port}/hub"
        ready.set()
        loop.run_forever()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(60)
    yield lms
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    lms.server.shutdown()


def begin(lms):
    """The login's first half: a browser, and what the hub asks the LMS for."""
    browser = requests.Session()
    hints = {"iss": "https://lms.edu", "login_hint": "5", "target_link_uri": f"{lms.hub}/", "client_id": "tool-1"}
    answer = browser.post(f"{lms.hub}/lti13/oauth_login", data=hints, allow_redirects=False, timeout=10)
    assert answer.status_code == 302 and answer.headers["Location"].startswith("https://lms.edu/auth?"), answer.text
    asked = {name: value for name, (value,) in parse_qs(urlsplit(answer.headers["Location"]).query).items()}
    assert asked["redirect_uri"] == f"{lms.hub}/lti13/oauth_callback" and asked["client_id"] == "tool-1"
    return browser, asked


def launch(lms, browser, asked, key=None, custom=None, **changed):
    """The second half, as the LMS signs it."""
    now = int(time.time())
    claims = {
        "iss": "https://lms.edu", "aud": "tool-1", "sub": "5", "iat": now, "exp": now + 60, "nonce": asked["nonce"],
        f"{CLAIM}version": "1.3.0", f"{CLAIM}message_type": "LtiResourceLinkRequest", f"{CLAIM}deployment_id": "1",
        f"{CLAIM}target_link_uri": f"{lms.hub}/", f"{CLAIM}resource_link": {"id": "9"}, f"{CLAIM}roles": [LEARNER],
        f"{CLAIM}context": {"id": "7"}, f"{CLAIM}custom": {"username": "ada"} if custom is None else custom, **changed,
    }  # fmt: skip
    token = jwt.encode(claims, pem(key or lms.own_key), "RS256", headers={"kid": "p1"})
    form = {"id_token": token, "state": asked["state"]}
    return browser.post(f"{lms.hub}/lti13/oauth_callback", data=form, allow_redirects=False, timeout=10)


@pytest.mark.parametrize(
    "roles", [[LEARNER], [TEACHER, "http://purl.imsglobal.org/vocab/lis/v2/system/person#Administrator"]]
)
def test_a_launch_signs_in_and_its_roles_give_nothing(lms, roles):
    answer = launch(lms, *begin(lms), **{f"{CLAIM}roles": roles})
    assert answer.status_code == 200 and answer.json() == {"name": "ada", "groups": None, "admin": None}, answer.text


REFUSED = {
    "wrong nonce": ({"nonce": "0" * 64}, 400), "no nonce": ({"nonce": ""}, 400), "expired": ({"exp": 1000}, 400),
    "issued long ago": ({"iat": 1000}, 400), "another tool's": ({"aud": "tool-2"}, 401),
    "another platform's": ({"iss": "https://evil.edu"}, 400), "not in the roster": ({"custom": {"username": "eve"}}, 403),
    "names nobody": ({"custom": {}, "sub": "ada"}, 403), "another course's": ({f"{CLAIM}context": {"id": "8"}}, 403),
    "no course's": ({f"{CLAIM}context": None}, 403), "another key's": ({"key": new_key()}, 400),
    "another deployment's": ({f"{CLAIM}deployment_id": "2"}, 403),
}  # fmt: skip


@pytest.mark.parametrize("changed", REFUSED)
def test_a_launch_that_is_wrong_is_refused(lms, changed):
    what, status = REFUSED[changed]
    answer = launch(lms, *begin(lms), **what)
    assert answer.status_code == status and "ada" not in answer.text, answer.text


def test_a_launch_is_of_its_own_browser_and_login(lms):
    browser, asked = begin(lms)
    other, theirs = begin(lms)
    assert launch(lms, requests.Session(), asked).status_code == 400  # replayed without the cookies
    assert launch(lms, other, asked).status_code == 400  # another's state
    assert launch(lms, begin(lms)[0], {**theirs, "nonce": asked["nonce"]}).status_code == 400
    assert launch(lms, browser, asked).status_code == 200
    assert launch(lms, browser, asked).status_code == 400  # the login is used up


def test_a_launch_is_used_once_even_with_its_own_cookies(lms):
    browser, asked = begin(lms)
    saved = browser.cookies.copy()
    assert launch(lms, browser, asked).status_code == 200
    browser.cookies = saved
    assert launch(lms, browser, asked).status_code == 403


def test_a_key_that_the_lms_withdrew_signs_nobody_in(lms):
    assert launch(lms, *begin(lms)).status_code == 200
    old, lms.own_key = lms.own_key, new_key()
    assert launch(lms, *begin(lms), key=old).status_code == 400
    assert launch(lms, *begin(lms)).status_code == 200
