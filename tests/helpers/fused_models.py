"""Models with what convert(fuse=True) makes one call, as published ones write it."""

import operator

import torch
from chained import C, made
from fused_sequences import ConformerModule, Delta
from torch import nn
from torch.nn import functional as F

WIDE = 3 * C
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


def chain(norm=None, act=None, conv=None):
    return nn.Sequential(norm or nn.GroupNorm(2, C), act or nn.SiLU(), conv or nn.Conv2d(C, 6, 3, padding=1))


def ranked(kind, rank):
    """A chain of a norm's kind and of images of this rank."""
    norm = nn.GroupNorm(4, C) if kind == "GroupNorm" else getattr(nn, f"{kind}{rank}d")(C, affine=True)
    options = {"padding": "same"} if rank == 1 else {"stride": 2, "padding": 1, "groups": 2}
    return chain(norm, conv=CONVOLUTIONS[rank](C, 6, 3, **options))


class Block(nn.Module):
    """A residual block whose two chains share an activation, which another branch calls too."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2, self.act = nn.GroupNorm(2, C), nn.GroupNorm(2, C), nn.SiLU()
        self.conv1, self.conv2 = nn.Conv2d(C, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1)
        self.dropout, self.time = nn.Dropout(0.1), nn.Linear(4, C)

    def forward(self, x, t):
        h = self.conv1(self.act(self.norm1(x)))
        h = h + self.time(self.act(t))[:, :, None, None]
        h = self.conv2(self.dropout(self.act(self.norm2(h))))
        return (x + h) / 2


def functional(self, x, t):
    """Functions in the place of modules, and a sum in place."""
    h = self.conv1(F.silu(self.norm1(x)))
    h = self.conv2(F.dropout(torch.relu(self.norm2(h)), 0.5, False))
    h += x
    return h


def looped(self, x, t):
    """A loop that torch.fx cannot trace, around a block that it can."""
    for _ in range(int(t.shape[0])):
        x = self.block(x, t)
    return x


def missing(self, x, t, u=None):
    """A way that no call goes, as the module that it calls is missing."""
    return Block.forward(self, x if u is None else x + self.missing(u), t)


def unbound(self, x, t):
    """A way on which a name has no value."""
    if x.dim() == 4:
        height = x.shape[2]
    return Block.forward(self, x, t) / height * height


def padded(mode, rank=2, first=False, sides=None, **own):
    """A convolution with pixels around its input, before or after the activation, as HunyuanVideo's VAE has them."""
    sides = (1, 0, 2, 1, 1, 1)[: 2 * rank] if sides is None else sides

    def forward(self, x):
        h = self.norm(x)
        h = h if first else F.silu(h)
        h = F.pad(h, sides, mode=mode) if sides else h
        return self.conv(F.silu(h) if first else h)

    return made(forward, norm=nn.GroupNorm(2, C), conv=CONVOLUTIONS[rank](C, C, 3, **own))


def wrapped():
    """A residual block with a time, whose convolutions are in modules of their own, with copies of rows in front."""

    def causal():
        return made(lambda self, x: self.conv(F.pad(x, (1, 1, 2, 0), mode="replicate")), conv=nn.Conv2d(C, C, 3))

    def forward(self, x, t):
        h = self.conv1(F.silu(self.norm1(x)))
        return x + self.conv2(F.silu(self.norm2(h + t[:, :])))

    return made(forward, norm1=nn.GroupNorm(2, C), norm2=nn.GroupNorm(2, C), conv1=causal(), conv2=causal())


def bottleneck(act=None):
    """ResNet's, whose last activation sees a sum in place."""

    def forward(self, x):
        y = self.act(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(self.act(self.bn2(self.conv2(y)))))
        y += self.down(x)
        return self.act(y)

    convs = nn.Conv2d(C, 4, 1, bias=False), nn.Conv2d(4, 4, 3, 2, 1, bias=False), nn.Conv2d(4, C, 1, bias=False)
    parts = {f"conv{i}": one for i, one in enumerate(convs, 1)}
    parts |= {f"bn{i}": nn.BatchNorm2d(one.out_channels) for i, one in enumerate(convs, 1)}
    down = nn.Sequential(nn.Conv2d(C, C, 1, 2, bias=False), nn.BatchNorm2d(C))
    return made(forward, **parts, down=down, act=act or nn.ReLU(inplace=True))


def two(forward, rank=2, norm=None, **more):
    """Two convolutions, and what a function makes of them."""
    a, b = (CONVOLUTIONS[rank](C, C, 3, **{"padding": 1, **more}) for _ in range(2))
    return made(forward, a=a, b=b, act=nn.SiLU(), **({} if norm is None else {"norm": norm}))


#: What is made of two convolutions, what is told of them, and calls.
WAYS = {
    "functions": (lambda m, x: F.silu(m.b(torch.relu(m.a(x)))), ["a: relu", "b: silu"], "conv2d relu; conv2d silu"),
    "in place": (lambda m, x: F.silu(m.b(F.relu(m.a(x), inplace=True)), inplace=True), ["a: relu", "b: silu"],
        "conv2d relu; conv2d silu"),
    "a sum": (lambda m, x: m.b(x + m.a(x)), ["a: sum"], "conv2d sum; conv2d"),
    "a sum, second": (lambda m, x: torch.tanh(torch.add(x, m.a(x)) * m.b(x)), ["a: sum"], "conv2d sum; conv2d"),
    "both are terms": (lambda m, x: F.relu(m.a(x) + m.b(x)), ["a: sum, relu"], "conv2d; conv2d sum relu"),
    "in place, second": (lambda m, x: F.relu(operator.iadd(x * 2, m.a(x)) + m.b(x)), ["a: sum", "b: sum, relu"],
        "conv2d; conv2d sum relu"),
    "seen twice": (lambda m, x: torch.cat([y := m.a(x), F.relu(y)]) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
    "a product": (lambda m, x: F.relu(m.a(x) * 2) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
    "a number": (lambda m, x: F.relu(m.a(x) + 1) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
    "slope": (lambda m, x: F.leaky_relu(m.a(x)) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
    "doubled": (lambda m, x: F.relu((y := m.a(x)) + y) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
    "scaled": (lambda m, x: F.relu(torch.add(m.a(x), x, alpha=2)) + 0 * m.b(x).sum(), [], "conv2d; conv2d"),
}  # fmt: skip

#: What numbers for each channel, of a time, do to what a norm reads or gives, as in diffusers' UNets.
TIMES = {
    "offset": lambda norm, h, scale, shift: norm(h + shift),
    "offset, first": lambda norm, h, scale, shift: norm(scale + h),
    "scale and shift": lambda norm, h, scale, shift: norm(h) * (1 + scale) + shift,
    "shift, scale": lambda norm, h, scale, shift: (z := norm(h), shift + (1 + scale) * z)[1],
    "scale": lambda norm, h, scale, shift: norm(h) * scale,
    # what stays: another order, and numbers of pixels
    "shift before": lambda norm, h, scale, shift: (norm(h) + shift) * scale,
    "of pixels": lambda norm, h, scale, shift: norm(h) * scale.expand(h.shape),
}


def timed(how="offset", norm=None, rank=2):
    """A convolution, and a chain with numbers for each channel of a time."""

    def forward(self, x, t):
        scale, shift = F.silu(t)[(..., *[None] * rank)].chunk(2, 1)
        return self.conv2(F.silu(TIMES[how](self.norm, self.conv1(x), scale, shift)))

    conv = CONVOLUTIONS[rank]
    parts = {"conv1": conv(3, C, 3, padding=1), "conv2": conv(C, C, 3, padding=1)}
    return made(forward, norm=norm or nn.GroupNorm(2, C), **parts)


def summed():
    """A sum with what is no time, by its shape."""

    def forward(self, x, t):
        return self.conv2(F.silu(self.norm(self.conv1(x) + F.silu(t)[:, :])))

    return made(forward, conv1=nn.Conv2d(3, C, 3, padding=1), norm=nn.GroupNorm(2, C), conv2=nn.Conv2d(C, C, 3))


def residual(norm, rank=2, scale=1.0):
    """A block as diffusers' VAEs have it, with a division of the sum."""

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        return (x + self.conv2(F.silu(self.norm2(h)))) / self.scale

    conv1, conv2 = (CONVOLUTIONS[rank](C, C, 3, padding=1) for _ in range(2))
    return made(forward, norm1=norm(), norm2=norm(), scale=scale, conv1=conv1, conv2=conv2)


def net(norm=lambda: nn.GroupNorm(2, C), rank=2, scale=1.0, forward=None, **more):
    """A convolution, two blocks, and a norm at the end that no convolution follows."""
    blocks = nn.Sequential(*(residual(norm, rank, scale) for _ in range(2)))
    parts = {"stem": CONVOLUTIONS[rank](3, C, 3, padding=1), "blocks": blocks, "last": norm(), **more}
    return made(forward or (lambda self, x: self.last(self.blocks(self.stem(x)))), **parts)


def between(what):
    """Something happens between a convolution and the norm that reads its result."""
    return net(forward=lambda self, x: self.blocks[0](what(self.stem(x))))


def basic(rank=2, **options):
    """A basic block of a ResNet."""

    def forward(self, x):
        h = self.conv2(self.act(self.bn1(self.conv1(x))))
        return self.conv3(self.act(self.bn2(h)))

    conv, norm = CONVOLUTIONS[rank], getattr(nn, f"BatchNorm{rank}d")
    convs = {"conv1": conv(3, C, 3, padding=1), "conv2": conv(C, C, 3, padding=1), "conv3": conv(C, C, 1)}
    return made(forward, **convs, bn1=norm(C, **options), bn2=norm(C, **options), act=nn.ReLU(inplace=True))


class NormAct(nn.BatchNorm2d):
    """timm's: an activation in the norm's own forward."""

    def __init__(self, act, after=lambda y: y):
        super().__init__(C)
        self.act, self.after = act, [after]

    def forward(self, x):
        return self.after[0](self.act(super().forward(x)))


class GroupNormAct(nn.GroupNorm):
    def __init__(self, act):
        super().__init__(2, C)
        self.act = act

    def forward(self, x):
        return self.act(super().forward(x))


class Grown(nn.Module):
    """diffusers' Upsample2D: with a size it is torch's, and has no graph; without one it is the convolution's."""

    def __init__(self, convolution=None, **how):
        super().__init__()
        self.conv = convolution or nn.Conv2d(C, C, 3, padding=1)
        self.how = {"scale_factor": 2.0, "mode": "nearest", **how}

    def between(self, x):
        return x

    def forward(self, x, size=None):
        factor = 2 if size is None else max(one / own for one, own in zip(size, x.shape[-2:], strict=True))
        if x.numel() * factor > 2**31:
            x = x.contiguous()
        kind = x.dtype
        x = F.interpolate(x, size=size) if size is not None else F.interpolate(x, **self.how)
        if kind == torch.bfloat16 and torch.__version__ < "2.1":
            x = x.to(kind)
        return self.conv(self.between(x))


class Cast(nn.Upsample):
    """Wan's."""

    def forward(self, x):
        return super().forward(x.float()).type_as(x)


def large(then):
    """The large image of one layer, where something else sees it."""

    def forward(self, x):
        y = F.interpolate(x, scale_factor=2)
        return then(y, self.conv(y))

    return made(forward, conv=nn.Conv2d(C, C, 3, padding=1))


def changed_before(self, x):
    """The small image changes after it was doubled."""
    y = F.interpolate(x, scale_factor=2)
    x += 1
    return self.conv(y)


def decoder():
    """A block, an upsampler, and a block whose norm reads what the upsampler writes."""

    def forward(self, x):
        x = self.grow(self.before(x))
        return x + self.after(F.silu(self.norm(x)))

    before, after = nn.Conv2d(4, C, 3, padding=1), nn.Conv2d(C, C, 3, padding=1)
    return made(forward, norm=nn.GroupNorm(2, C), before=before, grow=Grown(), after=after)


def wan_above(base):
    """As diffusers' Wan and Qwen-Image VAEs, zeros around and a cache in front, above any class."""

    class Wan(base):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            self._padding = (self.padding[2],) * 2 + (self.padding[1],) * 2 + (2 * self.padding[0], 0)
            self.padding = (0, 0, 0)

        def forward(self, x, cache_x=None):
            sides = self._padding
            if cache_x is not None and sides[4] > 0:
                kept = cache_x.to(x.device)
                sides = (*sides[:4], sides[4] - kept.shape[2], *sides[5:])
                x = torch.cat((kept, x), dim=2)
            return super().forward(F.pad(x, sides))

    Wan.__qualname__ = "Wan"
    return Wan


Wan = wan_above(nn.Conv3d)


class PixelNorm(nn.Module):
    """RMSNorm, of a kind that divides by at least a length, or LayerNorm."""

    def __init__(self, channels=C, kind="rms", bias=False):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.bias, self.kind = nn.Parameter(torch.zeros(channels, 1, 1, 1)) if bias else 0.0, kind
        if kind == "layer":
            self.eps = 1e-6

    def forward(self, x):
        if self.kind == "layer":
            x = x - x.mean(1, keepdim=True)
            x = x * torch.rsqrt(x.square().mean(1, keepdim=True) + self.eps)
        else:
            x = F.normalize(x, dim=1) * x.shape[1] ** 0.5
        return x * self.gamma + self.bias + (self.kind == "another")


class Clip(nn.Module):
    """A residual block of videos with caches, as Wan's."""

    def __init__(self, **norm):
        super().__init__()
        self.norm1, self.norm2, self.act = PixelNorm(**norm), PixelNorm(**norm), nn.SiLU()
        self.conv1, self.conv2 = (Wan(C, C, 3, padding=1) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, caches=None):
        h, at = x, (None, None) if caches is None else tuple(caches)
        for index, (norm, conv) in enumerate([(self.norm1, self.conv1), (self.norm2, self.conv2)]):
            h = self.dropout(self.act(norm(h)))
            last = h[:, :, -2:].clone()
            h = conv(h, at[index])
            if caches is not None:
                caches[index] = last
        return x + h


class Causal(nn.Module):
    """A convolution of videos behind copies of their first planes, as LTX's."""

    def __init__(self, causal=True, **options):
        super().__init__()
        self.conv = nn.Conv3d(C, C, **{"kernel_size": 3, "padding": (0, 1, 1), **options})
        self.kernel_size, self.is_causal = self.conv.kernel_size, causal

    def forward(self, x):
        taps = self.kernel_size[0]
        if self.is_causal:
            x = torch.cat([x[:, :, :1].repeat(1, 1, taps - 1, 1, 1), x], 2)
        else:
            last = x[:, :, -1:].repeat(1, 1, taps // 2, 1, 1)
            x = torch.cat([x[:, :, :1].repeat(1, 1, taps // 2, 1, 1), x, last], 2)
        return self.conv(x)


class Ltx(nn.Module):
    """A residual block of videos with numbers of a time for each channel, as LTX's: channels come last in its norms."""

    def __init__(self, norm=lambda: nn.RMSNorm(C, 1e-6, False)):
        super().__init__()
        self.norm1, self.norm2 = norm(), norm()
        self.conv1, self.conv2 = Causal(), Causal()
        self.act, self.dropout = nn.SiLU(), nn.Dropout(0.1)

    def forward(self, x, t=None):
        scale, shift = (None, None) if t is None else t.chunk(2, 1)
        h = x
        for norm, conv in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            h = norm(h.movedim(1, -1)).movedim(-1, 1)
            h = h if t is None else h * (1 + scale) + shift
            h = conv(self.dropout(self.act(h)))
        return x + h


class Mlp(nn.Module):
    """Two linear layers, and what may be between them."""

    def __init__(self, act=None, between=None, dropout=0.1):
        super().__init__()
        self.fc1, self.act, self.drop = nn.Linear(C, WIDE), act or nn.GELU(), nn.Dropout(dropout)
        self.between, self.fc2 = between or nn.Identity(), nn.Linear(WIDE, C)

    def forward(self, x):
        return self.drop(self.fc2(self.between(self.drop(self.act(self.fc1(x))))))


class DropPath(nn.Module):
    """timm's, in eval mode."""

    def forward(self, x):
        return 3 * x if self.training else x


class ConvNext(nn.Module):
    """ConvNeXt's block as timm writes it, and whatever else reads what its layers read or give."""

    def __init__(self, mlp=None, scale=True, also=None, norm=None):
        super().__init__()
        self.norm, self.mlp, self.path = norm or nn.LayerNorm(C), mlp or Mlp(), DropPath()
        self.gamma, self.also = nn.Parameter(torch.ones(C)) if scale else None, also

    def forward(self, x):
        h = self.norm(x.permute(0, 2, 3, 1))
        y = self.mlp(h).permute(0, 3, 1, 2)
        if self.gamma is not None:
            y = y.mul(self.gamma.reshape(1, -1, 1, 1))
        y = self.path(y) + x
        return y if self.also is None else y + self.also(h)


def torchvisions():
    """The same as torchvision writes it."""

    def forward(self, x):
        y = self.block(self.norm(torch.permute(x, [0, 2, 3, 1])))
        y = self.scale * torch.permute(y, [0, 3, 1, 2])
        y += x
        return y

    block = nn.Sequential(nn.Linear(C, WIDE), nn.GELU(), nn.Linear(WIDE, C))
    return made(forward, norm=nn.LayerNorm(C), block=block, scale=nn.Parameter(torch.ones(C, 1, 1)))


def metas():
    """The same as Meta and transformers write it: scaled before it is permuted."""

    def forward(self, x):
        y = self.gamma * self.pwconv2(self.act(self.pwconv1(self.norm(x.permute(0, 2, 3, 1)))))
        return x + y.permute(0, 3, 1, 2)

    layers = {"pwconv1": nn.Linear(C, WIDE), "pwconv2": nn.Linear(WIDE, C), "gamma": nn.Parameter(torch.ones(C))}
    return made(forward, norm=nn.LayerNorm(C), act=nn.GELU(), **layers)


def convolutions(more=None):
    """The same by 1x1 convolutions."""

    def forward(self, x):
        h = x * 2 if self.more is None else self.more(x)
        return self.gamma * self.fc2(self.drop(self.act(self.fc1(h)))) + x

    layers = {"fc1": nn.Conv2d(C, WIDE, 1), "fc2": nn.Conv2d(WIDE, C, 1), "gamma": nn.Parameter(torch.ones(C, 1, 1))}
    return made(forward, act=nn.GELU(), drop=nn.Dropout(0.1), **layers, more=more)


def own_norm():
    """Meta's LayerNorm."""

    def forward(self, x):
        return F.layer_norm(x, (C,), self.weight, self.bias, self.eps)

    return made(forward, weight=nn.Parameter(torch.ones(C)), bias=nn.Parameter(torch.zeros(C)), eps=1e-6)


class FrontNorm(nn.LayerNorm):
    """timm's LayerNorm2d."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Conformer(ConformerModule):
    """A Conformer's convolution module of few channels."""

    def __init__(self):
        super().__init__(C, 5)


class Mamba(Delta):
    """A stage of a Mamba."""

    def __init__(self):
        super().__init__(C, [4, 6], bias=True, before=3)
