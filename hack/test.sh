#!/usr/bin/env bash
# Everything: unit tests under the race detector, then the two-node cluster and the end-to-end tests on it.
set -euo pipefail
cd "$(dirname "$0")/.."
source hack/steps.sh

step "unit tests, race detector" go test -race -timeout 8m ./...
WINKUBE_E2E=1 go test -count=1 -v -timeout 60m ./test/e2e
