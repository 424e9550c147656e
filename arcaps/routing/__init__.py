"""Routings: one file per algorithm, one interface."""

from arcaps.capsules import Routed
from arcaps.routing.attention import AttentionRouting, attention_routing
from arcaps.routing.base import Compete, Routing, list_routings
from arcaps.routing.dynamic import DynamicRouting, dynamic_routing
from arcaps.routing.query_key import QueryKeyRouting, query_key_routing
from arcaps.routing.uniform import RandomRouting, UniformRouting

__all__ = [
    "AttentionRouting",
    "Compete",
    "DynamicRouting",
    "QueryKeyRouting",
    "RandomRouting",
    "Routed",
    "Routing",
    "UniformRouting",
    "attention_routing",
    "dynamic_routing",
    "list_routings",
    "query_key_routing",
]
