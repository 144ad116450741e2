"""What several test files need: torchvision where its compiled part does not load."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

# torchvision's own operators, for which its Python part registers fakes and gradients at import.
_OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    *(
        f"{name}(Tensor input, Tensor rois) -> Tensor"
        for kind in ("roi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d")
        for name in (kind, f"_{kind}_backward")
    ),
)


@cache
def _declared_operators() -> Any:
    """The declarations, which last as long as this object: for the whole test run."""
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for schema in _OPERATORS:
        library.define(schema)
    return library


@cache
def import_torchvision() -> Any:
    """torchvision with its transforms and datasets; skips the test where it is not installed.

    Where torch has no build of torchvision's C++ operators beside it (no CPU wheel of some
    versions matches), they are declared, without code, so that the rest can be imported.
    """
    try:
        import torchvision
    except ImportError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:  # "operator torchvision::nms does not exist"
        import sys

        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        _declared_operators()
        import torchvision
    import torchvision.datasets
    import torchvision.transforms
    import torchvision.transforms.v2

    return torchvision
