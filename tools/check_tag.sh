#!/bin/sh
# check_tag.sh REF: a release is of the version that the package says, so that a tag cannot publish
# another one. A ref that is no tag v1.2.3 passes: nothing is published of it.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
case $1 in
  refs/tags/v*) ;;
  *) exit 0 ;;
esac
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$here/python/torchtraceap/_version.py")
[ "$1" = "refs/tags/v$version" ] && exit 0
echo "the tag ${1#refs/tags/} is not v$version, which python/torchtraceap/_version.py says" >&2
exit 1
