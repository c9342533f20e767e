"""The notebook's display of a training and of ranks: a listener, and what `launch` shows. Training code imports none of it."""
