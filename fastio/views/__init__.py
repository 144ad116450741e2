"""Datasets that are made of other datasets.

- `windows`, `padded`: documents of tokens as windows of one length, or padded
- `documents`, `window_layout`: what these are cut from, and where
- `mixing`: mixes by weight; `subsets`: Subset and ConcatDataset of torch
- `base`: the base class of the views of tokens
"""

from __future__ import annotations
