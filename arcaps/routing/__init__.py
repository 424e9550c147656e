"""Routings: one file per algorithm, one interface."""

from arcaps.routing.attention import AttentionRouting, attention_routing
from arcaps.routing.base import Routing
from arcaps.routing.dynamic import DynamicRouting, dynamic_routing
from arcaps.routing.query_key import QueryKeyRouting, query_key_routing

__all__ = [
    "AttentionRouting",
    "DynamicRouting",
    "QueryKeyRouting",
    "Routing",
    "attention_routing",
    "dynamic_routing",
    "query_key_routing",
]
