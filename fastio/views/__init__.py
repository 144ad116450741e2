"""Datasets that are made of other datasets.

- `windows`, `padded`: documents of tokens as windows of one length, or padded
- `documents`, `segments`, `window_layout`, `readers`: what these are cut from, and where
- `mixing`: mixes by weight; `subsets`: Subset and ConcatDataset of torch
- `base`: the protocol of all of them
"""

from __future__ import annotations
