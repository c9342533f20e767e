"""``python -m autograde grade LAB``: the `lab` command, where it is not on the PATH."""

from course_lib.runs.cli import main

if __name__ == "__main__":
    main()
