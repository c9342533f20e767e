"""nbgrader's settings for every server of the hub; the hub sets the variables."""

import os
import uuid

from nbgrader.auth import JupyterHubAuthPlugin

c = get_config()  # noqa: F821  (nbgrader provides it)
c.Exchange.root = os.environ["COURSE_HUB_EXCHANGE"]
c.CourseDirectory.course_id = os.environ["COURSE_HUB_COURSE"]
c.Authenticator.plugin_class = JupyterHubAuthPlugin  # who is in the course: the hub's groups
# The labs train; Validate runs a whole notebook.
c.ExecutePreprocessor.timeout = 1800
# A run folder goes along with the notebook: weights, curve, transcript.
c.CourseDirectory.max_file_size = 200_000  # kB
c.CourseDirectory.max_dir_size = 1_000_000  # kB
# Validate's kernel speaks through sockets, as jupyter_server_config.py says of notebooks' kernels. This file is read anew
# for each Validate, so each has names of its own. Without a server, as in a batch job, it stays with TCP.
if runtime := os.environ.get("JUPYTER_RUNTIME_DIR"):
    c.KernelManager.transport = "ipc"
    c.KernelManager.ip = f"{runtime}/validate-{uuid.uuid4().hex[:12]}"
