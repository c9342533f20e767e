"""The modules that run in the student code's process, in the sandbox.

Nothing here is secret: these files hold no expected value, no reference and no path. They import only public libraries,
never `autograde`, and are loaded by path into a clean interpreter (`interpreter`), which is forked for every execution.

- `interpreter`: the fork server, whose forks enter a sandbox's namespaces;
- `confine`: the privileges that a fork gives up before any student code runs;
- `runner`: executes cells and calls functions, and answers in plain data;
- `wire`: that plain data.
"""
