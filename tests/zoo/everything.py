"""All models of the zoo, and which of them can be built here."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import of_diffusers
import of_torch
import of_transformers
import packages
from zoo import Model

PACKAGES = ("transformers", "diffusers", "timm", "torchvision", "torchaudio")


def models(only: Sequence[str]) -> list[Model]:
    """Those with one of these words in name or package; all without any."""
    everything = [*of_transformers.models(), *of_diffusers.models(), *of_torch.models()]
    return [
        one
        for one in everything
        if not only or any(word.lower() in f"{one.package} {one.name}".lower() for word in only)
    ]


def importable(wanted: Sequence[Model]) -> list[str]:
    """Import the packages of some models; those that are not installed."""
    missing = []
    for package in dict.fromkeys(one.package for one in wanted):
        try:
            packages.ready(package)
        except ImportError:
            missing.append(package)
    return missing


def command(program: str, text: str | None) -> argparse.ArgumentParser:
    """A command's parser, with what all of them take."""
    parser = argparse.ArgumentParser(
        prog=f"python {program}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", default=[], help="a word in a model's, package's or net's name")
    parser.add_argument("--out", type=Path, help="write the page to this file instead of stdout")
    return parser


def quiet() -> None:
    """Models say what they miss: weights, faster kernels."""
    warnings.simplefilter("ignore")
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.ERROR)
