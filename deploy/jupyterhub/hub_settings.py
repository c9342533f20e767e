"""A site's settings: a TOML file, with defaults for what it leaves out.

``jupyterhub_config.py`` reads the file that ``$COURSE_HUB_SITE`` names. README.md beside this file says what each
setting is for; a name that is not known here is refused, so that a misspelt limit does not silently limit nothing.
"""

import copy
import grp
import os
import re
import tomllib
from pathlib import Path
from typing import Any

DEFAULTS: dict[str, dict[str, Any]] = {
    "course": {
        "id": "distributed-training",
        "account": "course",  # owns sources, gradebook and exchange; nobody signs in as it
        "folder": "/home/course/distributed-training",  # the course's checkout, which only that account can read
        "grader": "/opt/course-hub/grader",  # where autograde is installed for that account
        "grade_on_submission": [],  # labs that `lab serve` grades when they are handed in; none: no such service
        "metrics": "",  # a file .prom for node_exporter, with the numbers of that service's queue
        "deadlines": {},  # lab → a text, which students read on their page of welcome
    },
    # How that service grades: as `lab serve --executor --jobs --slurm`.
    "grading": {"executor": "local", "jobs": 1, "slurm": []},
    "people": {"instructors": [], "students": [], "students_group": "", "authenticator": "pam"},
    # With authenticator = "lti", "oauth" or "ldap", all of its table, except ca_certificates.
    "lti": {
        "issuer": "", "client_id": "", "deployment": "", "authorize_url": "", "jwks_url": "", "context": "",
        "username": "custom_username",
    },
    # The names of these two are those of GenericOAuthenticator and LDAPAuthenticator.
    "oauth": {
        "client_id": "", "client_secret": "", "authorize_url": "", "token_url": "", "userdata_url": "", "oauth_callback_url": "",
        "username_claim": "preferred_username", "scope": ["openid", "profile"], "login_service": "the university",
    },
    "ldap": {"server_address": "", "bind_dn_template": [], "tls_strategy": "before_bind", "ca_certificates": ""},
    "paths": {
        "environment": "/opt/course-hub/students",
        "hub": "/opt/course-hub/hub",
        "proxy": "/opt/course-hub/proxy/node_modules/.bin/configurable-http-proxy",
        "config": "/opt/course-hub/config",
        "data": "/srv/course/data",
        "exchange": "/srv/course/exchange",
        "state": "/var/lib/course-hub",
        "hidden": [],  # folders that are empty for everyone's server (local spawner)
    },
    "network": {
        "ip": "127.0.0.1",
        "port": 8000,
        "hub_port": 8081,
        "hub_ip": "127.0.0.1",
        "proxy_port": 8001,
        "course_port": 9999,
        "server_ports": 20000,  # the first of those on which local servers listen
        "tls_certificate": "",
        "tls_key": "",
        "domain": "",
        "metrics_token": "",  # with which Prometheus may read /hub/metrics
    },
    "servers": {
        "spawner": "local", "memory_gib": 8.0, "cores": 2, "processes": 2048, "idle_minutes": 60, "most_hours": 12, "at_most": 100,
    },
    "slurm": {"partitions": {}, "memory_gib": 8, "account": "", "prologue": "", "start_seconds": 600},
}  # fmt: skip
SIGN_ON = ("lti", "oauth", "ldap")
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*")


class SettingsError(RuntimeError):
    """The site's file cannot be used; one line that names the file and the setting."""


def read_settings(file: Path | None = None) -> dict[str, dict[str, Any]]:
    """The defaults, with what `file` (or the file named by ``$COURSE_HUB_SITE``) says in their place.

    Raises
    ------
    SettingsError
        No such file, no TOML, a table or name that is not known, a value of another kind, or a secret that others can read.
    """
    file = file or Path(os.environ.get("COURSE_HUB_SITE", "/etc/course-hub/site.toml"))
    try:
        with file.open() as stream:
            private = not os.fstat(stream.fileno()).st_mode & 0o077
            tables = tomllib.loads(stream.read())
    except OSError as error:
        raise SettingsError(f"{file}: {error.strerror}; copy site.example.toml there, or set COURSE_HUB_SITE") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file} is not TOML: {error}") from None
    settings = copy.deepcopy(DEFAULTS)
    for table, values in tables.items():
        if table not in settings or not isinstance(values, dict):
            raise SettingsError(f"{file}: there is no table [{table}]; there are {', '.join(settings)}")
        for name, value in values.items():
            known = settings[table]
            if name not in known:
                raise SettingsError(f"{file}: [{table}] has no {name!r}; it has {', '.join(known)}")
            wanted = (int, float) if isinstance(known[name], float) else type(known[name])
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise SettingsError(f"{file}: [{table}] {name} = {value!r} is no {type(known[name]).__name__}")
            known[name] = value
    if (settings["oauth"]["client_secret"] or settings["network"]["metrics_token"]) and not private:
        raise SettingsError(f"{file} holds a secret, and others can read it: chmod 600 {file}")
    _check(file, settings)
    return settings


def _check(file: Path, settings: dict[str, dict[str, Any]]) -> None:
    # The course's name becomes part of paths, of addresses and of the names of groups and roles.
    if not _NAME.fullmatch(settings["course"]["id"]):
        raise SettingsError(f"{file}: [course] id is to be of a-z, 0-9, '.', '_' and '-'")
    for lab in settings["course"]["grade_on_submission"]:
        if not (isinstance(lab, str) and _NAME.fullmatch(lab)):
            raise SettingsError(f"{file}: [course] grade_on_submission lists labs' names, such as 01_single_gpu")
    grading = settings["grading"]
    if grading["executor"] not in ("local", "slurm"):
        raise SettingsError(f"{file}: [grading] executor = {grading['executor']!r}; there are local and slurm")
    if not 1 <= grading["jobs"] <= 1000:
        raise SettingsError(f"{file}: [grading] jobs = {grading['jobs']}; from 1 to 1000 submissions at a time")
    if not all(isinstance(option, str) and "=" in option for option in grading["slurm"]):
        raise SettingsError(f'{file}: [grading] slurm lists options of sbatch as texts, such as "partition=short"')
    if grading["slurm"] and grading["executor"] != "slurm":
        raise SettingsError(f'{file}: [grading] slurm goes with executor = "slurm"')
    for lab, text in settings["course"]["deadlines"].items():
        if not (_NAME.fullmatch(lab) and isinstance(text, str) and text.isprintable() and "|" not in text):
            raise SettingsError(f"{file}: [course.deadlines] {lab} is to be a lab's name, with a text of one line")
    authenticator = settings["people"]["authenticator"]
    if authenticator not in ("pam", *SIGN_ON):
        raise SettingsError(f"{file}: [people] authenticator = {authenticator!r}; there are pam, {', '.join(SIGN_ON)}")
    for name, value in settings[authenticator].items() if authenticator in SIGN_ON else ():
        # Another site says who somebody is: where its word comes from decides who may sign in.
        if not value and name != "ca_certificates":
            raise SettingsError(f'{file}: authenticator = "{authenticator}" needs [{authenticator}] {name}')
        if (name == "issuer" or name.endswith("_url")) and not value.startswith("https://"):
            raise SettingsError(f"{file}: [{authenticator}] {name} = {value!r} is no https address")
        if isinstance(value, list) and not all(isinstance(each, str) for each in value):
            raise SettingsError(f"{file}: [{authenticator}] {name} is to be a list of texts")
    ldap = settings["ldap"]
    if ldap["tls_strategy"] not in ("before_bind", "on_connect"):
        raise SettingsError(f"{file}: [ldap] tls_strategy is before_bind or on_connect; without TLS all read the passwords")
    if not all("{username}" in str(template) for template in ldap["bind_dn_template"]):
        raise SettingsError(f"{file}: [ldap] bind_dn_template is to hold {{username}}: else anybody signs in as everybody")
    spawner = settings["servers"]["spawner"]
    if spawner not in ("local", "slurm"):
        raise SettingsError(f"{file}: [servers] spawner = {spawner!r}; there are local and slurm")
    if spawner == "slurm" and not settings["slurm"]["partitions"]:
        raise SettingsError(f'{file}: spawner = "slurm" needs a table [slurm.partitions.NAME]')
    network = settings["network"]
    if 0 < len(network["metrics_token"]) < 32:
        raise SettingsError(f"{file}: [network] metrics_token is too short; make one with: openssl rand -hex 32")
    if bool(network["tls_certificate"]) != bool(network["tls_key"]):
        raise SettingsError(f"{file}: [network] tls_certificate and tls_key go together")
    if not network["tls_key"] and network["ip"] not in ("127.0.0.1", "::1"):
        raise SettingsError(
            f"{file}: [network] ip = {network['ip']!r} would send passwords in the clear; set tls_certificate and "
            "tls_key, or leave 127.0.0.1 and put a TLS proxy before it"
        )


def roster(settings: dict[str, dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Names of the students and of the instructors; nobody is both.

    Raises
    ------
    SettingsError
        The Unix group of the students is not known here.
    """
    people = settings["people"]
    instructors, students = set(people["instructors"]), set(people["students"])
    if group := people["students_group"]:
        try:
            students |= set(grp.getgrnam(group).gr_mem)
        except KeyError:
            raise SettingsError(f"[people] students_group = {group!r}: no such group on this machine") from None
    return students - instructors, instructors
