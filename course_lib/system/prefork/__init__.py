"""Processes that start at once: a server imports libraries, and forks itself for each request.

`course_lib.runs.warm_kernels` forks kernels, the grader forks the interpreters of its sandboxes. A server is a program
that calls `course_lib.system.prefork.server.main`; its client is `ForkServer`.
"""

from course_lib.system.prefork.client import ForkedProcess, ForkServer, ForkServerError

__all__ = ["ForkServer", "ForkServerError", "ForkedProcess"]
