# Functions that tools share. A tool reads this file at its start:
#   . "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# It sets `root`, the folder of the checkout.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# say WORD...: prints a line that begins with the name of the tool.
say() { echo "${0##*/}: $*"; }

# use_environment ARGUMENT...: brings .venv/ up to date (tools/setup --quiet with these arguments), and
# puts its programs first in PATH.
use_environment() {
  "$root/tools/setup" --quiet "$@"
  export PATH=$root/.venv/bin:$PATH
  # Tools start many processes that import torch. With the bytecode that the first process writes to
  # __pycache__/ (which git ignores), an import takes half as long.
  unset PYTHONDONTWRITEBYTECODE
}

# python_identity PYTHON: prints the version of a Python and where it is installed.
python_identity() { "$1" -c 'import sys; print(sys.version, sys.base_prefix)'; }

# make_environment FOLDER PACKAGE...: makes a virtual environment with these packages, unless the folder
# has it. PYTHON names the Python to make it with (default: python3).
make_environment() {
  local folder=$1 python=${PYTHON:-python3} key
  shift
  key="$(python_identity "$python") $*"
  if [ -f "$folder/fastio-packages" ] && [ "$(cat "$folder/fastio-packages")" = "$key" ]; then
    return 0
  fi
  say "installing into ${folder#"$root/"}: $*"
  rm -rf "$folder"
  "$python" -m venv "$folder"
  "$folder/bin/python" -m pip --disable-pip-version-check -q install "$@"
  echo "$key" >"$folder/fastio-packages"
}

# apt_install PACKAGE...: installs Debian packages, as root or through sudo. Says why if it cannot, and
# returns 1.
apt_install() {
  local as_root=()
  if ! command -v apt-get >/dev/null; then
    say "there is no apt-get here; install the packages for (Debian's names): $*" >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      say "these packages are missing; as root: apt-get install $*" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  say "installing $* with apt-get"
  "${as_root[@]}" apt-get update -qq ||
    say "apt-get update failed; continuing with the package lists that are here"
  if ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@"; then
    say "apt-get could not install: $*" >&2
    return 1
  fi
}
