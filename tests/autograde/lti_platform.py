"""An LMS of LTI 1.3 in this process: keys, tokens, line items, scores, results, members; and failures on demand.

It follows 1EdTech's Security Framework 1.0, AGS 2.0 and NRPS 2.0, and Moodle where that is stricter. It shares no code
with the grader.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

jwt = pytest.importorskip("jwt", reason="needs pip install './autograde[lti]'")

from cryptography.hazmat.primitives import serialization  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: E402

LEARNER, TEACHER = (f"http://purl.imsglobal.org/vocab/lis/v2/membership#{role}" for role in ("Learner", "Instructor"))
PAGE = 2
KINDS = {  # path → what a GET must accept, what a POST must be
    "lineitems": ("v2.lineitemcontainer", "v2.lineitem"), "scores": (None, "v1.score"), "results": ("v2.resultcontainer", None),
}  # fmt: skip


def new_key():
    return rsa.generate_private_key(65537, 2048)


two_keys = functools.cache(lambda: (new_key(), new_key()))  # seconds, once


def pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class LtiPlatform:
    """`fail` lists (part of a path, what happens once): a status, (status, headers), "cut" or "cut after"; `wait` is
    called with each path before its answer."""

    def __init__(self):
        (self.tool_key, self.own_key), self.jtis, self.tokens = two_keys(), set(), set()
        self.items, self.posts, self.results, self.members = {}, [], {}, []
        self.fail, self.paths, self.assertions, self.wait = [], [], [], lambda path: None
        self.unknown, self.count = set(), itertools.count(1)
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                platform.answer(self)

            do_POST = do_GET

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def settings(self, key_file) -> str:
        """Lines of nbgrader_config.py."""
        values = {
            "token_url": f"{self.url}/token", "client_id": "tool-1", "key_file": str(key_file), "key_id": "k1",
            "line_items_url": f"{self.url}/7/lineitems?type_id=3", "members_url": f"{self.url}/7/members",
        }  # fmt: skip
        return "".join(f"c.LTI.{name} = {value!r}\n" for name, value in values.items())

    def member(self, user, role=LEARNER, **fields):
        self.members.append({"user_id": user, "roles": [role], "status": "Active", **fields})

    def scores(self):
        """User → points, in the LMS's own scale."""
        return {user: result["resultScore"] for user, result in self.results.items()}

    def answer(self, request):
        path = urlsplit(request.path).path
        body = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        self.paths.append(f"{request.command} {path}")
        self.wait(path)
        failure = next((each for each in self.fail if each[0] in path), (None, None))
        if failure[0] is not None:
            self.fail.remove(failure)
        what = failure[1]
        if isinstance(what, int | tuple):
            status, headers = what if isinstance(what, tuple) else (what, {})
            return self.reply(request, status, {"error": "on demand"}, headers)
        if what != "cut":
            status, content, headers = self.decide(request, path, body)
        if what in ("cut", "cut after"):
            with suppress(OSError):
                request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            return request.connection.close()
        return self.reply(request, status, content, headers)

    def reply(self, request, status, content, headers):
        data = json.dumps(content).encode()
        request.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(data)

    def decide(self, request, path, body):
        query = parse_qs(urlsplit(request.path).query)
        if path == "/jwks":
            key = jwt.algorithms.RSAAlgorithm.to_jwk(self.own_key.public_key(), as_dict=True)
            return 200, {"keys": [{**key, "kid": "p1", "use": "sig", "alg": "RS256"}]}, {}
        if path == "/token":
            return self.give_token(parse_qs(body.decode()))
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            return 401, {"error": "invalid_token"}, {}
        get, name = request.command == "GET", path.rpartition("/")[2]
        if name in KINDS:
            kind = f"application/vnd.ims.lis.{KINDS[name][not get]}+json"
            if request.headers["Accept" if get else "Content-Type"] != kind or (
                query.get("type_id") != ["3"]  # as Moodle's, whose addresses have a query
            ):
                return 400, {"error": "kind or query"}, {}
        if name == "members" and get:
            return self.page(request, self.members, query, lambda members: {"members": members})
        if name == "lineitems" and get:
            found = [
                each
                for each in self.items.values()
                if each["resourceId"] in query.get("resource_id", [each["resourceId"]])
            ]
            return self.page(request, found, query, list)
        if name == "lineitems":
            item = json.loads(body)
            path = f"/7/lineitems/{next(self.count)}/lineitem"
            self.items[path] = {**item, "id": f"{self.url}{path}?type_id=3"}
            return 201, self.items[path], {}
        if path.rpartition("/")[0] not in self.items:
            return 404, {"error": "no line item"}, {}
        if name == "results" and get:
            return self.page(request, list(self.results.values()), query, list)
        return self.take_score(json.loads(body), self.items[path.rpartition("/")[0]]["scoreMaximum"])

    def give_token(self, form):
        (assertion,) = form["client_assertion"]
        self.assertions.append(assertion)
        try:
            assert jwt.get_unverified_header(assertion)["kid"] == "k1"
            claims = jwt.decode(
                assertion, self.tool_key.public_key(), algorithms=["RS256"], audience=f"{self.url}/token", issuer="tool-1",
                options={"require": ["exp", "iat", "jti", "sub"]},
            )  # fmt: skip
        except jwt.PyJWTError as error:
            return 400, {"error": "invalid_client", "error_description": str(error)}, {}
        if claims["jti"] in self.jtis or claims["sub"] != "tool-1" or claims["exp"] - claims["iat"] > 3600:
            return 400, {"error": "invalid_client", "error_description": "replayed"}, {}
        self.jtis.add(claims["jti"])
        if "https://purl.imsglobal.org/spec/lti-ags/scope/score" not in form["scope"][0].split():
            return 400, {"error": "invalid_scope"}, {}
        token = f"token-{next(self.count)}"
        self.tokens.add(token)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600}, {}

    def page(self, request, items, query, form):
        start = int(query.get("from", ["0"])[0])
        parts, headers = urlsplit(request.path), {}
        if start + PAGE < len(items):
            rest = "&".join(part for part in parts.query.split("&") if part and not part.startswith("from="))
            headers["Link"] = f'<{self.url}{parts.path}?{rest}&from={start + PAGE}>; rel="next"'
        return 200, form(items[start : start + PAGE]), headers

    def take_score(self, score, maximum):
        user, when = score["userId"], datetime.fromisoformat(score["timestamp"])
        complete = score["activityProgress"] == "Completed" and score["gradingProgress"] == "FullyGraded"
        if user in self.unknown or not complete or when.utcoffset() is None or score["scoreMaximum"] <= 0:
            return 400, {"error": "Incorrect score received"}, {}
        self.posts.append(score)
        points = score["scoreGiven"] / score["scoreMaximum"] * maximum
        self.results[user] = {
            "userId": user, "resultScore": round(points, 2), "resultMaximum": maximum, "comment": score.get("comment", "")
        }  # fmt: skip
        return 200, {}, {}
