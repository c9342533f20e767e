"""The pages that show a submission to a reader: ``nbgrader generate_feedback``'s and formgrader's.

A student's Markdown, code, outputs and attachments are content, never markup. `student_content` turns them into inert
HTML, `page` makes a whole page of a notebook, `page_process` does so in a process with bounded time and memory,
`feedback` and `formgrader` put that into nbgrader.
"""
