"""Blocks of a convolution and a batch norm, and models of them in eval mode."""

import torch
from tolerances import assert_within_share, sums_share
from torch import nn
from torch.nn import functional as F

from nkiconv.pytorch import convert

KINDS = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}


def exact(model, seed=0):
    """Eval mode, integers for parameters and means, powers of two for scales, eps 0: no arithmetic rounds."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats:
                module.eps = 0.0
                module.running_mean.copy_(torch.randint(-3, 4, module.running_mean.shape, generator=generator))
                module.running_var.copy_(4.0 ** torch.randint(-1, 2, module.running_var.shape, generator=generator))
            for name, one in module.named_parameters(recurse=False):
                low = 1 if name == "weight" and one.dim() == 1 else -3
                one.copy_(torch.randint(low, 4, one.shape, generator=generator))
    return model.eval()


class Block(nn.Module):
    """conv, batch norm; what else happens to either is the subclass's."""

    def __init__(self, rank=2, **more):
        super().__init__()
        conv, norm = KINDS[rank]
        self.conv, self.bn = conv(3, 4, 3, **more), norm(4)

    def forward(self, x):
        return torch.relu(self.bn(self.conv(x)))


def folded(model, x):
    """(the report, whether the folded model gives the same)."""
    report = convert(model, fold_batchnorm=True)
    return report, torch.equal(report.model(x), model(x))


X = torch.randint(-3, 4, (2, 3, 7, 6), generator=torch.Generator().manual_seed(5)).float()


class ConvLayer(nn.Module):
    """Pads by what the image's size needs, which fx cannot trace, as transformers' MobileNetV2 does."""

    def __init__(self, padded=True, stray=False):
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2, bias=False)
        self.normalization, self.activation = nn.BatchNorm2d(4), nn.ReLU6()
        self.stray = stray

    def forward(self, features):
        height = features.shape[-2]
        if height % 2 == 0:
            features = F.pad(features, (0, 1, 0, 1))
        y = self.convolution(features)
        more = y.mean() if self.stray else 0
        return self.activation(self.normalization(y)) + more


def random_statistics(model):
    generator = torch.Generator().manual_seed(4)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            for one, low in ((module.running_mean, -0.5), (module.running_var, 0.5), (module.weight.data, 0.5)):
                one.copy_(torch.rand(one.shape, generator=generator) + low)
            module.bias.data.copy_(torch.randn(module.bias.shape, generator=generator))
    return model.eval()


def assert_near(found, truth, terms):
    """Filters are rounded once more, each of so many terms: through four sums."""
    assert_within_share([found], [truth], sums_share(terms, 4))
