"""JupyterHub's configuration for a course: servers for students, a shared one that grades.

Everything that differs between sites comes from a TOML file, named by $COURSE_HUB_SITE (see site.example.toml).
"""

import json
import os
import shutil
import ssl
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import roster_sign_in
import slurm_form
from hub_settings import SettingsError, read_settings, roster

c = get_config()  # noqa: F821  (JupyterHub provides it)
try:
    site = read_settings()
    students, instructors = roster(site)
    partitions = slurm_form.partitions_of(site)
except (SettingsError, ValueError) as error:
    sys.exit(f"The hub does not start: {error}")
course, grading, paths, network, servers = map(site.get, ("course", "grading", "paths", "network", "servers"))
state, environment = Path(paths["state"]), Path(paths["environment"])
state.mkdir(mode=0o700, parents=True, exist_ok=True)
state.chmod(0o700)  # the cookies' secret and everybody's tokens are in there

# ── Addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────
# Only the proxy faces people. TLS: set tls_certificate and tls_key, or leave 127.0.0.1 and let nginx, Apache or Traefik
# in front do it (with web sockets).
scheme = "https" if network["tls_key"] else "http"
c.JupyterHub.bind_url = f"{scheme}://{network['ip']}:{network['port']}/"
c.JupyterHub.ssl_cert, c.JupyterHub.ssl_key = network["tls_certificate"], network["tls_key"]
# Servers ask the hub who their visitor is. On a cluster they do so from the nodes: hub_ip is then an address that the
# nodes reach, in a network on which nobody listens: batchspawner has no encryption (internal_ssl) for that way.
c.JupyterHub.hub_ip, c.JupyterHub.hub_port = network["hub_ip"], network["hub_port"]
# A domain of one's own for every user keeps one user's pages from another's cookies: needs *.DOMAIN in DNS and in the
# certificate.
c.JupyterHub.subdomain_host = f"{scheme}://{network['domain']}" if network["domain"] else ""
c.ConfigurableHTTPProxy.command = [paths["proxy"]]
c.ConfigurableHTTPProxy.api_url = f"http://127.0.0.1:{network['proxy_port']}"
c.ConfigurableHTTPProxy.pid_file = str(state / "proxy.pid")
c.JupyterHub.db_url = f"sqlite:///{state / 'hub.sqlite'}"
c.JupyterHub.cookie_secret_file = str(state / "cookie_secret")

# ── Who may sign in ──────────────────────────────────────────────────────────────────────────────────────────────────
# The machine's own accounts, or a university's sign-on: docs/administrator.md. Names must be those of Unix accounts
# wherever the servers run. The roster is read again while the hub runs; roster_sign_in.py says when.
AUTHENTICATORS = {
    "pam": "jupyterhub.auth.PAMAuthenticator",
    "lti": "ltiauthenticator.lti13.auth.LTI13Authenticator",
    "oauth": "oauthenticator.generic.GenericOAuthenticator",
    "ldap": "ldapauthenticator.LDAPAuthenticator",
}
taught, teaching = f"nbgrader-{course['id']}", f"formgrade-{course['id']}"  # nbgrader knows the groups by these names
sign_on = site["people"]["authenticator"]
try:
    c.JupyterHub.authenticator_class = roster_sign_in.by_roster(AUTHENTICATORS[sign_on], taught, teaching)
except ImportError as error:
    install = f"{paths['hub']}/bin/pip install -r deploy/jupyterhub/requirements-sign-on.txt"
    sys.exit(f'The hub does not start: authenticator = "{sign_on}" needs packages ({error}): {install}')
c.PAMAuthenticator.open_sessions = False
c.Authenticator.allowed_users = students | instructors
c.Authenticator.allow_existing_users = False  # an account that leaves the roster is out
c.Authenticator.auth_refresh_strict = True  # of its server, too
c.Authenticator.admin_users = set()  # an administrator could enter any server; add yourself only if you need to
if sign_on == "oauth":
    c.GenericOAuthenticator.update(site["oauth"])
elif sign_on == "ldap":
    ldap = site["ldap"]
    # ldap3 checks no certificate by itself: a machine on the way would read the passwords.
    c.LDAPAuthenticator.tls_kwargs = {"validate": ssl.CERT_REQUIRED, "ca_certs_file": ldap.pop("ca_certificates") or None}
    c.LDAPAuthenticator.update(ldap)
elif sign_on == "lti":
    lti = site["lti"]
    used = {}  # nonce → until when its launch is valid

    def from_this_course(authenticator, handler, authentication):
        """Turn away launches from elsewhere, those that name nobody, and those that have been used.

        Teachers of another course, or of another deployment of the tool, may set custom parameters. ltiauthenticator
        would take the LMS's own number of a person in place of a name, and a launch again with its own cookies.
        """
        claims, name, now = authentication["auth_state"], lti["username"], time.time()
        lms_claim = "https://purl.imsglobal.org/spec/lti/claim/"
        deployment, context = claims.get(lms_claim + "deployment_id"), (claims.get(lms_claim + "context") or {}).get("id")
        named = (claims.get(lms_claim + "custom") or {}) if name.startswith("custom_") else claims
        for nonce in [nonce for nonce, until in used.items() if until < now]:
            del used[nonce]
        if (deployment, context) != (lti["deployment"], lti["context"]) or not named.get(name.removeprefix("custom_")):
            where = f"deployment {deployment!r}, course {context!r}"
            authenticator.log.warning("LTI: turned away a launch of %s, or one without %s", where, name)
        elif claims["nonce"] in used:
            authenticator.log.warning("LTI: turned away a launch that had been used")
        else:
            used[claims["nonce"]] = claims["exp"]
            return authentication
        return None

    # Who teaches is in the site's list only: no role of a launch is read.
    c.LTI13Authenticator.issuer, c.LTI13Authenticator.client_id = lti["issuer"], {lti["client_id"]}
    c.LTI13Authenticator.authorize_url, c.LTI13Authenticator.jwks_endpoint = lti["authorize_url"], lti["jwks_url"]
    c.LTI13Authenticator.username_key = lti["username"]
    c.Authenticator.post_auth_hook = from_this_course

# ── Groups and roles ─────────────────────────────────────────────────────────────────────────────────────────────────
c.JupyterHub.load_groups = {
    taught: {"users": sorted(students)},
    teaching: {"users": [*sorted(instructors), course["account"]]},
}
c.JupyterHub.load_roles = [
    {  # a server may ask for its owner's groups, and about services as far as its owner may
        "name": "server",
        "scopes": [
            "users:activity!user",
            "access:servers!server",
            "read:users:name!user",
            "read:users:groups!user",
            "list:services",
            "read:services",
        ],
    },
    {  # who may open formgrader, and see in Course List that it is there
        "name": "instructor",
        "groups": [teaching],
        "scopes": [f"access:services!service={course['id']}", "list:services", "read:services"],
    },
    {  # formgrader adds students to the course, and asks who its own account is
        "name": "formgrader",
        "services": [course["id"]],
        "scopes": ["list:groups", f"groups!group={taught}", f"read:users:groups!user={course['account']}"],
    },
    {
        "name": "idle-culler",
        "services": ["idle-culler"],
        "scopes": ["list:users", "read:users:activity", "read:servers", "delete:servers"],
    },
]

# ── Services ─────────────────────────────────────────────────────────────────────────────────────────────────────────
everyone = Path(paths["config"]) / "everyone"
common = {
    "PATH": f"{environment / 'bin'}:/usr/local/bin:/usr/bin:/bin",
    "LAB_DATA": paths["data"],
    "COURSE_HUB_EXCHANGE": paths["exchange"],
    "COURSE_HUB_COURSE": course["id"],
    "COURSE_HUB_IDLE_MINUTES": str(servers["idle_minutes"]),
    "OMP_NUM_THREADS": str(servers["cores"]),
    "OMP_WAIT_POLICY": "passive",
}
demo = {name: os.environ[name] for name in ("COURSE_HUB_DEMO",) if name in os.environ}  # it finds its own by that
as_course = {  # the course's account: nbgrader's settings for it, and autograde, which this account alone has
    **common,
    "JUPYTER_CONFIG_PATH": f"{Path(paths['config']) / 'course'}:{everyone}",
    "PYTHONPATH": course["grader"],
    **{name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ},
}
if sbatch := shutil.which("sbatch"):  # grading by Slurm; it may be installed elsewhere than in /usr/bin
    as_course["PATH"] += f":{Path(sbatch).parent}"
c.JupyterHub.services = [
    {  # formgrader: JupyterLab as the course's account, for the instructors
        "name": course["id"],
        "url": f"http://127.0.0.1:{network['course_port']}",
        "user": course["account"],
        "cwd": course["folder"],
        "oauth_no_confirm": True,
        "timeout": 300,  # seconds; JupyterHub's own 30 are too few for a machine that is busy, and end the hub
        "command": [str(environment / "bin" / "jupyterhub-singleuser"), f"--ServerApp.root_dir={course['folder']}"],
        "environment": {
            **as_course,
            "JUPYTERHUB_USER": course["account"],
            "JUPYTERHUB_DEFAULT_URL": "/lab?formgrader=true",
        },
    },
    {
        "name": "idle-culler",
        "environment": demo,
        "command": [
            str(Path(paths["hub"]) / "bin" / "jupyterhub-idle-culler"),
            f"--timeout={60 * servers['idle_minutes']}",
            f"--max-age={3600 * servers['most_hours']}",
            "--cull-every=60",
        ],
    },
]
if course["grade_on_submission"]:
    c.JupyterHub.load_roles.append(
        {  # nbgrader asks whether the account, and who has submitted, belong to the course
            "name": "grade-on-submission",
            "services": ["grade-on-submission"],
            "scopes": [f"read:users:groups!user={course['account']}", f"read:users:groups!group={taught}"],
        }
    )
    c.JupyterHub.services.append(
        {  # it has no page
            "name": "grade-on-submission",
            "user": course["account"],
            "cwd": course["folder"],
            "environment": as_course,
            "command": [  # not `python -m`: that would run the checkout's grader, and `lab grade` the installed one
                *(str(environment / "bin" / "lab"), "serve", *course["grade_on_submission"]),
                *("--executor", grading["executor"], "--jobs", str(grading["jobs"])),
                *(f"--slurm={option}" for option in grading["slurm"]),
                *(("--metrics", course["metrics"]) if course["metrics"] else ()),
            ],
        }
    )
if network["metrics_token"]:
    c.JupyterHub.services.append({"name": "prometheus", "api_token": network["metrics_token"]})
    c.JupyterHub.load_roles.append({"name": "prometheus", "services": ["prometheus"], "scopes": ["read:metrics"]})

# ── Servers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def config_path(spawner):
    """Which of nbgrader's extensions a server has: by its owner's group."""
    teaches = any(group.name == teaching for group in spawner.user.groups)
    return f"{Path(paths['config']) / ('instructors' if teaches else 'students')}:{everyone}"


c.JupyterHub.allow_named_servers = False
c.JupyterHub.active_server_limit = servers["at_most"]
c.JupyterHub.shutdown_on_logout = False
c.Spawner.cmd = [str(environment / "bin" / "jupyterhub-singleuser")]
c.Spawner.env_keep = ["LANG"]
c.Spawner.environment = {**common, "JUPYTER_CONFIG_PATH": config_path, "COURSE_HUB_DEADLINES": json.dumps(course["deadlines"])}
c.Spawner.mem_limit = f"{servers['memory_gib']}G"  # what JupyterLab's memory display shows
c.Spawner.start_timeout = 120
c.Spawner.http_timeout = 300  # a server starts beside what others train

if servers["spawner"] == "local":
    c.JupyterHub.spawner_class = "local_spawner.CourseSpawner"
    c.CourseSpawner.memory_gib = float(servers["memory_gib"])
    # A start takes some three processor seconds: so many are done within a minute, and who is sent away comes again then.
    c.JupyterHub.concurrent_spawn_limit = 20 * (os.cpu_count() or 1)
    c.CourseSpawner.processes = servers["processes"]
    c.CourseSpawner.first_port = network["server_ports"]
    c.CourseSpawner.hidden = paths["hidden"]
else:
    import slurm_spawner  # it also adds the address at which a job says its port

    def apply_answers(spawner, answers):
        """Turn the form's answers into what the batch script takes, and leave nothing else of them."""
        spawner.user_options = {}  # batchspawner would let them replace any part of its script
        try:
            request = slurm_form.read_request(answers, partitions)
        except ValueError as error:
            raise slurm_spawner.refusal(str(error), "options") from None
        spawner.req_partition = request.partition.name
        spawner.req_nprocs = str(request.partition.cores)
        spawner.req_gres, spawner.req_runtime = request.gres, request.runtime

    slurm = site["slurm"]
    c.JupyterHub.spawner_class = "slurm_spawner.CourseSlurmSpawner"
    c.Spawner.options_form = slurm_form.form(partitions)
    # The hub's own field, against forms on others' pages, comes along with the form's.
    c.Spawner.options_from_form = lambda fields: {name: fields[name] for name in fields if name != "_xsrf"}
    c.Spawner.apply_user_options = apply_answers
    c.Spawner.start_timeout = slurm["start_seconds"]  # a job may wait in the queue
    c.Spawner.mem_limit = f"{slurm['memory_gib']}G"
    c.Spawner.environment["OMP_NUM_THREADS"] = lambda spawner: spawner.req_nprocs
    c.Spawner.env_keep = ["LANG", "SLURM_CONF"]
    start_server = Path(paths["config"]) / "slurm" / "start_server.py"
    c.SlurmSpawner.batchspawner_singleuser_cmd = f"{environment / 'bin' / 'python'} -I {start_server}"
    c.SlurmSpawner.req_memory = f"{slurm['memory_gib']}G"
    c.SlurmSpawner.req_options = f"--account={slurm['account']}" if slurm["account"] else ""
    c.SlurmSpawner.req_prologue = slurm["prologue"]  # e.g. source /etc/profile; module load cuda
    c.JupyterHub.cleanup_servers = False  # jobs outlive the hub, which finds them again
