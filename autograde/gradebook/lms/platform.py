"""A client of an LMS's services: access tokens, pages, and patience.

Sources: 1EdTech *Security Framework 1.0* §4 (a token for a signed assertion), *AGS 2.0*, *NRPS 2.0*.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from time import sleep, time
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

import requests
from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt
from urllib3.exceptions import InvalidHeader
from urllib3.util import Retry

from autograde.gradebook.lms.settings import LTI, LmsError, reachable
from course_lib.runs.run_evidence.quoting import quote

__all__ = ["Platform", "Refused"]

LONGEST = 120  # seconds to wait before one attempt; an LMS that asks for more is left alone
PAGES = 1000
_JWT_BEARER = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_Result = TypeVar("_Result")


class Refused(LmsError):
    """The LMS answered and refused; `status` is HTTP's."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class _Again(Exception):
    """A failure that may pass; the LMS may have asked for some seconds."""

    def __init__(self, message: str, seconds: float = 0.0):
        super().__init__(message)
        self.seconds = seconds


class Platform:
    """An LMS, by its address and this course's key.

    Raises `LmsError`: PyJWT is missing, or the key file cannot be read or can be read by others.
    """

    def __init__(self, settings: LTI):
        try:
            import jwt
        except ImportError:
            raise LmsError("LTI needs PyJWT; pip install './autograde[lti]'") from None
        self._jwt, self._key = jwt, settings.private_key()
        self.settings = settings
        self._session, self._token, self._renewed = requests.Session(), "", False
        self._session.trust_env = False  # a .netrc would replace the token
        self._session.proxies = requests.utils.getproxies()
        # The token goes to no other machine, wherever a page says that the next one is.
        self._hosts = {urlsplit(url).netloc for url in (settings.line_items_url, settings.members_url)}

    def persist(self, operation: Callable[..., _Result], *arguments: Any) -> _Result:
        """Call `operation` until no failure of the network or the LMS ends it, with growing pauses.

        Raises `LmsError`: it failed too often, or the LMS asks for more patience than `LONGEST`.
        """
        again = Retrying(
            retry=retry_if_exception_type(_Again), stop=stop_after_attempt(self.settings.attempts), wait=_wait,
            sleep=sleep, reraise=True,
        )  # fmt: skip
        try:
            return again(operation, *arguments)
        except _Again as error:
            raise LmsError(f"{error}; gave up after {self.settings.attempts} attempts, try again later") from None

    def once(self, method: str, url: str, kind: str, body: dict[str, Any] | None = None) -> requests.Response:
        """One request with a token. `kind` is the media type of what is asked for, or of the body.

        Raises `Refused`; and, only for `persist`, what makes it try again.
        """
        if not reachable(url) or urlsplit(url).netloc not in self._hosts:
            raise LmsError(f"the LMS names {quote(url, 200)}, which is not on its own machine; nothing was sent there")
        self._token = self._token or self._new_token()
        headers = {"Authorization": f"Bearer {self._token}", "Accept": kind}
        headers |= {"Content-Type": kind} if body is not None else {}
        answer = self._send(method, url, headers=headers, json=body)
        if answer.status_code == 401 and not self._renewed:
            self._token, self._renewed = "", True
            raise _Again(f"{urlsplit(url).netloc} refuses the token")
        self._renewed = False
        return _accepted(answer)

    def pages(self, url: str, kind: str, field: str | None = None) -> list[dict[str, Any]]:
        """Everything of a container whose pages link to the next (``Link: <…>; rel="next"``).

        `field` is the key of the list in each page; None where the page is the list.
        """
        items, seen = [], set()
        while url:
            if url in seen or len(seen) == PAGES:
                raise LmsError(f"{quote(url, 200)}: the pages have no end; tell the LMS's administrator")
            seen.add(url)
            answer = self.once("GET", url, kind)
            page = _json(answer)
            page = page.get(field) if field and isinstance(page, dict) else page
            if not isinstance(page, list) or not all(isinstance(item, dict) for item in page):
                raise LmsError(f"{quote(url, 200)} answers with no list; check the address")
            items += page
            link = answer.links.get("next", {}).get("url")
            url = urljoin(url, link) if link else ""
        return items

    def _new_token(self) -> str:
        settings, now = self.settings, int(time())
        claims = {
            "iss": settings.client_id, "sub": settings.client_id, "aud": settings.audience or settings.token_url,
            "iat": now, "exp": now + 300, "jti": uuid.uuid4().hex,  # a new one each time: platforms refuse a second use
        }  # fmt: skip
        try:
            headers = {"kid": settings.key_id} if settings.key_id else None
            assertion = self._jwt.encode(claims, self._key, algorithm="RS256", headers=headers)
        except (ValueError, TypeError, self._jwt.PyJWTError) as error:
            raise LmsError(
                f"{settings.key_file} holds no RSA key in PEM without a password ({type(error).__name__})"
            ) from None
        form = {
            "grant_type": "client_credentials", "client_assertion_type": _JWT_BEARER, "client_assertion": assertion,
            "scope": " ".join(settings.scopes),
        }  # fmt: skip
        answer = _json(_accepted(self._send("POST", settings.token_url, data=form)))
        token = answer.get("access_token") if isinstance(answer, dict) else None
        if not (isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token and token):
            raise LmsError(f"{settings.token_url} answers without an access token; check the address")
        return token

    def _send(self, method: str, url: str, **how: Any) -> requests.Response:
        try:
            return self._session.request(method, url, timeout=(10, 60), allow_redirects=False, **how)
        except requests.exceptions.SSLError as error:
            raise LmsError(
                f"{urlsplit(url).netloc}: its certificate is not accepted ({type(error).__name__})"
            ) from None
        except requests.RequestException as error:
            raise _Again(f"{urlsplit(url).netloc} is not reached ({type(error).__name__})") from None


def _accepted(answer: requests.Response) -> requests.Response:
    status, place = answer.status_code, urlsplit(answer.url)
    if 200 <= status < 300:
        return answer
    said = f"{place.netloc}{place.path} answers {status} ({quote(' '.join(answer.text[:200].split()), 120)})"
    if status != 429 and status < 500:
        raise Refused(f"{said}; check c.LTI and the tool's services in the LMS", status)
    try:
        seconds = Retry().parse_retry_after(answer.headers.get("Retry-After", "0"))
    except InvalidHeader:
        seconds = 0.0
    if seconds > LONGEST:
        raise LmsError(f"{said}, Retry-After: {quote(answer.headers['Retry-After'])}; run the command again then")
    raise _Again(said, seconds)


def _json(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise LmsError(f"{quote(answer.url, 200)} answers with no JSON; check the address") from None


def _wait(state: RetryCallState) -> float:
    error = state.outcome.exception()
    return max(error.seconds, min(LONGEST, 2.0 ** (state.attempt_number - 1)))
