#!/usr/bin/env bash
# Tests both .exe under Wine, and the rig that runs them: the short tests of test/windows/suites/programs.
set -euo pipefail
cd "$(dirname "$0")/.."
hack/ensure-packages.sh wine
WINKUBE_WINE=1 go test -short -count=1 -timeout "${1:-10m}" ./test/windows/suites/programs ./test/windows/rig
