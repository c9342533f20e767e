"""What earns points, as a rubric says, and what somebody got: a verdict."""
