"""Tests of the models, one file for each family."""
