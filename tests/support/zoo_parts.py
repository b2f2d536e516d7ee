"""The groups of conf/, and data of the zoo compared."""

import torch
from omegaconf import OmegaConf
from projects import REPOSITORY

CONF = REPOSITORY / "conf"


def conf(total_steps=100, **choice):
    """The named members of the groups, as Hydra puts them together."""
    groups = {group: OmegaConf.load(CONF / group / f"{member}.yaml") for group, member in choice.items()}
    return OmegaConf.create({**groups, "trainer": {"seed": 0, "updates": total_steps}})


def batches(loader):
    return [(x.clone(), y.clone()) for x, y in loader]


def assert_same(one, other):
    assert len(one) == len(other)
    for (x1, y1), (x2, y2) in zip(one, other, strict=True):
        assert torch.equal(x1, x2)
        assert torch.equal(y1, y2)
