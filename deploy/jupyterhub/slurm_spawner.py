"""Servers that are Slurm jobs: batchspawner's, without its open doors and its forgotten jobs.

batchspawner lets a running server set *any* attribute of its spawner through the hub's API, and some attributes are
commands that the hub, which is root, runs. Here a job may report its port, once, while the hub waits for it.
"""

import asyncio
import hmac
import os
import re
import shutil
from collections.abc import AsyncIterator

from batchspawner import SlurmSpawner
from batchspawner.api import BatchSpawnerAPIHandler
from batchspawner.batchspawner import JobStatus
from jupyterhub.apihandlers import APIHandler, default_handlers
from jupyterhub.spawner import SpawnException
from tornado import web
from traitlets import Unicode, default

LOG = ".jupyterhub-server.log"
RUNNING = "RUNNING|COMPLETING|SUSPENDED|STOPPED|RESIZING|SIGNALING|STAGE_OUT"
# The environment is what the hub gives to sbatch, and no login shell is asked for more. The server takes the place of
# the shell, so that Slurm's signals reach it; it is no job step, so that `srun` in its terminal can start steps.
BATCH_SCRIPT = f"""#!/bin/bash
#SBATCH --job-name=jupyterhub
#SBATCH --output={{{{homedir}}}}/{LOG}
#SBATCH --open-mode=truncate
#SBATCH --chdir={{{{homedir}}}}
#SBATCH --export=ALL
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --partition={{{{partition}}}}
#SBATCH --time={{{{runtime}}}}
#SBATCH --mem={{{{memory}}}}
#SBATCH --cpus-per-task={{{{nprocs}}}}
{{% if gres %}}#SBATCH --gres={{{{gres}}}}
{{% endif %}}{{% if options %}}#SBATCH {{{{options}}}}
{{% endif %}}
umask 077
{{{{prologue}}}}
exec {{{{cmd}}}}
"""


def _whole_path(command: str) -> str:
    return shutil.which(command) or command


class CourseSlurmSpawner(SlurmSpawner):
    """One job for each server; the site's limits come from ``jupyterhub_config.py``."""

    exec_prefix = Unicode("").tag(config=True)  # each command says itself as whom it runs
    batch_script = Unicode(BATCH_SCRIPT).tag(config=True)
    # Suspended and resized jobs are there still; and so may be every job while Slurm does not answer.
    state_running_re = Unicode(f"^(?:{RUNNING})").tag(config=True)
    state_unknown_re = Unicode(r"(?s)^(?!.*Invalid job id specified).*error:").tag(config=True)

    @default("batch_submit_cmd")
    def _submit(self) -> str:
        return f"{_whole_path('runuser')} -u {{username}} -- {_whole_path('sbatch')} --parsable"

    @default("batch_cancel_cmd")
    def _cancel(self) -> str:
        return f"{_whole_path('runuser')} -u {{username}} -- {_whole_path('scancel')} {{job_id}}"

    @default("batch_query_cmd")
    def _query(self) -> str:
        # As the hub's account: what a student's process answers, the student may have made up.
        return f"{_whole_path('squeue')} --noheader --user={{username}} --jobs={{job_id}} --format='%T|%B|%r'"

    waits_for_port = False
    submitted = False  # by this hub, and not by one before it

    async def start(self) -> tuple[str, int]:
        """Submit the job and wait until it runs and has said its port; returns the node's address and that port.

        Raises
        ------
        SpawnException
            Slurm refuses the job, the job waits or starts for too long, or it ends. The student reads the message.
        """
        self.ip, self.port = "0.0.0.0", 0
        if self.server:
            self.server.port = 0
        # The hub's own end gives the student no reason.
        end = asyncio.get_running_loop().time() + self.start_timeout - 5
        try:
            self.job_id = self.job_status = ""
            await self.submit_batch_script()
        except RuntimeError as error:
            raise refusal(f"Slurm does not take the job: {_last_line(error)}", "refused", 503) from None
        if not self.job_id:
            raise refusal("Slurm took the job and said no number", "refused", 503)
        self.orm_spawner.state = self.get_state()  # a hub that is restarted now still knows what to cancel
        self.db.commit()
        self.waits_for_port = self.submitted = True
        try:
            while (status := await self.query_job_status()) is not JobStatus.RUNNING or not self.port:
                if status is JobStatus.NOTFOUND:
                    raise refusal(f"Job {self.job_id} ended before its server was up; see ~/{LOG}", "ended", 500)
                if asyncio.get_running_loop().time() > end:
                    raise refusal(self._too_long(status), "timeout", 504)
                await asyncio.sleep(self.startup_poll_interval)
        finally:
            self.waits_for_port = False
        self.ip = await self._address(self.job_status.split("|")[1])
        self.db.commit()
        self.log.info("%s: job %s serves at %s:%s", self.user.name, self.job_id, self.ip, self.port)
        return self.ip, self.port

    async def poll(self) -> int | None:
        """None while the job is there. One that a hub before this one submitted, and never saw running, is cancelled."""
        if self.job_id and not self.submitted and self.server and not self.server.port:
            self.log.warning("%s: job %s had not started when the hub ended", self.user.name, self.job_id)
            await self.stop(now=True)
            self.clear_state()
            return 1
        return await super().poll()

    async def stop(self, now: bool = False) -> None:
        """Cancel the job, and wait until Slurm has ended it; where Slurm does not answer, ask again for a while."""
        asked = False
        for _ in range(40):
            if not self.job_id:
                return
            try:
                if not asked:
                    await self.cancel_batch_job()
                asked = True
            except RuntimeError as error:
                self.log.warning("job %s: %s", self.job_id, _last_line(error))
            if now or await self.query_job_status() is JobStatus.NOTFOUND:
                return
            await asyncio.sleep(1)
        self.log.error("%s: job %s may still run; Slurm did not end it within 40 s", self.user.name, self.job_id)

    async def progress(self) -> AsyncIterator[dict[str, str]]:
        """What the page says that waits with the student."""
        said = ""
        while True:
            words = f"Job {self.job_id} {self._where()}" if self.job_id else "Asking Slurm for a job"
            if words != said:
                yield {"message": words}
            said = words
            if self.state_isrunning():
                return
            await asyncio.sleep(1)

    async def run_command(self, cmd: str, input: str | None = None, env: dict[str, str] | None = None) -> str:
        """Run one of Slurm's commands; only ``sbatch`` brings an environment of its own.

        The others run as the student too, who may read their environment: it is not the hub's.
        """
        if env is None:
            env = {name: os.environ[name] for name in ("PATH", "LANG", "SLURM_CONF") if name in os.environ}
        try:
            return await super().run_command(cmd, input=input, env=env)
        except OSError as error:  # no memory, no more processes: nothing is known about the job
            raise RuntimeError(f"error: {error}") from None

    def parse_job_id(self, output: str) -> str:
        """``sbatch --parsable`` says NUMBER or NUMBER;CLUSTER; nothing else becomes part of a command."""
        found = re.fullmatch(r"([0-9]+)(;[\w.-]+)?", output.splitlines()[-1] if output else "", re.ASCII)
        if not found:
            raise ValueError(f"no job number: {output[-200:]!r}")
        return found[1]

    async def _address(self, node: str) -> str:
        """The address by which Slurm itself reaches a node: only Slurm may know the node's name."""
        if not re.fullmatch(r"[\w.-]+", node, re.ASCII):
            raise refusal(f"Job {self.job_id} runs on no node that has a name", "node", 500)
        try:
            shown = await self.run_command(f"{_whole_path('scontrol')} --oneliner show node {node}")
        except RuntimeError:
            shown = ""
        address = re.search(r"\bNodeAddr=(\S+)", shown)
        return address[1] if address else node

    def _where(self) -> str:
        state, node, reason = (*self.job_status.split("|"), "", "", "")[:3]
        if self.state_ispending():
            return f"waits in partition {self.req_partition} ({reason})"
        return f"starts its server on {node}" if self.state_isrunning() else f"is {state.lower() or 'unknown'}"

    def _too_long(self, status: JobStatus) -> str:
        minutes = f"{self.start_timeout / 60:.3g} min"
        if status is JobStatus.RUNNING:
            return f"Job {self.job_id} {self._where()} and was not ready after {minutes}; see ~/{LOG}"
        advice = "choose fewer hours or GPUs, or another partition, or try again later"
        return f"Job {self.job_id} {self._where()}, did not start within {minutes} and is cancelled; {advice}"


class JobSaysItsPort(APIHandler):
    """``POST /hub/api/batchspawner {"port": NUMBER}`` with the server's own token."""

    @web.authenticated
    def post(self) -> None:
        token = (self.get_auth_token() or "").encode()
        spawners = getattr(self.current_user, "spawners", {}).values()
        waiting = [one for one in spawners if getattr(one, "waits_for_port", False)]
        ours = [one for one in waiting if one.api_token and hmac.compare_digest(one.api_token.encode(), token)]
        if not ours or ours[0].port:
            raise web.HTTPError(409, "no job with this token is waited for")
        body = self.get_json_body()
        port = body.get("port") if isinstance(body, dict) and len(body) == 1 else None
        if type(port) is not int or not 1024 <= port < 65536:
            raise web.HTTPError(400, "wanted: a port from 1024 to 65535, and nothing else")
        ours[0].port = port
        self.set_status(201)


def refusal(message: str, reason: str, status: int = 400) -> SpawnException:
    """What the student reads in place of a server."""
    error = SpawnException(message, reason=reason, status_code=status)
    error.jupyterhub_message = message  # without it the page that waits says only that it failed
    return error


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


default_handlers[:] = [one for one in default_handlers if one[1] is not BatchSpawnerAPIHandler]
default_handlers.append((r"/api/batchspawner", JobSaysItsPort))
