"""tools/common.sh, the functions that the tools share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMMON = Path(__file__).parent.parent / "tools" / "common.sh"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with tools/common.sh, and a tools/setup that prints its arguments."""
    (tmp_path / "tools").mkdir()
    shutil.copy(COMMON, tmp_path / "tools")
    setup = tmp_path / "tools" / "setup"
    setup.write_text("#!/bin/sh\necho setup $*\n")
    setup.chmod(0o755)
    return tmp_path


def run(checkout: Path, script: str, **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs a script that has read common.sh, as the tools do, with PATH of the system."""
    return subprocess.run(
        ["/bin/bash", "-euo", "pipefail", "-c", f". tools/common.sh\n{script}", "tools/name"],
        cwd=checkout,
        env={"PATH": "/usr/bin:/bin", **{name: str(value) for name, value in environment.items()}},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_use_environment_sets_up_and_lets_python_write_bytecode(checkout: Path) -> None:
    script = 'use_environment --no-dev\necho "$PATH"\nenv | grep -c PYTHONDONTWRITEBYTECODE || true'
    lines = run(checkout, script, PYTHONDONTWRITEBYTECODE="1").stdout.splitlines()
    assert lines == ["setup --quiet --no-dev", f"{checkout}/.venv/bin:/usr/bin:/bin", "0"]


def test_make_environment_installs_once_for_the_same_packages(checkout: Path) -> None:
    python = checkout / "python"
    python.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f"  '-m venv '*) mkdir -p $3/bin && cp '{python}' $3/bin/python ;;\n"
        f"  *' install '*) echo $* >>'{checkout}/installed' ;;\n"
        "  *) echo 3.11 ;;\n"
        "esac\n"
    )
    python.chmod(0o755)
    one = 'make_environment "$root/build/x" one==1'
    run(checkout, one, PYTHON=python).check_returncode()
    run(checkout, one, PYTHON=python).check_returncode()
    run(checkout, f"{one} two==2", PYTHON=python).check_returncode()
    installed = (checkout / "installed").read_text().splitlines()
    assert [line.split(" install ")[1] for line in installed] == ["one==1", "one==1 two==2"]


def test_apt_install_says_what_to_install_without_apt(checkout: Path) -> None:
    done = run(checkout, "command() { return 1; }\napt_install g++ cmake || echo failed")
    assert done.stdout == "failed\n"
    assert done.stderr.startswith("name: there is no apt-get here")
    assert done.stderr.endswith("g++ cmake\n")
