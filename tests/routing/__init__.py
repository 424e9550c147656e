"""Tests of the routings, one file for each."""
