"""What a person in front of a notebook sees while something trains: bars, growing curves, ranks told apart.

Where nobody looks, everything stays plain text: see `course_lib.live_view.front_end.watched`.
"""
