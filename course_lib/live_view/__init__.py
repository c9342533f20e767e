"""Display of a training, of ranks and of a failed check in a notebook. Training code imports only the listener's interface."""
