"""What goes between the ranks of a process group: recorded, ordered, drawn, compared."""
