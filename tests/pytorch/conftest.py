"""Who computes a test's convolutions: its fixture says."""

import pytest


@pytest.fixture(autouse=True)
def _plainly(plainly):
    """Layers are tested by kernels' default settings, but where a test wants `estimates`."""


@pytest.fixture
def estimates(plainly, monkeypatch):
    from nkiconv.planner import estimate

    monkeypatch.setattr(estimate, "chosen", plainly)


@pytest.fixture(params=["torch", "simulate", "compare"])
def mode(request, monkeypatch):
    """Each of NKICONV_CPU; a test that wants fewer says so by `indirect`."""
    monkeypatch.setenv("NKICONV_CPU", request.param)
    return request.param


@pytest.fixture
def simulate(monkeypatch):
    """The kernels compute, and torch's gradients of filters are out of reach."""
    from nkiconv.pytorch.computers import host

    monkeypatch.setenv("NKICONV_CPU", "simulate")
    monkeypatch.setattr(host, "filters_gradient", None)


@pytest.fixture
def made(monkeypatch):
    """Names of the functions of fused rows that run."""
    from nkiconv.pytorch.models import rows

    found = []
    for name in ("gated_short_conv", "causal_conv1d_split", "glu_conv1d"):
        own = getattr(rows, name)

        def counted(*args, own=own, name=name, **named):
            found.append(name)
            return own(*args, **named)

        monkeypatch.setattr(rows, name, counted)
    return found


@pytest.fixture
def priced(monkeypatch):
    """Given a request's modelled us, has quick plans take them, and a pass 2; returns the requests that come."""
    from nkiconv.pytorch.models import prices

    def price(us):
        asked = []
        monkeypatch.setattr(prices, "_us", lambda request: asked.append(request) or us(request))
        monkeypatch.setattr(prices, "pass_us", lambda *_: 2.0)
        return asked

    return price


@pytest.fixture
def published(monkeypatch):
    """Lets video blocks of tests be known, as published ones are."""
    from fused_models import Causal, Clip, Ltx, Wan

    from nkiconv.pytorch.models import first_planes, pixel_chains, videos

    monkeypatch.setitem(videos._KNOWN, videos.fingerprint(Wan.forward), videos._around_wan)
    monkeypatch.setitem(first_planes._KNOWN, videos.fingerprint(Causal.forward), first_planes._video_of_ltx)
    for block, convolution in ((Clip, "conv1"), (Ltx, "conv1.conv")):
        monkeypatch.setitem(pixel_chains._KNOWN, videos.fingerprint(block.forward), (convolution, "norm2"))
