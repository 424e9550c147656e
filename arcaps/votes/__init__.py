"""Votes: every input capsule predicts every output capsule. One file per kind, one interface."""

from arcaps.votes.base import Overlap, Votes, list_votes
from arcaps.votes.conv import ConvVotes, WindowVotes
from arcaps.votes.matrix import MatrixVotes
from arcaps.votes.patches import make_patches, votes_of_patches

__all__ = [
    "ConvVotes",
    "MatrixVotes",
    "Overlap",
    "Votes",
    "WindowVotes",
    "list_votes",
    "make_patches",
    "votes_of_patches",
]
