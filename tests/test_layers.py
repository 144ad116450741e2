"""A module imports only what stands before it in the flow, and each dependency has its owners.

Imports inside functions count as those at the top do; imports for the type checker alone do not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import fastio

PACKAGE = Path(__file__).parent.parent / "fastio"

# The flow, from left to right. A folder of modules stands in the place of its name.
LAYERS = [
    "shown",
    "errors",
    "runtime",
    "records",
    "schema",
    "store",
    "cache",
    "packed",
    "sources",
    "order",
    "views",
    "transforms",
    "stage",
    "recoded",
    "stats",
    "engine",
    "tensors",
    "device",
    "feed",
    "loader",
    "pack",
    "integrations",
    "train",
    "diagnose",
    "cli",
    "__main__",
]

# Written on the public names alone, as users' own code is: examples to read. Two have a part in
# common: files and JSON are written, and paths from users are converted, in one way.
PUBLIC_ONLY = {"integrations", "train"}
COMMON = {"train": {"runtime", "shown", "store"}}

# Where a dataset may be asked for its class; `packed` defines the base class.
ASK_CLASSES = {"packed", "sources", "views"}

# Who may import what; a dependency that is not named here is anybody's.
OWNERS = {
    "fastio._native": {
        "runtime.build",
        "runtime.node",
        "runtime.threads",
        "schema",
        "packed",
        "sources.table.parquet",
        "sources.table.data",
        "sources.table.reading",
        "views.window_layout",
        "order",
        "recoded",
        "engine",
        "transforms",
        "pack",
        "feed.row_groups",
        "diagnose.probes.machine",
    },
    "fsspec": {"store"},
    "obstore": {"store"},
    "torch": {
        "tensors",
        "device",
        "feed.arguments",
        "feed.samplers",
        "feed.seeds",
        "loader",
        "integrations",
        "train",
        "diagnose",
        "sources.torch_calls",
        "sources.worker_start",
        "sources.torch_dataset",
        "sources.torch_rows",
        "views.subsets",
    },
    "lightning": {"integrations.lightning"},
    "pytorch_lightning": {"integrations.pytorch_lightning"},
    "accelerate": {"integrations.accelerate"},
    "transformers": {"train"},
    "tensorboard": {"train"},
    "visdom": {"train"},
    "pyarrow": {"schema", "packed", "sources", "pack", "diagnose"},
    "PIL": {"packed", "sources", "pack", "engine", "diagnose", "cli.contact_sheet"},
    "torchdata": {"sources.torch_dataset"},
    "typer": {"cli"},
    "jinja2": {"diagnose.report.page"},
    "pydantic": {"diagnose.measured"},
    # Objects are recognized by the names of their modules. It is imported only if a user asks for a
    # model or for a type of images.
    "torchvision": {"train", "tensors.samples"},
    "webdataset": set(),
}

MODULES = {
    path.relative_to(PACKAGE).with_suffix("").as_posix().replace("/", "."): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path != PACKAGE / "__init__.py"
}


@cache
def tree(path: Path) -> ast.Module:
    """The syntax of a file."""
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> frozenset[str]:
    """Absolute dotted names that a file imports, `from a import b` as both a and a.b."""
    return frozenset(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    package = ["fastio", *path.relative_to(PACKAGE).parent.parts]
    stack: list[ast.AST] = [tree(path)]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            stack += node.orelse
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join(base + ([node.module] if node.module else []))
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        else:  # imports are statements, and stand in no expression
            stack += (at for at in ast.iter_child_nodes(node) if not isinstance(at, ast.expr))


def layer(module: str) -> str:
    """The layer of a module named relative to the package: formats.folder is in formats."""
    return module.split(".")[0]


def public_face(path: Path) -> list[str]:
    """Every `import fastio` of a file, wherever it stands."""
    return [
        alias.name
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name == "fastio"
    ]


def out_of_order(module: str) -> set[str]:
    """What a module imports of the package that does not stand before it in the flow."""
    own = layer(module)
    names = {name.split(".")[1] for name in imports(MODULES[module]) if name.startswith("fastio.")}
    before = {"_native", *LAYERS[: LAYERS.index(own)]}
    if own in PUBLIC_ONLY:
        before = COMMON.get(own, set()) | {*fastio.__all__}
    elif public_face(MODULES[module]):
        names.add("the public face, which is a way around the layers")
    return names - {own} - before


def test_every_module_has_a_layer() -> None:
    assert {module for module in MODULES if layer(module) not in LAYERS} == set()
    assert {layer(module) for module in MODULES} == set(LAYERS)


def test_modules_import_only_what_stands_before_them() -> None:
    found = {module: out_of_order(module) for module in MODULES if layer(module) in LAYERS}
    assert {module: names for module, names in found.items() if names} == {}


def dataset_classes() -> set[str]:
    """The classes of datasets, which are told apart where they are defined alone."""
    found = {"Rows", "View", "Mix"}
    for module, path in MODULES.items():
        if layer(module) in ASK_CLASSES:
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.ClassDef) and {"Rows", "Remote", "View"} & {
                    ast.unparse(base) for base in node.bases
                }:
                    found.add(node.name)
    return found


def test_a_dataset_is_asked_what_it_can_and_not_for_its_class() -> None:
    classes = dataset_classes()
    assert {"Dataset", "FolderDataset", "TableSamples", "TokenWindows"} <= classes
    asked = {
        f"{module}:{node.lineno}"
        for module, path in MODULES.items()
        if layer(module) not in ASK_CLASSES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("isinstance", "issubclass")
        and classes & {ast.unparse(name).split(".")[-1] for name in ast.walk(node.args[1])}
    }
    assert asked == set()


def test_dependencies_are_imported_by_their_owners_only() -> None:
    strangers = {
        (module, name)
        for module, path in MODULES.items()
        for name, owners in OWNERS.items()
        if any(used == name or used.startswith(name + ".") for used in imports(path))
        and not any(f"{module}.".startswith(f"{owner}.") for owner in owners)
    }
    assert strangers == set()


def test_pyarrow_is_not_asked_for_what_needs_pandas() -> None:
    """Before pyarrow 26, which Python 3.10 cannot have, `to_pandas_dtype` fails without it."""
    asked = {
        f"{path.name}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr.startswith("to_pandas")
    }
    assert not asked


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    graph = {
        module: {name.removeprefix("fastio.") for name in imports(path)} & set(MODULES) - {module}
        for module, path in MODULES.items()
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules


def test_the_top_of_the_package_is_a_short_list() -> None:
    assert len([module for module in MODULES if "." not in module]) < 12
