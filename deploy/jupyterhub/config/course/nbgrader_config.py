"""nbgrader's settings for the shared server that grades: the course's own come from its checkout, the working folder."""

c = get_config()  # noqa: F821  (nbgrader provides it)
# Instructors see a student's submissions by the gradebook; little else differs from config/everyone.
c.ExchangeCollect.check_owner = True  # who handed a submission in must be who its name says
# Several processes may grade with what is read here once: they may not share the names of their kernels' sockets.
c.KernelManager.transport = "tcp"
c.KernelManager.ip = "127.0.0.1"
