"""Routings: one file per algorithm, one interface."""

from arcaps.capsules import Routed
from arcaps.routing.agreement import InvertedRouting, KLRouting, SelfAttentionRouting, agreement_routing
from arcaps.routing.attention import AttentionRouting, attention_routing
from arcaps.routing.base import Compete, Routing, list_routings
from arcaps.routing.dynamic import DynamicRouting, dynamic_routing
from arcaps.routing.em import EMRouting, em_routing
from arcaps.routing.heinsen import HeinsenRouting, heinsen_routing
from arcaps.routing.query_key import QueryKeyRouting, query_key_routing
from arcaps.routing.score import ScoreRouting
from arcaps.routing.self_routing import SelfRouting, self_routing
from arcaps.routing.spectral import SpectralRouting, spectral_routing
from arcaps.routing.uniform import RandomRouting, UniformRouting
from arcaps.routing.variational import VariationalRouting, variational_routing

__all__ = [
    "AttentionRouting",
    "Compete",
    "DynamicRouting",
    "EMRouting",
    "HeinsenRouting",
    "InvertedRouting",
    "KLRouting",
    "QueryKeyRouting",
    "RandomRouting",
    "Routed",
    "Routing",
    "ScoreRouting",
    "SelfAttentionRouting",
    "SelfRouting",
    "SpectralRouting",
    "UniformRouting",
    "VariationalRouting",
    "agreement_routing",
    "attention_routing",
    "dynamic_routing",
    "em_routing",
    "heinsen_routing",
    "list_routings",
    "query_key_routing",
    "self_routing",
    "spectral_routing",
    "variational_routing",
]
