"""AR CapsNet with attention routing as plain convolutions: the same numbers, two to three times faster outside torch.

A trace of the model itself gathers windows, transposes seven axes and multiplies by Einsum, which runtimes do slowly.
Here capsules stay feature maps `(batch, caps * dim, height, width)`, capsule channel by capsule channel, and every
product is a grouped convolution whose weights are rearranged once:

| part of a layer         | as a convolution                                                                          |
|-------------------------|-------------------------------------------------------------------------------------------|
| votes                   | one group per input capsule, from `in_dim` to `out_caps * dim` channels                   |
| logits of the attention | 1x1, one group per output capsule, from `in_caps * dim` to `in_caps` channels             |
| the activation's affine | 1x1, one group per capsule                                                                |
"""

from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from arcaps.activation import Activation, CapsuleActivation, ChannelAffine, Squash, SquashVariant
from arcaps.capsules import Capsules
from arcaps.functional import keep_one
from arcaps.layers import ClassCaps, ConvCaps, Decoder
from arcaps.models import ARCapsNet, Classifier, Output
from arcaps.routing import AttentionRouting
from arcaps.votes import ConvVotes

BOUNDS = (CapsuleActivation, Squash, SquashVariant)
"""The activations that are known here."""


def has_convolution_form(model: Classifier) -> bool:
    """Whether the model is an AR CapsNet whose layers are all of the kinds that are known here."""
    if not isinstance(model, ARCapsNet) or model.primary.presence is not None or model.score.name == "presence":
        return False
    return all(is_plain(layer) for _, layer in model.routing_layers())


def is_plain(layer: ConvCaps) -> bool:
    """Whether a layer has convolutional votes, the paper's attention and an activation that is known here."""
    activation = layer.activation
    return (
        type(layer) in (ConvCaps, ClassCaps)
        and type(layer.votes) is ConvVotes
        and layer.plain
        and type(layer.routing) is AttentionRouting
        and layer.routing.heads == 1
        and type(activation) in BOUNDS
    )


def frozen(convolution: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> nn.Conv2d:
    """A convolution with these weights."""
    convolution.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
    if bias is not None:
        convolution.bias = nn.Parameter(bias.detach().flatten().clone(), requires_grad=False)
    return convolution


def affine_convolution(affine: ChannelAffine) -> nn.Conv2d:
    """One affine map per capsule channel, as a grouped 1x1 convolution."""
    caps, in_dim, out_dim = affine.weight.shape
    weight = rearrange(affine.weight, "caps d e -> (caps e) d 1 1")
    return frozen(nn.Conv2d(caps * in_dim, caps * out_dim, 1, groups=caps), weight, affine.bias)


class MapActivation(nn.Module):
    """A capsule activation on maps."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.caps, self.dim = activation.caps, activation.dim
        affine = [part for part in activation.modules() if isinstance(part, ChannelAffine)]
        self.affine = nn.Sequential(*(affine_convolution(one) for one in affine))
        self.activation = activation

    def forward(
        self,
        maps: Float[Tensor, "batch channels height width"],
        residual: Float[Tensor, "batch channels height width"] | None = None,
    ) -> Float[Tensor, "batch channels height width"]:
        maps = self.affine(maps)
        maps = maps if residual is None else residual + maps
        if isinstance(self.activation, CapsuleActivation):
            return maps.tanh()
        capsules = rearrange(maps, "b (n d) h w -> b h w n d", n=self.caps)
        return rearrange(self.activation.bound(capsules), "b h w n d -> b (n d) h w")


class MapVotes(nn.Module):
    """Convolutional votes on maps."""

    def __init__(self, votes: ConvVotes) -> None:
        super().__init__()
        self.in_caps, self.out_caps = votes.in_caps, votes.out_caps
        convolution = nn.Conv2d(
            votes.in_caps * votes.in_dim,
            votes.in_caps * votes.out_caps * votes.out_dim,
            votes.kernel,
            stride=votes.stride,
            padding=votes.padding,
            groups=votes.in_caps,
            bias=votes.bias is not None,
        )
        self.convolution = frozen(convolution, rearrange(votes.weight, "m i j d n e -> (m n e) d i j"), votes.bias)

    def forward(
        self, maps: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch out inp dim new_height new_width"]:
        return rearrange(self.convolution(maps), "b (m n e) h w -> b n m e h w", m=self.in_caps, n=self.out_caps)


class WholeMapVotes(nn.Module):
    """Votes of kernels that see the whole map, as one matrix product per input capsule: faster for many images."""

    def __init__(self, votes: ConvVotes) -> None:
        super().__init__()
        self.in_caps, self.out_caps = votes.in_caps, votes.out_caps
        self.register_buffer("weight", rearrange(votes.weight, "m i j d n e -> m (d i j) (n e)").detach().contiguous())
        bias = None if votes.bias is None else rearrange(votes.bias, "m n e -> m 1 (n e)").detach().contiguous()
        self.register_buffer("bias", bias)
        self.weight: Tensor
        self.bias: Tensor | None

    def forward(self, maps: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch out inp dim 1 1"]:
        products = rearrange(maps, "b (m d) h w -> m b (d h w)", m=self.in_caps) @ self.weight
        products = products if self.bias is None else products + self.bias
        return rearrange(products, "m b (n e) -> b n m e 1 1", n=self.out_caps)


class MapLayer(nn.Module):
    """A capsule layer with attention routing on maps."""

    def __init__(self, layer: ConvCaps, *, products: bool) -> None:
        super().__init__()
        routing = layer.routing
        assert isinstance(routing, AttentionRouting)
        assert isinstance(layer.votes, ConvVotes)
        inp, out, dim = routing.in_caps, routing.out_caps, routing.dim
        self.votes = WholeMapVotes(layer.votes) if products else MapVotes(layer.votes)
        weight = rearrange(routing.scaled_weight, "out logit inp dim -> (out logit) (inp dim) 1 1")
        self.logits = frozen(nn.Conv2d(out * inp * dim, out * inp, 1, groups=out, bias=False), weight, None)
        self.activation = MapActivation(layer.activation)
        self.residual = layer.residual

    def forward(
        self, maps: Float[Tensor, "batch channels height width"]
    ) -> tuple[
        Float[Tensor, "batch out_channels new_height new_width"], Float[Tensor, "batch new_height new_width out inp"]
    ]:
        votes = self.votes(maps)
        logits = self.logits(rearrange(votes, "b n m e h w -> b (n m e) h w"))
        coefficients = rearrange(logits, "b (n m) h w -> b n m h w", n=votes.shape[1]).softmax(2)
        routed = rearrange((votes * coefficients.unsqueeze(3)).sum(2), "b n e h w -> b (n e) h w")
        capsules = self.activation(routed, maps if self.residual else None)
        return capsules, rearrange(coefficients, "b n m h w -> b h w n m")


class ConvolutionForm(nn.Module):
    """AR CapsNet as convolutions: it answers as the model does, with the coefficients.

    With `products` the class layer's votes are matrix products, which is faster; without, they are a convolution too,
    which integer arithmetic needs.
    """

    def __init__(self, model: ARCapsNet, *, products: bool = True) -> None:
        super().__init__()
        self.model = model
        self.primary = MapActivation(model.primary.activation)
        self.names = [name for name, _ in model.routing_layers()]
        self.layers = nn.ModuleList(
            MapLayer(layer, products=products and name == "class_caps") for name, layer in model.routing_layers()
        )

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Output:
        model = self.model
        maps = model.primary.conv(model.stem(images))
        maps = self.primary(maps.relu() if model.primary.relu else maps)
        coefficients = {}
        for name, layer in zip(self.names, self.layers, strict=True):
            maps, coefficients[name] = layer(maps)
        coefficients["class_caps"] = rearrange(coefficients["class_caps"], "b 1 1 n m -> b n m")
        order = "b (d n) 1 1 -> b n d" if model.class_caps.layout == "code" else "b (n d) 1 1 -> b n d"
        capsules = rearrange(maps, order, n=model.classes)
        scores, logits = model.score(Capsules(capsules))
        decoder: Decoder | None = model.decoder
        reconstruction = None if decoder is None else decoder(keep_one(capsules, scores.argmax(-1)))
        return Output(scores, capsules, reconstruction, logits, coefficients)
