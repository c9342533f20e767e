"""Jupyter Server's settings for the shared server that grades."""

c = get_config()  # noqa: F821  (jupyter_server provides it)
# JupyterLab shows formgrader in a frame, which JupyterHub forbids by default. 'self' is this origin: give users domains
# of their own ([network] domain), and a student's page is not part of it.
c.ServerApp.tornado_settings = {"headers": {"Content-Security-Policy": "frame-ancestors 'self'"}}
