"""The paper's Algorithm 1 and CapsuleNet's procedure 1, in plain loops: slow, and easy to compare with the papers."""

import torch
import torch.nn.functional as F
from torch import Tensor

from arcaps import AttentionRouting, CapsuleActivation, ConvCaps
from arcaps.activation import ChannelAffine


def vote(layer: ConvCaps, capsules: Tensor, n: int, m: int) -> Tensor:
    """The convolutional transform of input channel m for output channel n, as (batch, height, width, dim)."""
    channel = capsules[:, :, :, m, :].permute(0, 3, 1, 2)
    kernel = layer.votes.weight[m, :, :, :, n, :].permute(3, 2, 0, 1)
    bias = None if layer.votes.bias is None else layer.votes.bias[m, n]
    votes = F.conv2d(channel, kernel, bias, stride=layer.votes.stride, padding=layer.votes.padding)
    return votes.permute(0, 2, 3, 1)


def algorithm_1(layer: ConvCaps, capsules: Tensor) -> tuple[Tensor, Tensor]:
    """One layer of Algorithm 1 with the parameters of `layer`: the output capsules and the coefficients."""
    assert isinstance(layer.routing, AttentionRouting)
    assert isinstance(layer.activation, CapsuleActivation)
    in_caps, out_caps = layer.votes.in_caps, layer.votes.out_caps
    output_channels, all_coefficients = [], []
    for n in range(out_caps):
        # Convolutional transformation for each capsule channel
        transformed = []
        for m in range(in_caps):
            transformed.append(vote(layer, capsules, n, m))

        # Attention through capsule channel
        batch, height, width, dim = transformed[0].shape
        routed = torch.zeros(batch, height, width, dim, dtype=capsules.dtype)
        coefficients = torch.zeros(batch, height, width, in_caps, dtype=capsules.dtype)
        for image in range(batch):
            for h in range(height):
                for w in range(width):
                    everything = torch.cat([transformed[m][image, h, w] for m in range(in_caps)])
                    logits = torch.stack([everything @ layer.routing.weight[n, m].flatten() for m in range(in_caps)])
                    c = logits.exp() / logits.exp().sum()
                    coefficients[image, h, w] = c
                    for m in range(in_caps):
                        routed[image, h, w] = routed[image, h, w] + c[m] * transformed[m][image, h, w]
        all_coefficients.append(coefficients)

        # Capsule activation for each capsule channel
        for affine in layer.activation.affine:
            assert isinstance(affine, ChannelAffine)
            routed = routed @ affine.weight[n] + affine.bias[n]
        if layer.residual:
            routed = capsules[:, :, :, n, :] + routed
        output_channels.append(routed.tanh())
    return torch.stack(output_channels, dim=3), torch.stack(all_coefficients, dim=3)


def procedure_1(votes: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """CapsuleNet's routing for votes (out, inp, dim): the output capsules after the squash, and the coefficients."""
    outputs, inputs, _ = votes.shape
    logits = [[torch.zeros((), dtype=votes.dtype) for _ in range(inputs)] for _ in range(outputs)]
    for _ in range(iterations):
        coefficients = [[torch.zeros(())] * inputs for _ in range(outputs)]
        for i in range(inputs):
            total = sum(logits[j][i].exp() for j in range(outputs))
            for j in range(outputs):
                coefficients[j][i] = logits[j][i].exp() / total
        capsules = []
        for j in range(outputs):
            s = sum((coefficients[j][i] * votes[j, i] for i in range(inputs)), torch.zeros_like(votes[0, 0]))
            square = (s * s).sum()
            capsules.append(square / (1 + square) * s / square.sqrt())
        for j in range(outputs):
            for i in range(inputs):
                logits[j][i] = logits[j][i] + votes[j, i] @ capsules[j]
    return torch.stack(capsules), torch.stack([torch.stack(row) for row in coefficients])
