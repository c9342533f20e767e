"""Display of a training and of ranks in a notebook. Training code imports only the listener's interface."""
