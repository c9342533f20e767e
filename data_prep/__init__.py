"""Stages the data sets, once for everybody."""
