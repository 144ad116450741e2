"""torchvision's transforms and datasets, also where its C++ operators are missing.

tools/setup installs torchvision from PyPI beside torch built for CPUs, which may not match: then
the operators cannot be loaded, and `import torchvision` fails. Its transforms and datasets, with
which tests and benchmarks compare, do not need them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

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
    """The declarations, which last as long as this object: for the whole process."""
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for schema in _OPERATORS:
        library.define(schema)
    return library


@cache
def load() -> Any:
    """torchvision, with its operators declared but without code where they cannot be loaded.

    Raises:
        ImportError: it is not installed.
    """
    try:
        import torchvision
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
