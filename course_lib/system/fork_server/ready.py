"""End the set-up of Python's fork server: its last import, see `course_lib.distributed.launching.forked_ranks`.

A process of it that collects garbage would look at every object of the libraries, and copy every page that holds one: a
quarter of a second of processor time for each rank.
"""

import gc

gc.collect()
gc.freeze()
gc.enable()
