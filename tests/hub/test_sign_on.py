"""Signing in by OAuth and LDAP: the authenticators' own code with the hub's configuration. And a roster that changes."""

import asyncio
import json
import logging
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

pytest.importorskip("jupyterhub", reason="needs deploy/jupyterhub/requirements-hub.txt")
pytest.importorskip("oauthenticator", reason="needs deploy/jupyterhub/requirements-sign-on.txt")
pytest.importorskip("ldapauthenticator", reason="needs deploy/jupyterhub/requirements-sign-on.txt")

import ldap3
import roster_sign_in
from jupyterhub import orm
from jupyterhub.user import User
from ldap3.core.exceptions import LDAPBindError
from ldapauthenticator import LDAPAuthenticator
from oauthenticator.oauth2 import _serialize_state
from test_hub_configuration import configure  # noqa: F401

OAUTH = """
[oauth]
client_id = "course-hub"
client_secret = "s3cret"
authorize_url = "https://sso.edu/auth"
token_url = "https://sso.edu/token"
userdata_url = "https://sso.edu/userinfo"
oauth_callback_url = "https://hub.edu/hub/oauth_callback"
"""
LDAP = '[ldap]\nserver_address = "ldap.edu"\nbind_dn_template = ["uid={username},ou=people"]\n'
TAUGHT, TEACHING = "nbgrader-distributed-training", "formgrade-distributed-training"


@pytest.fixture
def signs_in(configure):  # noqa: F811
    """Gives a site's authenticator, as the hub makes it."""

    def signs_in(kind="pam", text=""):
        config = configure(text, f'authenticator = "{kind}"\n')
        reads = roster_sign_in.by_roster(config.JupyterHub.authenticator_class, TAUGHT, TEACHING)
        return reads(config=config)

    return signs_in


@pytest.fixture
def provider():
    """An OAuth provider: `claims` of the person who signs in, and `asked`, what it was asked for."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self):
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            server.asked = {name: value for name, (value,) in parse_qs(text).items()}
            self.answer({"access_token": "t", "token_type": "Bearer", "scope": "openid profile"})

        def do_GET(self):
            assert self.headers["Authorization"].endswith(" t")
            self.answer(server.claims)

        def answer(self, what):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(what).encode())

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("claims", "name"),
    [
        ({"preferred_username": "ada", "roles": ["admin"], "groups": ["admins"]}, "ada"),
        ({"preferred_username": "Grace"}, "grace"),
        ({"preferred_username": "eve"}, None),  # not in the roster
        ({"preferred_username": "eve", "sub": "ada", "name": "ada", "email": "ada"}, None),
    ],
)
def test_oauth_signs_in_who_is_in_the_roster(signs_in, provider, claims, name):
    authenticator = signs_in("oauth", OAUTH)
    assert authenticator.authorize_url == "https://sso.edu/auth" and authenticator.enable_pkce
    assert authenticator.validate_server_cert and not authenticator.allow_all
    provider.claims, address = claims, f"http://127.0.0.1:{provider.server_port}"
    authenticator.token_url, authenticator.userdata_url = f"{address}/token", f"{address}/userinfo"
    handler = SimpleNamespace(
        get_argument=lambda name, default=None: "the code",
        get_state_cookie=lambda: _serialize_state({"code_verifier": "v"}),
    )
    answer = asyncio.run(authenticator.get_authenticated_user(handler, None))
    assert provider.asked.items() >= {
        "code": "the code", "grant_type": "authorization_code", "redirect_uri": "https://hub.edu/hub/oauth_callback",
        "code_verifier": "v", "client_id": "course-hub", "client_secret": "s3cret",
    }.items()  # fmt: skip
    assert (answer and answer["name"]) == name and not (answer and answer["admin"])


@pytest.mark.parametrize(("username", "password", "name"), [
    ("ada", "right", "ada"), ("ada", "wrong", None), ("ada", "", None), ("eve", "right", None),
    ("ada,ou=staff", "right", None), ("*", "right", None),
])  # fmt: skip
def test_ldap_asks_the_directory_over_tls_that_is_checked(signs_in, monkeypatch, username, password, name):
    asked = []

    class Connection:
        def __init__(self, server, user, password, auto_bind):
            assert auto_bind == ldap3.AUTO_BIND_TLS_BEFORE_BIND
            assert (server.host, server.port, server.tls.validate) == ("ldap.edu", 389, ssl.CERT_REQUIRED)
            asked.append(user)
            if password != "right":
                raise LDAPBindError

    monkeypatch.setattr("ldapauthenticator.ldapauthenticator.ldap3.Connection", Connection)
    authenticator = signs_in("ldap", LDAP)
    assert isinstance(authenticator, LDAPAuthenticator)
    form = {"username": username, "password": password}
    answer = asyncio.run(authenticator.get_authenticated_user(SimpleNamespace(), form))
    assert (answer and answer["name"]) == name
    assert asked in ([], ["uid=ada,ou=people"], ["uid=eve,ou=people"])


def test_the_roster_is_read_again_while_the_hub_runs(signs_in, tmp_path):
    authenticator, site = signs_in(), tmp_path / "site.toml"
    database = orm.new_session_factory("sqlite:///:memory:")()
    database.add_all([orm.Group(name=name) for name in (TAUGHT, TEACHING, "other")])
    person = orm.User(name="eve")
    database.add(person)
    person.groups.append(database.query(orm.Group).filter_by(name="other").one())
    database.commit()
    eve = SimpleNamespace(name="eve", db=database, orm_user=person, log=logging.getLogger())
    eve.sync_groups = lambda names: User.sync_groups(eve, names)

    def groups():
        return {each.name for each in person.groups}

    def written(old, new):
        site.write_text(site.read_text().replace(old, new))
        return authenticator.check_allowed("eve"), asyncio.run(authenticator.refresh_user(eve))

    site.write_text("wrong" + site.read_text())  # since the hub's start
    assert asyncio.run(authenticator.refresh_user(SimpleNamespace(name="ada"))) is True
    assert written("wrong", "") == (False, False) and groups() == {"other"}
    assert written('"ben"]', '"ben", "eve"]') == (True, True) and groups() == {"other", TAUGHT}
    assert written('["grace"]', '["grace", "eve"]') == (True, True) and groups() == {"other", TEACHING}
    site.write_text(site.read_text() + "wrong")
    assert written("", "") == (True, True)  # the last that could be read
    assert written("wrong", "") == (True, True)
    assert written('"eve"', '"bob"') == (False, False)
    asyncio.run(authenticator.pre_spawn_start(SimpleNamespace(**vars(eve) | {"name": "bob"}), None))
    assert groups() == {"other", TEACHING}
